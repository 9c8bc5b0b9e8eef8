"""Reports of a run: table of scores, example translations and figures."""

import functools
import io
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.cli import tables
from experiments.cli.io import write_bytes
from experiments.runs import workdir
from experiments.tasks import Example
from experiments.text.text_processor import TextProcessor
from experiments.text.words import strip_joiners
from experiments.translation import attention_maps, figures, labels, png
from experiments.translation.evaluate import Metric, evaluate
from experiments.translation.metrics import normalize
from experiments.translation.translator import Heads, Translation, Translator

Results = dict[str, dict[str, float]]  # split -> metric -> value

_NUM_EXAMPLES = 5  # translations and attention maps
_MAX_HEAD_WEIGHTS = 16 * 20**2  # maximum number of weights in a figure of all heads
_EOS_LABEL = "</s>"
_UNKNOWN_SUFFIX = " (unknown)"
_MAX_UNKNOWN_LENGTH = labels.MAX_LENGTH - len(_UNKNOWN_SUFFIX)

_COLUMNS = {
  "sentences": "{:,.0f}",
  "exact_match": "{:.3f}",
  "bleu": "{:.1f}",
  "chrf": "{:.1f}",
  "token_accuracy": "{:.4f}",
  "loss": "{:.4f}",
  "alignment_error_rate": "{:.3f}",
  "attention_mass": "{:.3f}",
}


def evaluate_splits(
  translator: Translator, num_examples: int, custom_metrics: Mapping[str, Metric] = MappingProxyType({})
) -> Results:
  """Returns the metrics of all splits of the task. See `evaluate`.

  Args:
    translator: the translator to evaluate.
    num_examples: number of sentences per split. 0 means all.
    custom_metrics: additional metrics by name.
  """
  task = translator.task
  return {
    split: evaluate(translator, task.examples(split, num_examples), custom_metrics) for split in task.splits
  }


def write_results(folder: pathlib.Path, results: Results) -> None:
  """Writes results.json."""
  workdir.write_json(folder / "results.json", results)


def table(results: Results) -> str:
  """Returns results as text, one line per split.

  >>> print(table({"test": {"sentences": 1000.0, "exact_match": 0.5}}))
  split  sentences  exact_match
  test       1,000        0.500
  """
  names = dict.fromkeys(name for values in results.values() for name in values)
  custom_metrics = [name for name in names if name not in _COLUMNS]
  metrics = [*(name for name in _COLUMNS if name in names), *custom_metrics]
  rows = [["split", *metrics]]
  for split, values in results.items():
    cells = [_COLUMNS.get(name, "{:.4f}").format(values[name]) if name in values else "-" for name in metrics]
    rows.append([split, *cells])
  return tables.columns(rows)


def show_translations(translator: Translator) -> None:
  """Prints example translations, and the references of those that differ."""
  examples = _select_examples(translator)
  hypotheses = translator.n_best([example.source for example in examples], with_attention=False)
  for example, (best, *_) in zip(examples, hypotheses, strict=True):
    print(f"\n  source       {example.source_text}\n  translation  {best.text}")
    is_correct = normalize(best.text) == normalize(example.target_text)  # like exact match
    print("  (correct)" if is_correct else f"  reference    {example.target_text}")


def draw_figures(folder: pathlib.Path, translator: Translator) -> list[pathlib.Path]:
  """Draws training curves and attention maps in the folder figures/ of a run, and returns their paths."""
  task, examples = translator.task, _select_examples(translator)
  draw_functions: dict[str, Callable[[], Figure]] = {
    "training_curves": lambda: figures.training_curves(workdir.read_metrics(folder))
  }
  words: list[str] = []
  scored = translator.score_tokens([(example.source, example.target) for example in examples])
  for i, (example, pair) in enumerate(zip(examples, scored, strict=True)):
    if pair.attention is not None:
      columns, rows = _labels(task.source, example.source), _labels(task.target, example.target)
      words += [*columns, *rows]
      draw_functions[f"attention_{i}"] = functools.partial(
        attention_maps.attention_map,
        pair.attention,
        columns,
        rows,
        alignment=example.alignment,
        title="attention for the reference translation",
      )
  return write_figures(folder / "figures", draw_functions, words)


