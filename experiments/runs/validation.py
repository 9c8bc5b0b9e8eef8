"""Validation of config values."""

import dataclasses
from collections.abc import Iterator

from configs import base
from experiments.cli import config_fields
from experiments.cli.config_fields import ConfigError
from experiments.data import tasks
from experiments.data.scan import scan_grammar
from experiments.evaluation.evaluate import METRICS


def validate(config: base.Config, *, imports: bool = True) -> None:
  """Checks all fields of a config.

  Args:
    config: config to check.
    imports: import a custom task, to check the fields that it reads.

  Raises:
    ConfigError: if a value is invalid. The message has the field, the allowed values and the value.
  """
  values = config_fields.flat(config)
  for name, is_allowed, allowed in _rules(config, imports):
    if not is_allowed:
      raise ConfigError(f"config.{name} must be {allowed}, got {values[name]!r}")


def _rules(config: base.Config, imports: bool) -> Iterator[tuple[str, bool, str]]:
  """Yields (field, whether its value is allowed, description of allowed values)."""
  values, defaults = config_fields.flat(config), config_fields.flat(base.Config())
  for name, default in defaults.items():
    value_type, field_type = type(values[name]), type(default)
    is_allowed = value_type is field_type or (value_type, field_type) == (int, float)
    yield name, is_allowed, f"of type {field_type.__name__}"
  for name, rule in config_fields.rules().items():
    if rule:
      yield name, rule["is_allowed"](values[name]), rule["allowed"]
  yield from _data_rules(config, imports)
  yield from _model_rules(config.model)
  yield from _train_rules(config)


def _data_rules(config: base.Config, imports: bool) -> Iterator[tuple[str, bool, str]]:
  data, defaults = config.data, base.Data()
  is_used = data.split == "length" or data.scan_max_train_actions == scan_grammar.CUTOFF
  yield "data.scan_max_train_actions", is_used, f"{scan_grammar.CUTOFF} unless config.data.split is length"
  if data.task == "parallel_text":
    allowed = "the path of a file with one source TAB target per line"
    yield "data.train_file", bool(data.train_file), allowed
    yield "data.validation_file", bool(data.validation_file), allowed
  if base.is_custom(data.task) and not imports:
    return
  task = tasks.task_class(data)
  all_fields = [field.name for field in dataclasses.fields(defaults)]
  task_fields = ("task", *(all_fields if task.config_fields is None else task.config_fields))
  for name in all_fields:
    default = getattr(defaults, name)
    is_allowed = name in task_fields or getattr(data, name) == default
    hint = " (text files are for configs/parallel_text.py)" if name.endswith("_file") else ""
    yield f"data.{name}", is_allowed, f"{default!r} for config.data.task={data.task}{hint}"
  for name in ("num_eval_examples", "num_validation_examples"):
    is_finite = not task.is_infinite or getattr(config.evaluation, name) > 0
    yield f"evaluation.{name}", is_finite, "at least 1, because the task has unlimited sentences"
  has_links = not config.train.alignment_loss_weight or task.has_alignments
  yield "train.alignment_loss_weight", has_links, "0 for a task without `has_alignments = True`"


def _model_rules(model: base.Model) -> Iterator[tuple[str, bool, str]]:
  is_transformer = "transformer" in (model.encoder, model.decoder)
  has_heads = is_transformer or model.attention == "multi_head"
  multiple_of_heads = f"a multiple of config.model.num_heads={model.num_heads}"
  if is_transformer or (has_heads and not model.qk_features):
    yield "model.features", model.features % model.num_heads == 0, multiple_of_heads
  if is_transformer:
    yield "model.features", model.features % 2 == 0, "even"
  if is_transformer and model.position_encoding == "rotary":
    is_even = model.features // model.num_heads % 2 == 0
    yield "model.features", is_even, "an even multiple of config.model.num_heads for rotary positions"
  if model.attention == "multi_head":
    yield "model.qk_features", model.qk_features % model.num_heads == 0, multiple_of_heads
  is_recurrent = model.decoder == "recurrent"
  has_normalizer = is_recurrent and model.attention not in ("monotonic", "local", "none")
  if base.is_custom(model.normalizer):
    is_used = has_normalizer and not base.is_custom(model.attention)
    yield "model.normalizer", is_used, "softmax, because a custom one has no effect on this model"
  has_recurrence = is_recurrent or model.encoder == "recurrent"
  is_decoder_custom = base.is_custom(model.decoder)
  # A custom component may use any field, but only a recurrent or custom decoder has the first four.
  is_custom = any(map(base.is_custom, (model.encoder, model.decoder, model.attention)))
  for name, is_used in {
    "attention": is_recurrent or is_decoder_custom,
    "attend_order": is_recurrent or is_decoder_custom,
    "input_feeding": is_recurrent or is_decoder_custom,
    "normalizer": has_normalizer or is_decoder_custom,
    "num_heads": is_custom or is_transformer or model.attention == "multi_head",
    "mlp_dim": is_custom or is_transformer,
    "position_encoding": is_custom or is_transformer,
    "normalize_qk": is_custom or is_transformer,
    "qk_features": is_custom or (is_recurrent and model.attention not in ("bilinear", "local", "none")),
    "embed_dim": is_custom or has_recurrence,
    "residual": is_custom or has_recurrence,
    "layer_norm": is_custom or has_recurrence,
    "recurrent_dropout_rate": is_custom or has_recurrence,
  }.items():
    default = getattr(base.Model(), name)
    is_default = getattr(model, name) == default
    yield f"model.{name}", is_used or is_default, f"{default!r}, because it has no effect on this model"


def _train_rules(config: base.Config) -> Iterator[tuple[str, bool, str]]:
  train = config.train
  yield (
    "train.grad_accumulation_steps",
    train.grad_accumulation_steps <= train.batch_size,
    "at most config.train.batch_size",
  )
  is_loss = train.train_eos or train.best_metric == "loss"
  yield "train.best_metric", is_loss, "loss with config.train.train_eos=False"
  is_softmax = not train.alignment_loss_weight or config.model.normalizer == "softmax"
  yield "model.normalizer", is_softmax, "softmax with config.train.alignment_loss_weight"
  for name in ("alignment_loss_weight", "coverage_loss_weight"):
    is_allowed = not getattr(train, name) or config.model.attention != "none"
    yield f"train.{name}", is_allowed, "0 without attention"
  names = base.split(config.evaluation.custom_metrics)
  all_names = [*METRICS, *(name.rpartition(":")[2] for name in names)]
  allowed = f"distinct after the colon, and none of {', '.join(METRICS)}"
  yield "evaluation.custom_metrics", len({*all_names}) == len(all_names), allowed
