"""The fields of a config, and which values they can have: others are refused before anything is written."""

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeAlias

from attention.decoders import ATTENTIONS
from configs import base
from experiments.translation.mistakes import Mistake
from experiments.translation.models import ENCODERS

TASKS = ("toy_translation", "parallel_text")


# field, value, whether it is allowed, what is
Rule: TypeAlias = tuple[str, Any, bool, str]


class ConfigError(Mistake):
  """A value that a config cannot have, told in one line."""


def check_config(config: base.Config) -> None:
  """Raises ConfigError at the first field whose value is impossible; it says what is allowed."""
  for name, value, is_allowed, allowed in _rules(config):
    if not is_allowed:
      raise ConfigError(f"config.{name} must be {allowed}, got {value!r}")


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
  """Returns a config as {"train.steps": 100, ...}."""
  fields: dict[str, Any] = {}
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      fields |= flat(value, f"{prefix}{field.name}.")
    else:
      fields[prefix + field.name] = value
  return fields


def from_dict(kind: type, values: Any) -> Any:
  """Returns a dataclass from what `dataclasses.asdict` made of it; the values are `check_config`'s to check.

  Raises:
    ValueError: if the names of the fields are others.
  """
  default = kind()
  names = sorted(field.name for field in dataclasses.fields(kind))
  if not isinstance(values, dict) or sorted(values) != names:
    raise ValueError(f"expected the fields {', '.join(names)}, got {values!r}")
  fields = {}
  for name, value in values.items():
    group = getattr(default, name)
    fields[name] = from_dict(type(group), value) if dataclasses.is_dataclass(group) else value
  return kind(**fields)


def _rules(config: base.Config) -> Iterator[Rule]:
  defaults = flat(base.Config())
  for name, value in flat(config).items():
    expected = type(defaults[name])
    is_right = type(value) is expected or (expected is float and type(value) is int)
    yield name, value, is_right, f"of type {expected.__name__}"
  yield "seed", config.seed, 0 <= config.seed < 2**32, "in [0, 2^32)"
  yield from _data_rules(config.data)
  yield from _model_rules(config.model)
  yield from _train_rules(config.train)
  yield from _evaluation_rules(config.evaluation, is_endless=config.data.task == "toy_translation")


def _data_rules(data: base.Data) -> Iterator[Rule]:
  yield "data.task", data.task, data.task in TASKS, f"one of {', '.join(TASKS)}"
  yield _at_least("data.min_count", data.min_count, 1)
  yield _at_least("data.max_length", data.max_length, 1)
  if data.task != "parallel_text":
    for name in ("train", "validation", "test"):
      path = getattr(data, name)
      yield f"data.{name}", path, not path, f"empty for config.data.task={data.task}"
  else:
    for name in ("train", "validation"):
      path = getattr(data, name)
      yield f"data.{name}", path, bool(path), "the path of a file: source TAB target, one pair a line"


def _model_rules(model: base.Model) -> Iterator[Rule]:
  yield "model.encoder", model.encoder, model.encoder in ENCODERS, f"one of {', '.join(ENCODERS)}"
  is_known = model.attention in ATTENTIONS
  yield "model.attention", model.attention, is_known, f"one of {', '.join(ATTENTIONS)}"
  for name in ("embedding_width", "width", "num_layers", "num_heads", "feed_forward_width"):
    yield _at_least(f"model.{name}", getattr(model, name), 1)
  if model.encoder == "transformer":
    yield "model.width", model.width, model.width % 2 == 0, "even"
  if model.encoder == "transformer" or model.attention == "multi_head":
    fits = model.width % model.num_heads == 0
    yield "model.width", model.width, fits, f"a multiple of config.model.num_heads={model.num_heads}"
  rate = model.dropout_rate
  yield "model.dropout_rate", rate, 0 <= rate < 1, "in [0, 1)"


def _train_rules(train: base.Train) -> Iterator[Rule]:
  for name in ("steps", "batch_size", "steps_per_dispatch", "log_every", "validate_every"):
    yield _at_least(f"train.{name}", getattr(train, name), 1)
  for name in ("log_every", "validate_every"):
    value, unit = getattr(train, name), train.steps_per_dispatch
    yield f"train.{name}", value, value % unit == 0, f"a multiple of config.train.steps_per_dispatch={unit}"
  yield "train.warmup", train.warmup, 0 <= train.warmup < 1, "in [0, 1)"
  for name in ("learning_rate", "clip_norm"):
    value = getattr(train, name)
    yield f"train.{name}", value, 0 < value < float("inf"), "positive"


def _evaluation_rules(evaluation: base.Evaluation, is_endless: bool) -> Iterator[Rule]:
  yield _at_least("evaluation.sentences", evaluation.sentences, int(is_endless))
  yield _at_least("evaluation.validation_sentences", evaluation.validation_sentences, 1)
  yield _at_least("evaluation.batch_size", evaluation.batch_size, 1)
  yield _at_least("evaluation.max_target_length", evaluation.max_target_length, 1)


def _at_least(name: str, value: int, least: int) -> Rule:
  return name, value, value >= least, f"at least {least}"
