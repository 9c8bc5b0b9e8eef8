"""The built-in toy language: English to Italian by a small grammar, with true alignments."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from configs import base
from experiments.cli.errors import DataError
from experiments.tasks import grammar, sentence_sampler
from experiments.tasks.task import Example, Languages
from experiments.text.batches import Batch, make_batch
from experiments.text.buckets import optimal_bucket_lengths
from experiments.text.text_processor import TextProcessor
from experiments.text.tokenizers import WordTokenizer
from experiments.text.vocabularies import Vocabulary
from experiments.text.words import plain

# For how many batches in a row sentences are drawn at once, to be put in order of their lengths.
ROUND = 16

_LONGEST = max(sentence_sampler.TRAIN_MAX_SOURCE_LENGTH, sentence_sampler.TRAIN_MAX_TARGET_LENGTH) + 1


@dataclasses.dataclass(frozen=True)
class ItalianWords(WordTokenizer):
  """Words that are joined as the grammar's Italian is: without joiners."""

  def tokenize(self, text: str) -> tuple[str, ...]:
    return tuple(map(plain, super().tokenize(text)))

  def detokenize(self, tokens: Iterable[str]) -> str:
    return grammar.join(tuple(tokens))


class ToyTranslation:
  """Endless sentences of sentence_sampler.py. Every seed is scored on the same ones.

  Those of a training batch are alike in length: the sentences of a few batches are drawn, put in order of
  length, and cut into batches, which come in any order. Each is padded to one of a few lengths.
  """

  splits = tuple(split for split in sentence_sampler.SPLITS if split != "train")
  validation_split = "validation"
  config_fields: tuple[str, ...] = ("num_buckets",)
  is_infinite = True
  has_alignments = True
  max_length = sentence_sampler.TRAIN_MAX_SOURCE_LENGTH

  def __init__(self, config: base.Config, languages: Languages | None = None):
    self._seed = config.seed
    self._batch_size = config.train.batch_size
    self.source = TextProcessor(WordTokenizer(), Vocabulary(grammar.source_words()), lowercase=True)
    self.target = TextProcessor(ItalianWords(), Vocabulary(grammar.target_words()), lowercase=True)
    self._num_buckets = config.data.num_buckets
    self._wants_links = config.train.alignment_loss_weight > 0

  def __str__(self) -> str:
    return "toy sentences, as many as are wanted"

  def training_batch(self, step: int) -> Batch:
    number, place = divmod(step, ROUND)
    pairs = self._round(number)[place]
    length = next(length for length in self._lengths if length >= max(map(_size, pairs)))
    return make_batch(
      [self.source.vocabulary.encode(pair.source) for pair in pairs],
      [self.target.vocabulary.encode(pair.target) for pair in pairs],
      source_length=length,
      target_length=length,
      alignments=[pair.alignment for pair in pairs] if self._wants_links else None,
    )

  @functools.cached_property
  def _lengths(self) -> list[int]:
    """To which lengths sentences are padded."""
    sizes = [_size(pair) for pairs in self._round(0) for pair in pairs]
    return optimal_bucket_lengths(np.array([*sizes, _LONGEST]), self._num_buckets)

  @functools.lru_cache(maxsize=2)  # noqa: B019 (one lives as long as the process)
  def _round(self, number: int) -> list[Sequence[grammar.Pair]]:
    """Returns the sentences of some batches in a row."""
    count = self._batch_size
    first = number * ROUND * count
    drawn = (
      sentence_sampler.pair(seed=self._seed, split="train", index=first + i) for i in range(ROUND * count)
    )
    pairs = sorted(drawn, key=_size)
    order = np.random.default_rng((self._seed, number)).permutation(ROUND)
    return [pairs[i * count : (i + 1) * count] for i in order]

  def examples(self, split: str, count: int) -> list[Example]:
    if split not in sentence_sampler.SPLITS:
      raise DataError(f"split must be one of {', '.join(sentence_sampler.SPLITS)}, got {split!r}")
    if not count:
      raise DataError("toy_translation has endless sentences: their number must be at least 1, got 0")
    seed = self._seed if split == "train" else 0
    pairs = (sentence_sampler.pair(seed=seed, split=split, index=i) for i in range(count))
    return [Example(*pair, " ".join(pair.source), grammar.join(pair.target)) for pair in pairs]


def _size(pair: grammar.Pair) -> int:
  """Returns the length that a pair needs, with the end symbol."""
  return max(len(pair.source), len(pair.target)) + 1
