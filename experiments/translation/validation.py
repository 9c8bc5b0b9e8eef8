"""Which values the fields of a config may have."""

import dataclasses
from collections.abc import Iterator

from attention.models.base import POSITIONS
from attention.models.decoder_attention import ATTENTIONS
from attention.models.recurrent_decoder import LOOKS
from configs import base
from experiments import tasks
from experiments.cli import config_fields, plugins
from experiments.cli.config_fields import ConfigError
from experiments.tasks import scan_grammar
from experiments.text.alignments import ALIGNMENT_TOKENS
from experiments.text.text_processor import UNITS
from experiments.text.tokenizers import KINDS
from experiments.translation.evaluate import CHECKPOINTS, LARGEST_PENALTY, METRICS, metric_names
from experiments.translation.metrics import HIGHER_IS_BETTER
from experiments.translation.model import DECODERS, DTYPES, ENCODERS, NORMALIZERS
from experiments.translation.optimizer import SCHEDULES

# Of a width, a number of rows or a length: a product of two of them is a number that XLA can count to.
LARGEST = 2**20

_CHOICES = {
  "data.split": scan_grammar.SPLITS,
  "data.unit": UNITS,
  "data.subwords": KINDS,
  "data.alignment_tokens": ALIGNMENT_TOKENS,
  "model.looks": LOOKS,
  "model.positions": POSITIONS,
  "model.dtype": DTYPES,
  "train.schedule": SCHEDULES,
  "train.metric": HIGHER_IS_BETTER,
  "evaluation.checkpoint": CHECKPOINTS,
}
_CHOICES_OR_OWN = {  # a part of the user's own has a colon in its name: see plugins.py
  "data.task": tasks.TASKS,
  "model.encoder": ENCODERS,
  "model.decoder": DECODERS,
  "model.attention": ATTENTIONS,
  "model.normalizer": NORMALIZERS,
}
_RANGES = {
  "seed": (0, 2**32 - 1),
  "data.scan_cutoff": (1, 47),
  "data.vocabulary_size": (0, LARGEST),
  "data.source_vocabulary_size": (0, LARGEST),
  "data.target_vocabulary_size": (0, LARGEST),
  "data.min_count": (1, LARGEST),
  "data.max_length": (1, LARGEST),
  "data.num_buckets": (1, LARGEST),
  "model.embedding_width": (1, LARGEST),
  "model.width": (1, LARGEST),
  "model.attention_width": (0, LARGEST),
  "model.num_layers": (1, LARGEST),
  "model.num_decoder_layers": (1, LARGEST),
  "model.num_heads": (1, LARGEST),
  "model.feed_forward_width": (1, LARGEST),
  "train.steps": (1, 2**31 - 1),
  "train.batch_size": (1, LARGEST),
  "train.accumulation": (1, LARGEST),
  "train.weight_decay": (0, 1e38),
  "train.alignment_weight": (0, 1e38),
  "train.coverage_weight": (0, 1e38),
  "train.learning_rate": (1e-38, 1e38),
  "train.clip_norm": (1e-38, 1e38),
  "train.log_every": (1, 2**31 - 1),
  "train.validate_every": (1, 2**31 - 1),
  "train.patience": (0, 2**31 - 1),
  "train.keep": (2, LARGEST),
  "evaluation.sentences": (0, 2**31 - 1),
  "evaluation.validation_sentences": (0, 2**31 - 1),
  "evaluation.batch_size": (1, LARGEST),
  "evaluation.max_target_length": (1, LARGEST),
  "evaluation.beam_size": (1, LARGEST),
  "evaluation.length_penalty": (0, LARGEST_PENALTY),
}
_SHARES = (  # in [0, 1)
  "model.dropout_rate",
  "model.recurrent_dropout_rate",
  "model.word_dropout_rate",
  "train.warmup",
  "train.label_smoothing",
  "train.averaging",
)


def validate(config: base.Config, *, imports: bool = True) -> None:
  """Raises ConfigError at the first field whose value is impossible; it says what is allowed.

  Args:
    config: the experiment.
    imports: whether a task of the user's own is imported, to see which fields it reads.
  """
  values = config_fields.flat(config)
  for name, is_allowed, allowed in _rules(config, imports):
    if not is_allowed:
      raise ConfigError(f"config.{name} must be {allowed}, got {values[name]!r}")


def _rules(config: base.Config, imports: bool) -> Iterator[tuple[str, bool, str]]:
  """Yields fields, whether their values are allowed, and what is."""
  values, defaults = config_fields.flat(config), config_fields.flat(base.Config())
  for name, default in defaults.items():
    kind, wanted = type(values[name]), type(default)
    yield name, kind is wanted or (kind, wanted) == (int, float), f"of type {wanted.__name__}"
  for name, choices in _CHOICES.items():
    yield name, values[name] in choices, f"one of {', '.join(choices)}"
  for name, choices in _CHOICES_OR_OWN.items():
    allowed = f"one of {', '.join(choices)}, or package.module:Name or file.py:Name of your own"
    yield name, values[name] in choices or plugins.is_own(values[name]), allowed
  for name, (least, most) in _RANGES.items():
    yield name, least <= values[name] <= most, f"from {least:,} to {most:,}"
  for name in _SHARES:
    yield name, 0 <= values[name] < 1, "in [0, 1)"
  yield from _data_rules(config, imports)
  yield from _model_rules(config.model)
  yield from _train_rules(config)


