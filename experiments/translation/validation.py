"""Which values the fields of a config may have."""

import dataclasses
from collections.abc import Iterator

from attention.models.base import POSITION_ENCODINGS
from attention.models.decoder_attention import ATTENTION_TYPES
from attention.models.recurrent_decoder import ATTEND_ORDERS
from configs import base
from experiments import tasks
from experiments.cli import config_fields, plugins
from experiments.cli.config_fields import ConfigError
from experiments.tasks import scan_grammar
from experiments.text.alignments import ALIGNMENT_TOKENS
from experiments.text.text_processor import TOKENIZATIONS
from experiments.text.tokenizers import SUBWORD_MODELS
from experiments.translation.evaluate import CHECKPOINTS, LARGEST_PENALTY, METRICS, metric_names
from experiments.translation.metrics import HIGHER_IS_BETTER
from experiments.translation.model import DECODERS, DTYPES, ENCODERS, NORMALIZERS
from experiments.translation.optimizer import SCHEDULES

# Of a width, a number of rows or a length: a product of two of them is a number that XLA can count to.
LARGEST = 2**20

_CHOICES = {
  "data.split": scan_grammar.SPLITS,
  "data.tokenization": TOKENIZATIONS,
  "data.subword_model": SUBWORD_MODELS,
  "data.alignment_tokens": ALIGNMENT_TOKENS,
  "model.attend_order": ATTEND_ORDERS,
  "model.position_encoding": POSITION_ENCODINGS,
  "model.dtype": DTYPES,
  "train.schedule": SCHEDULES,
  "train.best_metric": HIGHER_IS_BETTER,
  "evaluation.checkpoint": CHECKPOINTS,
}
_CHOICES_OR_OWN = {  # a part of the user's own has a colon in its name: see plugins.py
  "data.task": tasks.TASKS,
  "model.encoder": ENCODERS,
  "model.decoder": DECODERS,
  "model.attention": ATTENTION_TYPES,
  "model.normalizer": NORMALIZERS,
}
_RANGES = {
  "seed": (0, 2**32 - 1),
  "data.scan_max_train_actions": (1, 47),
  "data.vocabulary_size": (0, LARGEST),
  "data.source_vocabulary_size": (0, LARGEST),
  "data.target_vocabulary_size": (0, LARGEST),
  "data.min_count": (1, LARGEST),
  "data.max_train_length": (1, LARGEST),
  "data.num_buckets": (1, LARGEST),
  "model.embed_dim": (1, LARGEST),
  "model.features": (1, LARGEST),
  "model.qk_features": (0, LARGEST),
  "model.num_layers": (1, LARGEST),
  "model.num_decoder_layers": (1, LARGEST),
  "model.num_heads": (1, LARGEST),
  "model.mlp_dim": (1, LARGEST),
  "train.num_train_steps": (1, 2**31 - 1),
  "train.batch_size": (1, LARGEST),
  "train.grad_accumulation_steps": (1, LARGEST),
  "train.weight_decay": (0, 1e38),
  "train.alignment_loss_weight": (0, 1e38),
  "train.coverage_loss_weight": (0, 1e38),
  "train.learning_rate": (1e-38, 1e38),
  "train.grad_clip_norm": (1e-38, 1e38),
  "train.log_every_steps": (1, 2**31 - 1),
  "train.eval_every_steps": (1, 2**31 - 1),
  "train.early_stopping_patience": (0, 2**31 - 1),
  "train.max_to_keep": (2, LARGEST),
  "evaluation.num_eval_examples": (0, 2**31 - 1),
  "evaluation.num_validation_examples": (0, 2**31 - 1),
  "evaluation.batch_size": (1, LARGEST),
  "evaluation.max_decode_length": (1, LARGEST),
  "evaluation.beam_size": (1, LARGEST),
  "evaluation.length_penalty": (0, LARGEST_PENALTY),
}
_SHARES = (  # in [0, 1)
  "model.dropout_rate",
  "model.recurrent_dropout_rate",
  "model.word_dropout_rate",
  "train.warmup_fraction",
  "train.label_smoothing",
  "train.ema_decay",
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
    yield name, values[name] in choices or plugins.is_plugin(values[name]), allowed
  for name, (least, most) in _RANGES.items():
    yield name, least <= values[name] <= most, f"from {least:,} to {most:,}"
  for name in _SHARES:
    yield name, 0 <= values[name] < 1, "in [0, 1)"
  yield from _data_rules(config, imports)
  yield from _model_rules(config.model)
  yield from _train_rules(config)


def _data_rules(config: base.Config, imports: bool) -> Iterator[tuple[str, bool, str]]:
  data, defaults = config.data, base.Data()
  is_read = data.split == "length" or data.scan_max_train_actions == scan_grammar.CUTOFF
  yield "data.scan_max_train_actions", is_read, f"{scan_grammar.CUTOFF} for another split than length"
  if data.task == "parallel_text":
    allowed = "the path of a file: source TAB target, one pair a line"
    yield "data.train_file", bool(data.train_file), allowed
    yield "data.validation_file", bool(data.validation_file), allowed
  if plugins.is_plugin(data.task) and not imports:
    return
  kind = tasks.task_class(data)
  every = [field.name for field in dataclasses.fields(defaults)]
  for name in every:
    default = getattr(defaults, name)
    is_allowed = name in ("task", *getattr(kind, "config_fields", every)) or getattr(data, name) == default
    yield f"data.{name}", is_allowed, f"{default!r} for config.data.task={data.task}"
  for name in ("num_eval_examples", "num_validation_examples"):
    has_end = not getattr(kind, "is_infinite", False) or getattr(config.evaluation, name) > 0
    yield f"evaluation.{name}", has_end, "at least 1, for the sentences of this task have no end"
  is_known = not config.train.alignment_loss_weight or getattr(kind, "has_alignments", False)
  yield "train.alignment_loss_weight", is_known, "0 for a task without `has_alignments = True`"


def _model_rules(model: base.Model) -> Iterator[tuple[str, bool, str]]:
  is_transformer = "transformer" in (model.encoder, model.decoder)
  is_recurrent = model.decoder == "recurrent"
  has_heads = is_transformer or model.attention == "multi_head"
  has_recurrence = is_recurrent or model.encoder == "recurrent"
  takes_normalizer = is_recurrent and model.attention not in ("monotonic", "local", "none")
  of_heads = f"a multiple of config.model.num_heads={model.num_heads}"
  if is_transformer or (has_heads and not model.qk_features):
    yield "model.features", model.features % model.num_heads == 0, of_heads
  if is_transformer:
    yield "model.features", model.features % 2 == 0, "even"
  if is_transformer and model.position_encoding == "rotary":
    is_even = model.features // model.num_heads % 2 == 0
    yield "model.features", is_even, "such that a head's is even, for rotary positions"
  if model.attention == "multi_head":
    yield "model.qk_features", model.qk_features % model.num_heads == 0, of_heads
  if plugins.is_plugin(model.normalizer):
    is_read = takes_normalizer and not plugins.is_plugin(model.attention)
    yield "model.normalizer", is_read, "softmax, for no part of this model reads it"
  if any(map(plugins.is_plugin, (model.encoder, model.decoder, model.attention))):
    return  # these may read any field
  for name, is_read in (
    ("num_heads", has_heads),
    ("mlp_dim", is_transformer),
    ("position_encoding", is_transformer),
    ("normalize_qk", is_transformer),
    ("attention", is_recurrent),
    ("qk_features", is_recurrent and model.attention not in ("bilinear", "local", "none")),
    ("normalizer", takes_normalizer),
    ("attend_order", is_recurrent),
    ("input_feeding", is_recurrent),
    ("embed_dim", has_recurrence),
    ("residual", has_recurrence),
    ("layer_norm", has_recurrence),
    ("recurrent_dropout_rate", has_recurrence),
  ):
    default = getattr(base.Model(), name)
    is_allowed = is_read or getattr(model, name) == default
    yield f"model.{name}", is_allowed, f"{default}, for no part of this model reads it"


def _train_rules(config: base.Config) -> Iterator[tuple[str, bool, str]]:
  train = config.train
  yield (
    "train.grad_accumulation_steps",
    train.grad_accumulation_steps <= train.batch_size,
    "at most config.train.batch_size",
  )
  is_loss = train.train_eos or train.best_metric == "loss"
  yield "train.best_metric", is_loss, "loss, for translations that never end match nothing"
  is_softmax = not train.alignment_loss_weight or config.model.normalizer == "softmax"
  allowed = (
    "softmax with config.train.alignment_loss_weight, which learns nothing from weights of 0 or no shares"
  )
  yield "model.normalizer", is_softmax, allowed
  for name in ("alignment_loss_weight", "coverage_loss_weight"):
    is_allowed = not getattr(train, name) or config.model.attention != "none"
    yield f"train.{name}", is_allowed, "0, for there is no attention"
  names = metric_names(config.evaluation)
  yield (
    "evaluation.custom_metrics",
    all(map(plugins.is_plugin, names)),
    "package.module:Name or file.py:Name, and so on",
  )
  all_names = [*METRICS, *(name.rpartition(":")[2] for name in names)]
  allowed = f"of different names after the colon, none of them {', '.join(METRICS)}"
  yield "evaluation.custom_metrics", len({*all_names}) == len(all_names), allowed
