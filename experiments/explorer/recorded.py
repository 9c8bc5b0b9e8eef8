"""Attention of given sentences as the page shows it, of models that it cannot run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.explorer.encode_arrays import packed
from experiments.text.parallel_corpus import SentencePair
from experiments.text.words import strip_joiners
from experiments.translation.translator import Heads, Translation, Translator

_END = "</s>"
_LARGEST = np.iinfo(np.uint16).max
_ROUNDING = 1e-5  # by which a weight of 0 or 1 may be off


def recorded_model(translator: Translator, why: str, sentences: Sequence[SentencePair]) -> dict[str, Any]:
  """Returns what the page needs to show who attends to whom, by each layer and head.

  Args:
    translator: any but an ensemble.
    why: the page cannot run it, in a few words.
    sentences: with the translations along which it is; the model's own where one is empty.

  Returns:
    A value for JSON. Weights are rounded to a 65,535th of their range, `low` to `high`: [0, 1], or more if
    they are not shares.
  """
  source, target = translator.task.source, translator.task.target
  own = iter(translator.translate([each.source for each in sentences if not each.target]))
  found = [
    Translation(each.target, target.tokenize(each.target), 0.0, None) if each.target else next(own)
    for each in sentences
  ]
  pairs = [(source.tokenize(given.source), each.tokens) for given, each in zip(sentences, found, strict=True)]
  heads = translator.heads_of_tokens(pairs)
  return {"why": why, "sentences": [*map(_sentence, sentences, found, heads)]}


def _sentence(given: SentencePair, found: Translation, heads: Heads) -> dict[str, Any]:
  columns = [*map(strip_joiners, heads.source), _END]
  rows = [*map(strip_joiners, heads.target), *([] if found.is_truncated else [_END])]
  decoder = None if heads.decoder is None else heads.decoder[..., : len(rows), :]
  sides = {"decoder": decoder, "encoder": heads.encoder}
  return {
    "rows": rows,
    "columns": columns,
    "source_text": given.source,
    "target_text": found.text,
    "links": None if given.alignment is None else sorted(given.alignment),
    "sides": {side: _described(weights) for side, weights in sides.items() if weights is not None},
  }


def _described(weights: np.ndarray) -> dict[str, Any]:
  low, high = float(min(weights.min(), 0)), float(max(weights.max(), 1))
  if low >= -_ROUNDING and high <= 1 + _ROUNDING:
    low, high = 0.0, 1.0
  shares = (np.clip(weights.astype(np.float64), low, high) - low) / (high - low)
  rounded = np.round(shares * _LARGEST).astype(np.uint16)
  return {"shape": weights.shape, "weights": packed([rounded]), "low": low, "high": high}
