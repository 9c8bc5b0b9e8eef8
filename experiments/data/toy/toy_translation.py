"""Toy translation task: English to Italian by a small grammar, with true alignments."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from configs import base
from experiments.cli.errors import DataError
from experiments.data.batches import Batch, make_batch
from experiments.data.buckets import optimal_bucket_lengths
from experiments.data.task import Example, Languages, Task
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.toy import grammar, sentence_sampler
from experiments.data.vocabularies import Vocabulary
from experiments.data.words import strip_joiners

# Number of consecutive batches whose sentences are sampled and sorted by length together.
BATCHES_PER_GROUP = 16

_MAX_LENGTH = max(sentence_sampler.TRAIN_MAX_SOURCE_LENGTH, sentence_sampler.TRAIN_MAX_TARGET_LENGTH) + 1


@dataclasses.dataclass(frozen=True)
class ItalianWords(WordTokenizer):
  """Word tokenizer for the Italian of the grammar, without joiners."""

  def tokenize(self, text: str) -> tuple[str, ...]:
    return tuple(map(strip_joiners, super().tokenize(text)))

  def detokenize(self, tokens: Iterable[str]) -> str:
    return grammar.join(tuple(tokens))


class ToyTranslation(Task):
  """Random sentences of sentence_sampler.py. All seeds are evaluated on the same sentences.

  Sentences of a training batch have similar lengths: the sentences of 16 batches are sampled, sorted by
  length, split into batches, and the batches are shuffled. Each batch is padded to one of a few lengths.
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
    return "unlimited toy sentences"

  def training_batch(self, step: int) -> Batch:
    group, index = divmod(step, BATCHES_PER_GROUP)
    pairs = self._batch_group(group)[index]
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
    """Padded lengths of batches."""
    sizes = [_size(pair) for pairs in self._batch_group(0) for pair in pairs]
    return optimal_bucket_lengths(np.array([*sizes, _MAX_LENGTH]), self._num_buckets)

  @functools.lru_cache(maxsize=2)  # noqa: B019 (an instance exists until the process ends)
  def _batch_group(self, group: int) -> list[Sequence[grammar.Pair]]:
    """Returns the sentence pairs of each batch of a group."""
    count = self._batch_size
    indices = range(group * BATCHES_PER_GROUP * count, (group + 1) * BATCHES_PER_GROUP * count)
    samples = (sentence_sampler.pair(seed=self._seed, split="train", index=i) for i in indices)
    pairs = sorted(samples, key=_size)
    order = np.random.default_rng((self._seed, group)).permutation(BATCHES_PER_GROUP)
    return [pairs[i * count : (i + 1) * count] for i in order]

  def examples(self, split: str, count: int) -> list[Example]:
    if split not in sentence_sampler.SPLITS:
      raise DataError(f"split must be one of {', '.join(sentence_sampler.SPLITS)}, got {split!r}")
    if not count:
      raise DataError("the number of examples of toy_translation must be at least 1, got 0")
    seed = self._seed if split == "train" else 0
    pairs = (sentence_sampler.pair(seed=seed, split=split, index=i) for i in range(count))
    return [Example(*pair, " ".join(pair.source), grammar.join(pair.target)) for pair in pairs]


def _size(pair: grammar.Pair) -> int:
  """Returns the padded length that a pair needs, including EOS."""
  return max(len(pair.source), len(pair.target)) + 1
