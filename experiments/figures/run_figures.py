"""Figures of a run: training curves, attention maps, and the weights of all heads.

Scripts import this file when they draw, since Matplotlib takes a third of their start.
"""

import functools
import io
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.cli.io import write_bytes
from experiments.data.text_processor import TextProcessor
from experiments.data.words import strip_joiners
from experiments.evaluation.reporting import select_examples
from experiments.figures import attention_maps, figures, labels
from experiments.inference.translator import Heads, Translation, Translator
from experiments.runs import workdir

_MAX_HEAD_WEIGHTS = 16 * 20**2  # maximum number of weights in a figure of all heads
_EOS_LABEL = "</s>"
_UNKNOWN_SUFFIX = " (unknown)"
_MAX_UNKNOWN_LENGTH = labels.MAX_LENGTH - len(_UNKNOWN_SUFFIX)


def draw_figures(folder: pathlib.Path, translator: Translator) -> list[pathlib.Path]:
  """Draws training curves and attention maps in the folder figures/ of a run, and returns their paths."""
  task, examples = translator.task, select_examples(translator)
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
  return [path for path, draw in paths.items() if figures.try_to_save(draw, path)]


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
    "decoder": (heads.decoder, targets, "target", "attention heads of the decoder"),
    "encoder": (heads.encoder, sources, "source", "self-attention heads of the encoder"),
  }
  arrays: dict[str, Any] = {"source": np.array(heads.source), "target": np.array(heads.target)}
  draw_functions = {}
  for name, (weights, rows, row_label, title) in sides.items():
    if weights is not None:
      arrays[name] = weights
      if weights.size <= _MAX_HEAD_WEIGHTS:
        draw_functions[f"{name}_heads"] = functools.partial(
          attention_maps.head_maps, weights, sources, rows, title=title, row_label=row_label
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