def _data_rules(config: base.Config, imports: bool) -> Iterator[tuple[str, bool, str]]:
  data, defaults = config.data, base.Data()
  is_read = data.split == "length" or data.scan_cutoff == scan_grammar.CUTOFF
  yield "data.scan_cutoff", is_read, f"{scan_grammar.CUTOFF} for another split than length"
  if data.task == "parallel_text":
    allowed = "the path of a file: source TAB target, one pair a line"
    yield "data.train", bool(data.train), allowed
    yield "data.validation", bool(data.validation), allowed
  if plugins.is_own(data.task) and not imports:
    return
  kind = tasks.kind_of(data)
  every = [field.name for field in dataclasses.fields(defaults)]
  for name in every:
    default = getattr(defaults, name)
    is_allowed = name in ("task", *getattr(kind, "reads", every)) or getattr(data, name) == default
    yield f"data.{name}", is_allowed, f"{default!r} for config.data.task={data.task}"
  for name in ("sentences", "validation_sentences"):
    has_end = not getattr(kind, "is_endless", False) or getattr(config.evaluation, name) > 0
    yield f"evaluation.{name}", has_end, "at least 1, for the sentences of this task have no end"
  is_known = not config.train.alignment_weight or getattr(kind, "knows_alignments", False)
  yield "train.alignment_weight", is_known, "0 for a task without `knows_alignments = True`"


def _model_rules(model: base.Model) -> Iterator[tuple[str, bool, str]]:
  is_transformer = "transformer" in (model.encoder, model.decoder)
  is_recurrent = model.decoder == "recurrent"
  has_heads = is_transformer or model.attention == "multi_head"
  has_recurrence = is_recurrent or model.encoder == "recurrent"
  takes_normalizer = is_recurrent and model.attention not in ("monotonic", "local", "none")
  of_heads = f"a multiple of config.model.num_heads={model.num_heads}"
  if is_transformer or (has_heads and not model.attention_width):
    yield "model.width", model.width % model.num_heads == 0, of_heads
  if is_transformer:
    yield "model.width", model.width % 2 == 0, "even"
  if is_transformer and model.positions == "rotary":
    is_even = model.width // model.num_heads % 2 == 0
    yield "model.width", is_even, "such that a head's is even, for rotary positions"
  if model.attention == "multi_head":
    yield "model.attention_width", model.attention_width % model.num_heads == 0, of_heads
  if plugins.is_own(model.normalizer):
    is_read = takes_normalizer and not plugins.is_own(model.attention)
    yield "model.normalizer", is_read, "softmax, for no part of this model reads it"
  if any(map(plugins.is_own, (model.encoder, model.decoder, model.attention))):
    return  # these may read any field
  for name, is_read in (
    ("num_heads", has_heads),
    ("feed_forward_width", is_transformer),
    ("positions", is_transformer),
    ("normalize_qk", is_transformer),
    ("attention", is_recurrent),
    ("attention_width", is_recurrent and model.attention not in ("bilinear", "local", "none")),
    ("normalizer", takes_normalizer),
    ("looks", is_recurrent),
    ("input_feeding", is_recurrent),
    ("embedding_width", has_recurrence),
    ("residual", has_recurrence),
    ("use_norm", has_recurrence),
    ("recurrent_dropout_rate", has_recurrence),
  ):
    default = getattr(base.Model(), name)
    is_allowed = is_read or getattr(model, name) == default
    yield f"model.{name}", is_allowed, f"{default}, for no part of this model reads it"


def _train_rules(config: base.Config) -> Iterator[tuple[str, bool, str]]:
  train = config.train
  yield "train.accumulation", train.accumulation <= train.batch_size, "at most config.train.batch_size"
  is_loss = train.learns_end or train.metric == "loss"
  yield "train.metric", is_loss, "loss, for translations that never end match nothing"
  is_softmax = not train.alignment_weight or config.model.normalizer == "softmax"
  allowed = "softmax with config.train.alignment_weight, which learns nothing from weights of 0 or no shares"
  yield "model.normalizer", is_softmax, allowed
  for name in ("alignment_weight", "coverage_weight"):
    is_allowed = not getattr(train, name) or config.model.attention != "none"
    yield f"train.{name}", is_allowed, "0, for there is no attention"
  names = metric_names(config.evaluation)
  yield (
    "evaluation.metrics",
    all(map(plugins.is_own, names)),
    "package.module:Name or file.py:Name, and so on",
  )
  all_names = [*METRICS, *(name.rpartition(":")[2] for name in names)]
  allowed = f"of different names after the colon, none of them {', '.join(METRICS)}"
  yield "evaluation.metrics", len({*all_names}) == len(all_names), allowed
