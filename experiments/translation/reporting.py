"""What a run shows at its end: a table of scores, some translations, pictures."""

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
from experiments.translation.metrics import comparable
from experiments.translation.translator import Heads, Translation, Translator

Results = dict[str, dict[str, float]]  # split -> metric -> value

_SHOWN = 5  # translations and attention maps
_DRAWN_WEIGHTS = 16 * 20**2  # of all heads in one figure
_END = "</s>"  # how the end of a sentence is written in pictures
_UNKNOWN = " (unknown)"
_LONGEST_UNKNOWN = labels.MAX_LENGTH - len(_UNKNOWN)

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
  translator: Translator, count: int, others: Mapping[str, Metric] = MappingProxyType({})
) -> Results:
  """Returns the metrics of every split of the task, of `count` sentences each (0 for all); as `evaluate`."""
  task = translator.task
  return {split: evaluate(translator, task.examples(split, count), others) for split in task.splits}


def write_results(folder: pathlib.Path, results: Results) -> None:
  """Writes results.json."""
  workdir.write_json(folder / "results.json", results)


def table(results: Results) -> str:
  """Returns the results as text, a line for each split.

  >>> print(table({"test": {"sentences": 1000.0, "exact_match": 0.5}}))
  split  sentences  exact_match
  test       1,000        0.500
  """
  found = dict.fromkeys(name for values in results.values() for name in values)
  others = [name for name in found if name not in _COLUMNS]
  metrics = [*(name for name in _COLUMNS if name in found), *others]
  rows = [["split", *metrics]]
  for split, values in results.items():
    cells = [_COLUMNS.get(name, "{:.4f}").format(values[name]) if name in values else "-" for name in metrics]
    rows.append([split, *cells])
  return tables.columns(rows)


def show_translations(translator: Translator) -> None:
  """Prints some translations, and the true ones where they differ."""
  examples = _shown_examples(translator)
  found = translator.n_best([example.source for example in examples], with_attention=False)
  for example, (best, *_) in zip(examples, found, strict=True):
    print(f"\n  source       {example.source_text}\n  translation  {best.text}")
    is_correct = comparable(best.text) == comparable(example.target_text)  # as for the exact match
    print("  (correct)" if is_correct else f"  reference    {example.target_text}")


def draw_figures(folder: pathlib.Path, translator: Translator) -> list[pathlib.Path]:
  """Draws training curves and attention maps in the folder's figures/; returns the files."""
  task, examples = translator.task, _shown_examples(translator)
  drawn: dict[str, Callable[[], Figure]] = {
    "training_curves": lambda: figures.training_curves(workdir.read_metrics(folder))
  }
  words: list[str] = []
  scored = translator.score_tokens([(example.source, example.target) for example in examples])
  for i, (example, one) in enumerate(zip(examples, scored, strict=True)):
    if one.attention is not None:
      columns, rows = _labels(task.source, example.source), _labels(task.target, example.target)
      words += [*columns, *rows]
      drawn[f"attention_{i}"] = functools.partial(
        attention_maps.attention_map,
        one.attention,
        columns,
        rows,
        alignment=example.alignment,
        title="attention along the true translation",
      )
  return write_figures(folder / "figures", drawn, words)


def write_figures(
  folder: pathlib.Path, drawn: Mapping[str, Callable[[], Figure]], words: Iterable[str]
) -> list[pathlib.Path]:
  """Writes figures as NAME.png, after a line about letters of their words that no font has.

  Returns:
    The files; what cannot be drawn is a warning.
  """
  if note := labels.missing_glyph_warning(map(labels.shorten, words)):
    print(note, file=sys.stderr)
  paths = {folder / f"{name}.png": make for name, make in drawn.items()}
  return [path for path, make in paths.items() if png.try_to_save(make, path)]


def draw_translation(
  path: pathlib.Path, language: TextProcessor, source: Sequence[str], translation: Translation
) -> bool:
  """Returns whether the attention map of a translation could be drawn; it is written as PNG."""
  if translation.attention is None:
    raise ValueError("translation must have attention, got none")
  columns = _labels(language, source)
  rows = [*map(strip_joiners, translation.tokens), *([] if translation.is_truncated else [_END])]
  make = functools.partial(
    attention_maps.attention_map, translation.attention, columns, rows, title="attention of the translation"
  )
  return bool(write_figures(path.parent, {path.stem: make}, [*columns, *rows]))


def draw_heads(folder: pathlib.Path, translator: Translator, heads: Heads) -> list[pathlib.Path]:
  """Writes the weights of each layer and head: heads.npz, and PNG of those that a person can still read.

  Returns:
    The files; none if there are no weights.
  """
  sources = _labels(translator.task.source, heads.source)
  targets = _labels(translator.task.target, heads.target)
  sides = {
    "decoder": (heads.decoder, targets, "the decoder"),
    "encoder": (heads.encoder, sources, "the encoder's self-attention"),
  }
  arrays: dict[str, Any] = {"source": np.array(heads.source), "target": np.array(heads.target)}
  drawn = {}
  for name, (weights, rows, what) in sides.items():
    if weights is not None:
      arrays[name] = weights
      if weights.size <= _DRAWN_WEIGHTS:
        drawn[f"{name}_heads"] = functools.partial(
          attention_maps.head_maps, weights, sources, rows, title=f"each head of {what}"
        )
  if len(arrays) == 2:
    return []
  folder.mkdir(parents=True, exist_ok=True)
  file = io.BytesIO()
  np.savez(file, **arrays)
  write_bytes(folder / "heads.npz", file.getvalue())
  return [folder / "heads.npz", *write_figures(folder, drawn, [*sources, *targets])]


def _labels(language: TextProcessor, tokens: Sequence[str]) -> list[str]:
  """Returns how the tokens of a sentence and its end are written in pictures: unknown ones with a mark."""
  unknown = set(language.vocabulary.unknown(tokens))
  known_or_marked = (
    f"{labels.shorten(strip_joiners(token), _LONGEST_UNKNOWN)}{_UNKNOWN}"
    if token in unknown
    else strip_joiners(token)
    for token in tokens
  )
  return [*known_or_marked, _END]


def _shown_examples(translator: Translator) -> list[Example]:
  """Returns the longest of the first split's first sentences that fit into a map: the interesting ones."""
  examples = [
    example
    for example in translator.task.examples(translator.task.splits[0], 20 * _SHOWN)
    if max(len(example.source), len(example.target)) <= attention_maps.LONGEST
  ]
  by_length = sorted(examples, key=lambda example: -len(example.source))
  return by_length[:_SHOWN]
