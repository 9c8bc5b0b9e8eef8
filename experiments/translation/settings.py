"""The fields of a config, and which values they can have: others are refused before anything is written."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from attention.models.decoder import ATTENTIONS
from configs import base
from experiments.commands.mistakes import Mistake
from experiments.tasks import TASKS, scan_grammar
from experiments.text.languages import UNITS
from experiments.text.tokenizers import KINDS
from experiments.translation.metrics import HIGHER_IS_BETTER
from experiments.translation.model import ENCODERS
from experiments.translation.step import SCHEDULES

CHECKPOINTS = ("best", "last")
DTYPES = ("float32", "bfloat16")

# Of a width, a number of rows or a length: a product of two of them is a number that XLA can count to.
LARGEST = 2**20
# Of the length in beam search: its powers are numbers.
LARGEST_PENALTY = 10

# field, value, whether it is allowed, what is
Rule: TypeAlias = tuple[str, Any, bool, str]


# The fields of config.data that each task reads; the others must be as they are.
_FIELDS = {
  "toy_translation": ("num_buckets",),
  "scan": ("split", "num_buckets"),
  "parallel_text": tuple(field.name for field in dataclasses.fields(base.Data) if field.name != "split"),
}


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
  names = {field.name for field in dataclasses.fields(kind)}
  if not isinstance(values, dict):
    raise ValueError(f"expected the fields {', '.join(sorted(names))}, got {values!r}")
  for said, found in (("no", names - values.keys()), ("also", values.keys() - names)):
    if found:
      raise ValueError(
        f"expected the fields {', '.join(sorted(names))}, got {said} {', '.join(sorted(found))}"
      )
  fields = {}
  for name, value in values.items():
    group = getattr(default, name)
    fields[name] = from_dict(type(group), value) if dataclasses.is_dataclass(group) else value
  return kind(**fields)


def is_utf8(text: str) -> bool:
  """Returns whether a text from a command line was UTF-8, as what is written must be."""
  return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _rules(config: base.Config) -> Iterator[Rule]:
  defaults = flat(base.Config())
  for name, value in flat(config).items():
    expected = type(defaults[name])
    is_right = type(value) is expected or (expected is float and type(value) is int)
    yield name, value, is_right, f"of type {expected.__name__}"
    if expected is str:
      yield name, value, is_utf8(value), "text in UTF-8"
  yield "seed", config.seed, 0 <= config.seed < 2**32, "in [0, 2^32)"
  yield from _data_rules(config.data)
  yield from _model_rules(config.model)
  yield from _train_rules(config.train)
  yield from _evaluation_rules(config.evaluation, is_endless=config.data.task == "toy_translation")


def _data_rules(data: base.Data) -> Iterator[Rule]:
  yield _one_of("data.task", data.task, TASKS)
  yield _one_of("data.split", data.split, scan_grammar.SPLITS)
  yield _one_of("data.unit", data.unit, UNITS)
  yield _one_of("data.subwords", data.subwords, KINDS)
  for name in ("vocabulary_size", "min_count", "max_length", "num_buckets"):
    yield _at_least(f"data.{name}", getattr(data, name), 1)
  defaults = base.Data()
  for field in dataclasses.fields(data):
    if field.name not in ("task", *_FIELDS.get(data.task, ())):
      value, default = getattr(data, field.name), getattr(defaults, field.name)
      yield f"data.{field.name}", value, value == default, f"{default!r} for config.data.task={data.task}"
  if data.task == "parallel_text":
    for name in ("train", "validation"):
      path = getattr(data, name)
      yield f"data.{name}", path, bool(path), "the path of a file: source TAB target, one pair a line"


def _model_rules(model: base.Model) -> Iterator[Rule]:
  yield _one_of("model.encoder", model.encoder, ENCODERS)
  yield _one_of("model.attention", model.attention, ATTENTIONS)
  yield _one_of("model.dtype", model.dtype, DTYPES)
  sizes = "embedding_width", "width", "num_layers", "num_decoder_layers", "num_heads", "feed_forward_width"
  for name in sizes:
    yield _at_least(f"model.{name}", getattr(model, name), 1, LARGEST)
  is_transformer = model.encoder == "transformer"
  has_heads = is_transformer or model.attention == "multi_head"
  if is_transformer:
    yield "model.width", model.width, model.width % 2 == 0, "even"
  if has_heads:
    fits = model.width % model.num_heads == 0
    yield "model.width", model.width, fits, f"a multiple of config.model.num_heads={model.num_heads}"
  for name, is_read in (("num_heads", has_heads), ("feed_forward_width", is_transformer)):
    value, default = getattr(model, name), getattr(base.Model(), name)
    is_allowed = is_read or value == default
    yield f"model.{name}", value, is_allowed, f"{default}, for no part of this model reads it"
  for name in ("dropout_rate", "recurrent_dropout_rate", "word_dropout_rate"):
    yield _share(f"model.{name}", getattr(model, name))


def _train_rules(train: base.Train) -> Iterator[Rule]:
  for name in ("steps", "log_every", "validate_every"):
    yield _at_least(f"train.{name}", getattr(train, name), 1)
  for name in ("batch_size", "accumulation"):
    yield _at_least(f"train.{name}", getattr(train, name), 1, LARGEST)
  parts = train.accumulation
  yield "train.accumulation", parts, parts <= train.batch_size, "at most config.train.batch_size"
  yield _one_of("train.schedule", train.schedule, SCHEDULES)
  yield _one_of("train.metric", train.metric, HIGHER_IS_BETTER)
  for name in ("warmup", "label_smoothing", "averaging"):
    yield _share(f"train.{name}", getattr(train, name))
  for name in ("learning_rate", "clip_norm"):
    value = getattr(train, name)
    yield f"train.{name}", value, 0 < value < 1e38, "positive, and below 1e38"
  decay = train.weight_decay
  yield "train.weight_decay", decay, 0 <= decay < float("inf"), "at least 0"
  yield _at_least("train.patience", train.patience, 0)


def _evaluation_rules(evaluation: base.Evaluation, is_endless: bool) -> Iterator[Rule]:
  yield _one_of("evaluation.checkpoint", evaluation.checkpoint, CHECKPOINTS)
  yield _at_least("evaluation.sentences", evaluation.sentences, int(is_endless))
  yield _at_least("evaluation.validation_sentences", evaluation.validation_sentences, int(is_endless))
  for name in ("batch_size", "max_target_length", "beam_size"):
    yield _at_least(f"evaluation.{name}", getattr(evaluation, name), 1, LARGEST)
  penalty = evaluation.length_penalty
  yield "evaluation.length_penalty", penalty, 0 <= penalty <= LARGEST_PENALTY, f"in [0, {LARGEST_PENALTY}]"


def _one_of(name: str, value: str, allowed: Iterable[str]) -> Rule:
  return name, value, value in allowed, f"one of {', '.join(allowed)}"


def _share(name: str, value: float) -> Rule:
  return name, value, 0 <= value < 1, "in [0, 1)"


def _at_least(name: str, value: int, least: int, most: int = 2**31 - 1) -> Rule:
  allowed = f"at least {least}" if value < least else f"at most {most:,}"
  return name, value, least <= value <= most, allowed
