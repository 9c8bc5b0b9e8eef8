"""The fields of a config by their full names, such as train.num_train_steps."""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

from experiments.cli.errors import UserError


class ConfigError(UserError):
  """A value that a config cannot have, in one line."""


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
  """Returns a config as {"train.num_train_steps": 100, ...}."""
  fields: dict[str, Any] = {}
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      fields |= flat(value, f"{prefix}{field.name}.")
    else:
      fields[prefix + field.name] = value
  return fields


def set_field(config: Any, name: str, value: Any) -> None:
  """Gives a field, such as "train.num_train_steps", a value."""
  *groups, last = name.split(".")
  for group in groups:
    config = getattr(config, group)
  setattr(config, last, value)


def from_dict(kind: type, values: Any) -> Any:
  """Returns a dataclass from what `dataclasses.asdict` made of it. A field that is missing has its default.

  Raises:
    ValueError: if there are fields of other names.
  """
  default = kind()
  names = {field.name for field in dataclasses.fields(kind)}
  if not isinstance(values, dict):
    raise ValueError(f"expected the fields {', '.join(sorted(names))}, got {values!r}")
  if others := values.keys() - names:
    raise ValueError(f"expected the fields {', '.join(sorted(names))}, got also {', '.join(sorted(others))}")
  fields = {}
  for name, value in values.items():
    group = getattr(default, name)
    fields[name] = from_dict(type(group), value) if dataclasses.is_dataclass(group) else value
  return kind(**fields)


def closest(name: str, allowed: Iterable[str]) -> str:
  """Returns a hint such as "; did you mean 'steps'?", or nothing if no name is near.

  >>> closest("step", ["steps", "seed"])
  "; did you mean 'steps'?"
  """
  near = difflib.get_close_matches(name, allowed, n=1)
  return f"; did you mean {near[0]!r}?" if near else ""
