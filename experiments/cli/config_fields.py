"""Config fields by their full names, such as train.num_train_steps."""

import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from configs import base
from experiments.cli.errors import UserError


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


def is_custom(name: str) -> bool:
  """Returns whether a config value names a custom component.

  >>> is_custom("my_package.layers:gaussian"), is_custom("additive"), is_custom("my_file.py:gaussian")
  (True, False, False)
  """
  return re.fullmatch(r"[\w.]+(?<!\.py):[\w.]+", name) is not None


def split(value: str) -> list[str]:
  """Returns the items of a list that is separated by commas."""
  return [item.strip() for item in value.split(",") if item.strip()]


def rule(name: str) -> Mapping[str, Any]:
  """Returns the rule of a field, the metadata that configs/base.py gives it."""
  *groups, last = name.split(".")
  config: Any = base.Config()
  for group in groups:
    config = getattr(config, group)
  (field,) = [field for field in dataclasses.fields(config) if field.name == last]
  return field.metadata


def is_allowed(name: str, value: Any) -> bool:
  """Returns whether a value fits the rule of its field."""
  field = rule(name)
  if "range" in field:
    low, high = field["range"]
    return low <= value <= high
  if "is_fraction" in field:
    return 0 <= value < 1
  if "choices" in field:
    return value in field["choices"] or (field["custom"] and is_custom(value))
  return not field.get("custom") or all(map(is_custom, split(value)))


def allowed(name: str) -> str:
  """Returns the rule of a field as text.

  >>> allowed("model.num_layers"), allowed("model.dropout_rate"), allowed("model.dtype"), allowed("init_from")
  ('from 1 to 1,000', 'in [0, 1)', 'one of float32, bfloat16', '')
  """
  field = rule(name)
  if "range" in field:
    low, high = field["range"]
    return f"from {low:,} to {high:,}"
  if "is_fraction" in field:
    return "in [0, 1)"
  if "choices" not in field:
    return "a list of package.module:Name, separated by commas" if field else ""
  custom = ", or a custom component (package.module:Name)" if field["custom"] else ""
  return f"one of {', '.join(field['choices'])}{custom}"


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
  return f"{text}; {allowed(name)}" if "range" in rule(name) else text


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
