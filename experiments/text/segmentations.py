"""Several ways to cut each sentence into tokens, of which every epoch draws one."""

from __future__ import annotations

import dataclasses

import numpy as np

from experiments.text.sentences import Sentences


@dataclasses.dataclass(frozen=True, eq=False)
class Segmentations:
  """The ways to cut each of N sentences, and how probable each way is.

  A model that sees words cut in many ways learns what their parts mean: subword regularization.

  Source: Kudo 2018, arXiv:1804.10959.

  Attributes:
    ways: of all sentences, one sentence after the other, the most probable way of each first.
    offsets: where the ways of each sentence begin in `ways`, and where the last end, int64 [N + 1]; each
      sentence has one at least.
    logits: of each way: less the same number for a sentence, its log-probability, float64 [len(ways)].

  >>> ways = Sentences.join([[7, 8], [4, 5, 8], [9]])
  >>> cuts = Segmentations(ways, np.array([0, 2, 3]), np.log([0.25, 0.75, 1.0]))
  >>> drawn = cuts.draw(np.random.default_rng(0), longest=np.array([2, 1]))  # but one is too long
  >>> drawn[0].tolist(), drawn[1].tolist()
  ([7, 8], [9])
  """

  ways: Sentences
  offsets: np.ndarray
  logits: np.ndarray

  def __len__(self) -> int:
    """Returns the number of sentences."""
    return len(self.offsets) - 1

  @property
  def best(self) -> Sentences:
    """The most probable way of each sentence."""
    return self.ways.take(self.offsets[:-1])

  def take(self, indices: np.ndarray) -> Segmentations:
    """Returns those of some of the sentences, in the order of their indices."""
    offsets = np.concatenate([[0], np.cumsum(np.diff(self.offsets)[indices])])
    places = np.concatenate([np.arange(self.offsets[i], self.offsets[i + 1]) for i in indices])
    return Segmentations(self.ways.take(places), offsets, self.logits[places])

  def draw(self, rng: np.random.Generator, longest: np.ndarray) -> Sentences:
    """Returns a way of each sentence, each with its probability among those that are short enough.

    Args:
      rng: of the draws.
      longest: how many tokens a sentence may have: at least those of its best way, integers [N].
    """
    sentence = np.repeat(np.arange(len(self)), np.diff(self.offsets))
    # The largest of logits with Gumbel noise is a draw from their softmax (Gumbel 1954).
    keys = np.where(
      self.ways.lengths <= longest[sentence], self.logits + rng.gumbel(size=len(sentence)), -np.inf
    )
    in_order = np.lexsort((keys, sentence))
    return self.ways.take(in_order[self.offsets[1:] - 1])
