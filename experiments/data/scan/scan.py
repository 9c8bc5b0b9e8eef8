"""SCAN as a task: translation of commands to actions."""

import numpy as np

from configs import base
from experiments.cli.errors import DataError
from experiments.data.batches import Batch
from experiments.data.buckets import Buckets
from experiments.data.ragged import RaggedTokens
from experiments.data.scan import scan_grammar
from experiments.data.task import Example, Languages, Task
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import Vocabulary

_NUM_TRAIN_SUBSET = 1000  # commands in the split "train_subset"


class Scan(Task):
  """The commands of a split of scan_grammar.py. `config.seed` selects the split "simple".

  SCAN has no validation set. The split "train_subset", at most 1,000 training commands, is evaluated during
  training.
  """

  splits: tuple[str, ...] = ("train_subset", "test")
  validation_split = "train_subset"
  config_fields: tuple[str, ...] = ("split", "scan_max_train_actions", "num_buckets")

  def __init__(self, config: base.Config, languages: Languages | None = None):
    training, test = scan_grammar.split(config.data.split, config.seed, config.data.scan_max_train_actions)
    # Random commands, because the first commands of the grammar are similar.
    order = np.random.default_rng(0).permutation(len(training))
    self._commands = {
      "train": training,
      "train_subset": [training[i] for i in order[:_NUM_TRAIN_SUBSET]],
      "test": test,
    }
    self._name = config.data.split
    words = Vocabulary.build(command.words for command in scan_grammar.commands())
    actions = Vocabulary.build(command.actions for command in scan_grammar.commands())
    self.source = TextProcessor(WordTokenizer(), words, lowercase=True)
    self.target = TextProcessor(WordTokenizer(), actions, lowercase=False)
    self._batches = Buckets(
      RaggedTokens.join(self.source.vocabulary.encode(command.words) for command in training),
      RaggedTokens.join(self.target.vocabulary.encode(command.actions) for command in training),
      num_buckets=config.data.num_buckets,
      batch_size=config.train.batch_size,
      seed=config.seed,
    )

  def __str__(self) -> str:
    training, test = (len(self._commands[split]) for split in ("train", "test"))
    return f"SCAN, split {self._name}: {training:,} training and {test:,} test commands"

  def training_batch(self, step: int) -> Batch:
    return self._batches.batch(step)

  def examples(self, split: str, count: int) -> list[Example]:
    if split not in self._commands:
      raise DataError(f"split must be one of {', '.join(self._commands)}, got {split!r}")
    commands = self._commands[split][: count or None]
    return [Example(words, actions, None, " ".join(words), " ".join(actions)) for words, actions in commands]