def write_figures(
  folder: pathlib.Path, draw_functions: Mapping[str, Callable[[], Figure]], words: Iterable[str]
) -> list[pathlib.Path]:
  """Writes figures as NAME.png. Prints a warning for each figure that cannot be drawn.

  Args:
    folder: where to write.
    draw_functions: functions that return the figures, by name.
    words: words of the figures. A warning is printed if no font has some of their characters.

  Returns:
    The paths of the files.
  """
  if warning := labels.missing_glyph_warning(map(labels.shorten, words)):
    print(warning, file=sys.stderr)
  paths = {folder / f"{name}.png": draw for name, draw in draw_functions.items()}
  return [path for path, draw in paths.items() if png.try_to_save(draw, path)]


def draw_translation(
  path: pathlib.Path, language: TextProcessor, source: Sequence[str], translation: Translation
) -> bool:
  """Writes the attention map of a translation as PNG. Returns False if it cannot be drawn."""
  if translation.attention is None:
    raise ValueError("translation must have attention, got none")
  columns = _labels(language, source)
  rows = [*map(strip_joiners, translation.tokens), *([] if translation.is_truncated else [_EOS_LABEL])]
  draw = functools.partial(
    attention_maps.attention_map, translation.attention, columns, rows, title="attention of the translation"
  )
  return bool(write_figures(path.parent, {path.stem: draw}, [*columns, *rows]))


def draw_heads(folder: pathlib.Path, translator: Translator, heads: Heads) -> list[pathlib.Path]:
  """Writes the weights of all layers and heads as heads.npz, and as PNG if they are readable.

  Returns:
    The paths of the files, or an empty list if the model has no attention.
  """
  sources = _labels(translator.task.source, heads.source)
  targets = _labels(translator.task.target, heads.target)
  sides = {
    "decoder": (heads.decoder, targets, "attention heads of the decoder"),
    "encoder": (heads.encoder, sources, "self-attention heads of the encoder"),
  }
  arrays: dict[str, Any] = {"source": np.array(heads.source), "target": np.array(heads.target)}
  draw_functions = {}
  for name, (weights, rows, title) in sides.items():
    if weights is not None:
      arrays[name] = weights
      if weights.size <= _MAX_HEAD_WEIGHTS:
        draw_functions[f"{name}_heads"] = functools.partial(
          attention_maps.head_maps, weights, sources, rows, title=title
        )
  if len(arrays) == 2:
    return []
  folder.mkdir(parents=True, exist_ok=True)
  file = io.BytesIO()
  np.savez(file, **arrays)
  write_bytes(folder / "heads.npz", file.getvalue())
  return [folder / "heads.npz", *write_figures(folder, draw_functions, [*sources, *targets])]


def _labels(language: TextProcessor, tokens: Sequence[str]) -> list[str]:
  """Returns the labels of the tokens of a sentence and of EOS. Unknown tokens are marked."""
  unknown = set(language.vocabulary.unknown(tokens))
  token_labels = (
    f"{labels.shorten(strip_joiners(token), _MAX_UNKNOWN_LENGTH)}{_UNKNOWN_SUFFIX}"
    if token in unknown
    else strip_joiners(token)
    for token in tokens
  )
  return [*token_labels, _EOS_LABEL]


def _select_examples(translator: Translator) -> list[Example]:
  """Returns the longest sentences that fit into a map, among the first sentences of the first split."""
  examples = [
    example
    for example in translator.task.examples(translator.task.splits[0], 20 * _NUM_EXAMPLES)
    if max(len(example.source), len(example.target)) <= attention_maps.MAX_LENGTH
  ]
  by_length = sorted(examples, key=lambda example: -len(example.source))
  return by_length[:_NUM_EXAMPLES]
