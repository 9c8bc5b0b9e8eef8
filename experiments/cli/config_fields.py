"""Config fields by their full names, such as train.num_train_steps."""

import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterable
from typing import Any

from configs import base
from experiments.cli.errors import UserError

# Maximum width, number of rows or length. The product of two of them does not overflow in XLA.
MAX_SIZE = 2**20
MAX_LAYERS = 1_000  # each layer is compiled

RANGES = {
  "seed": (0, 2**32 - 1),
  "data.scan_max_train_actions": (1, 47),
  "data.vocabulary_size": (0, MAX_SIZE),
  "data.source_vocabulary_size": (0, MAX_SIZE),
  "data.target_vocabulary_size": (0, MAX_SIZE),
  "data.min_count": (1, MAX_SIZE),
  "data.max_train_length": (1, MAX_SIZE),
  "data.num_buckets": (1, MAX_SIZE),
  "model.embed_dim": (1, MAX_SIZE),
  "model.features": (1, MAX_SIZE),
  "model.qk_features": (0, MAX_SIZE),
  "model.num_layers": (1, MAX_LAYERS),
  "model.num_decoder_layers": (1, MAX_LAYERS),
  "model.num_heads": (1, MAX_SIZE),
  "model.mlp_dim": (1, MAX_SIZE),
  "train.num_train_steps": (1, 2**31 - 1),
  "train.batch_size": (1, MAX_SIZE),
  "train.grad_accumulation_steps": (1, MAX_SIZE),
  "train.weight_decay": (0, 1e38),
  "train.alignment_loss_weight": (0, 1e38),
  "train.coverage_loss_weight": (0, 1e38),
  "train.learning_rate": (1e-38, 1e38),
  "train.grad_clip_norm": (1e-38, 1e38),
  "train.log_every_steps": (1, 2**31 - 1),
  "train.eval_every_steps": (1, 2**31 - 1),
  "train.early_stopping_patience": (0, 2**31 - 1),
  "train.max_to_keep": (2, MAX_SIZE),
  "evaluation.num_eval_examples": (0, 2**31 - 1),
  "evaluation.num_validation_examples": (0, 2**31 - 1),
  "evaluation.batch_size": (1, MAX_SIZE),
  "evaluation.max_decode_length": (1, MAX_SIZE),
  "evaluation.beam_size": (1, MAX_SIZE),
  "evaluation.length_penalty": (0, 10),  # so that powers of lengths are finite
}
FRACTIONS = (  # in [0, 1)
  "model.dropout_rate",
  "model.recurrent_dropout_rate",
  "model.word_dropout_rate",
  "train.warmup_fraction",
  "train.label_smoothing",
  "train.ema_decay",
)


class ConfigError(UserError):
  """An invalid config value."""


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
  """Returns the fields of a config by full name, such as {"train.num_train_steps": 100, ...}."""
  fields: dict[str, Any] = {}
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      fields |= flat(value, f"{prefix}{field.name}.")
    else:
      fields[prefix + field.name] = value
  return fields


def describe(name: str) -> str:
  """Returns the description of a field in configs/base.py, and its range.

  >>> describe("model.num_layers")
  'number of encoder layers; from 1 to 1,000'
  """
  *groups, field = name.split(".")
  config: Any = base.Config()
  for group in groups:
    config = getattr(config, group)
  match = re.search(rf"\n  {field}: (.+(?:\n    .+)*)", inspect.getdoc(config) or "")
  text = " ".join(match[1].split()).removesuffix(".") if match else ""
  if name not in RANGES:
    return text
  low, high = RANGES[name]
  return f"{text}; from {low:,} to {high:,}"


def set_field(config: Any, name: str, value: Any) -> None:
  """Sets a field by its full name, such as "train.num_train_steps"."""
  *groups, last = name.split(".")
  for group in groups:
    config = getattr(config, group)
  setattr(config, last, value)


def from_dict(cls: type, values: Any) -> Any:
  """Returns a dataclass from the dict of `dataclasses.asdict`. Missing fields get their defaults.

  Raises:
    ValueError: if a field is unknown.
  """
  default = cls()
  names = {field.name for field in dataclasses.fields(cls)}
  if not isinstance(values, dict):
    raise ValueError(f"expected a dict of fields {', '.join(sorted(names))}, got {values!r}")
  if unknown := values.keys() - names:
    raise ValueError(f"fields must be among {', '.join(sorted(names))}, got {', '.join(sorted(unknown))}")
  fields = {}
  for name, value in values.items():
    group = getattr(default, name)
    fields[name] = from_dict(type(group), value) if dataclasses.is_dataclass(group) else value
  return cls(**fields)


def closest(name: str, allowed: Iterable[str]) -> str:
  """Returns a hint such as "; did you mean 'steps'?", or an empty string if no name is close.

  >>> closest("step", ["steps", "seed"])
  "; did you mean 'steps'?"
  """
  matches = difflib.get_close_matches(name, allowed, n=1)
  return f"; did you mean {matches[0]!r}?" if matches else ""
