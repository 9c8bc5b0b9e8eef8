"""Titles, formulas, arrays and heatmaps of the lessons."""

import pathlib
from collections.abc import Sequence

import jax
import numpy as np

from experiments.figures import attention_maps, figures


def title(text: str) -> str:
  return f"\n{text}\n{'=' * len(text)}\n"


def formulas(*lines: str) -> str:
  return "\n" + "".join(f"    {line}\n" for line in lines)


def array(name: str, values: jax.Array) -> str:
  """Returns a name, followed by the numbers of an array."""
  numbers = np.array2string(np.asarray(values), precision=3, floatmode="fixed", prefix="  ")
  return f"{name}\n  {numbers}"


def heat_map(
  path: pathlib.Path, weights: jax.Array, source_words: Sequence[str], target_words: Sequence[str]
) -> str:
  """Writes a heatmap of weights [T S], and returns a line with the path."""
  figures.save(attention_maps.attention_map(np.asarray(weights), source_words, target_words), path)
  return f"heatmap: {path}"
