"""Config fields by their full names, such as train.num_train_steps."""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

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
