"""Recorded attention: of translators that the page cannot run, and from files."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.cli.errors import DataError
from experiments.cli.messages import counted
from experiments.data.task import Example
from experiments.data.words import strip_joiners
from experiments.explorer.encode_arrays import encode_arrays
from experiments.inference.translator import Heads, Translation, Translator

_EOS_LABEL = "</s>"
_MAX_UINT16 = np.iinfo(np.uint16).max
_TOLERANCE = 1e-5  # rounding error of a weight


def recorded_model(translator: Translator, reason: str, examples: Sequence[Example]) -> dict[str, Any]:
  """Returns the attention weights of each layer and head for the page.

  Args:
    translator: a translator that is not an ensemble.
    reason: why the page cannot run the translator.
    examples: sentences. The weights are those for the reference translation if there is a true alignment,
      else for the translation of the model.

  Returns:
    A JSON value. Weights are quantized to 16 bits between `low` and `high`, which are 0 and 1 unless weights
    are outside that range.
  """
  source, target = translator.task.source, translator.task.target
  decoded = iter(translator.translate([item.source_text for item in examples if item.alignment is None]))
  translations = [
    next(decoded)
    if item.alignment is None
    else Translation(item.target_text, target.tokenize(item.target_text), 0.0, None)
    for item in examples
  ]
  tokens = [
    (source.tokenize(item.source_text), translation.tokens)
    for item, translation in zip(examples, translations, strict=True)
  ]
  heads = translator.heads_of_tokens(tokens)
  return {"why": reason, "sentences": [*map(_sentence, examples, translations, heads)]}


def weights_file(path: pathlib.Path) -> dict[str, Any]:
  """Returns the attention weights of a NumPy file for the page.

  Args:
    path: a file of `numpy.savez` with `weights` [layers heads T S], and either `tokens` [S], for
      self-attention, or `source` [S] and `target` [T].

  Raises:
    DataError: if the file cannot be read, or its arrays do not fit.
  """
  arrays = _read_arrays(path)
  is_self = "tokens" in arrays or not {"source", "target"} & arrays.keys()
  names = ("weights", "tokens") if is_self else ("weights", "source", "target")
  if missing := [name for name in names if name not in arrays]:
    raise DataError(f"{path} has no {' and no '.join(missing)} (found: {', '.join(arrays) or 'no arrays'})")
  for name in names[1:]:
    if arrays[name].ndim != 1 or arrays[name].dtype.kind != "U":
      raise DataError(
        f"{path}: {name} must be an array of strings with one axis, got {arrays[name].dtype} with shape "
        f"{arrays[name].shape}"
      )
  weights, columns = arrays["weights"], [*map(str, arrays[names[1]])]
  rows = columns if is_self else [*map(str, arrays["target"])]
  if weights.ndim != 4 or weights.shape[2:] != (len(rows), len(columns)) or not weights.size:
    raise DataError(
      f"{path}: weights must have axes [layers heads T S] with T={len(rows)} and S={len(columns)} tokens, "
      f"got shape {weights.shape}"
    )
  if not np.issubdtype(weights.dtype, np.floating):
    raise DataError(f"{path}: weights must be floating-point numbers, got {weights.dtype}")
  # The page computes with float32.
  if count := np.sum(~(np.abs(weights.astype(np.float64)) <= np.finfo(np.float32).max)):
    raise DataError(
      f"{path}: weights must be finite and at most 3.4e38, got {count:,} that are NaN, infinite or larger"
    )
  sentence = {
    "rows": rows,
    "columns": columns,
    "source_text": " ".join(columns),
    "target_text": "",
    "is_output": False,
    "reference": "",
    "links": None,
    "sides": {"encoder" if is_self else "decoder": _quantize(weights)},
  }
  L, N = weights.shape[:2]
  size = f"{len(rows):,} by {counted(len(columns), 'token')}"
  summary = f"{counted(L, 'layer')}, {counted(N, 'head')}, {size}"
  return {"name": path.stem, "summary": summary, "why": None, "sentences": [sentence]}


def _read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the arrays of a file of `numpy.savez`."""
  arrays: dict[str, Any] = {}
  try:
    with np.load(path, allow_pickle=False) as file:
      arrays = dict(file)
  except OSError as error:
    raise DataError(f"{path}: cannot read the file: {error.strerror or error}") from None
  except MemoryError as error:
    raise DataError(f"{path}: the arrays do not fit into memory: {error}") from None
  except Exception:  # a damaged file may raise anything, and a single array has no `with`
    arrays = {"": None}
  if not all(isinstance(array, np.ndarray) for array in arrays.values()):
    raise DataError(
      f"{path} must be a file of numpy.savez, with arrays of numbers and strings instead of Python objects"
    )
  return arrays


def _sentence(example: Example, translation: Translation, heads: Heads) -> dict[str, Any]:
  columns = [*map(strip_joiners, heads.source), _EOS_LABEL]
  rows = [*map(strip_joiners, heads.target), *([] if translation.is_truncated else [_EOS_LABEL])]
  decoder = None if heads.decoder is None else heads.decoder[..., : len(rows), :]
  sides = {"decoder": decoder, "encoder": heads.encoder}
  return {
    "rows": rows,
    "columns": columns,
    "source_text": example.source_text,
    "target_text": translation.text,
    "is_output": example.alignment is None,
    "reference": example.target_text,
    "links": None if example.alignment is None else sorted(example.alignment),
    "sides": {side: _quantize(weights) for side, weights in sides.items() if weights is not None},
  }


def _quantize(weights: np.ndarray) -> dict[str, Any]:
  low, high = float(min(weights.min(), 0)), float(max(weights.max(), 1))
  if low >= -_TOLERANCE and high <= 1 + _TOLERANCE:
    low, high = 0.0, 1.0
  fractions = (np.clip(weights.astype(np.float64), low, high) - low) / (high - low)
  quantized = np.round(fractions * _MAX_UINT16).astype(np.uint16)
  return {"shape": weights.shape, "weights": encode_arrays([quantized]), "low": low, "high": high}
