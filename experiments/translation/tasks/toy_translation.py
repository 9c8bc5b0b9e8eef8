"""The built-in toy language: English to Italian by a small grammar, with true alignments."""

import dataclasses
from collections.abc import Iterable

from configs import base
from experiments.translation import grammar
from experiments.translation.batches import ALL, Batch, Rows, make_batch
from experiments.translation.languages import Language
from experiments.translation.pairs import DataError
from experiments.translation.tasks.task import Example, Languages, check_own
from experiments.translation.tokenizers import Words
from experiments.translation.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class ItalianWords(Words):
  """Words that are joined as the grammar's Italian is."""

  def detokenize(self, tokens: Iterable[str]) -> str:
    return grammar.join(tuple(tokens))


class ToyTranslation:
  """Endless sentences of ../grammar.py. Every seed is scored on the same ones."""

  splits = tuple(split for split in grammar.SPLITS if split != "train")
  watched = "validation"

  def __init__(self, config: base.Config, languages: Languages | None = None):
    self._seed = config.seed
    self._batch_size = config.train.batch_size
    self.source = Language(Words(), Vocabulary(grammar.source_words()), lowercase=True)
    self.target = Language(ItalianWords(), Vocabulary(grammar.target_words()), lowercase=True)
    check_own(languages, (self.source, self.target))

  def __str__(self) -> str:
    return "toy sentences, as many as are wanted"

  def training_batch(self, step: int, rows: Rows = ALL) -> Batch:
    own = rows.of(self._batch_size)
    first = step * self._batch_size
    pairs = [self._pair("train", first + i) for i in own if i < self._batch_size]
    return make_batch(
      [self.source.vocabulary.encode(pair.source) for pair in pairs],
      [self.target.vocabulary.encode(pair.target) for pair in pairs],
      source_length=grammar.TRAIN_MAX_SOURCE_LENGTH + 1,
      target_length=grammar.TRAIN_MAX_TARGET_LENGTH + 1,
      num_rows=len(own),
    )

  def examples(self, split: str, count: int) -> list[Example]:
    if split not in grammar.SPLITS:
      raise DataError(f"split must be one of {', '.join(grammar.SPLITS)}, got {split!r}")
    if not count:
      raise DataError("toy_translation has endless sentences: their number must be at least 1, got 0")
    pairs = (self._pair(split, i) for i in range(count))
    return [Example(*pair, " ".join(pair.source), grammar.join(pair.target)) for pair in pairs]

  def _pair(self, split: str, index: int) -> grammar.Pair:
    seed = self._seed if split == "train" else 0
    return grammar.pair(seed=seed, split=split, index=index)
