"""Config fields by their full names, such as train.num_train_steps."""

import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from configs import base
from experiments.cli.errors import UserError


class ConfigError(UserError):
  """An invalid config value."""


def flat(config: Any) -> dict[str, Any]:
  """Returns the fields of a config by full name, such as {"train.num_train_steps": 100, ...}."""
  return {name: value for name, _, value in _fields(config)}


def rules() -> dict[str, Mapping[str, Any]]:
  """Returns the rules of fields, which configs/base.py has as their metadata, by full name."""
  return {name: field.metadata for name, field, _ in _fields(base.Config())}


def _fields(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      yield from _fields(value, f"{prefix}{field.name}.")
    else:
      yield prefix + field.name, field, value


def describe(name: str) -> str:
  """Returns the description of a field in configs/base.py, and which numbers are allowed.

  >>> describe("model.num_layers")
  'number of encoder layers; from 1 to 1,000'
  """
  *groups, field = name.split(".")
  config: Any = base.Config()
  for group in groups:
    config = getattr(config, group)
  match = re.search(rf"\n  {field}: (.+(?:\n    .+)*)", inspect.getdoc(config) or "")
  text = " ".join(match[1].split()).removesuffix(".") if match else ""
  rule = rules()[name]
  return f"{text}; {rule['allowed']}" if rule and "custom" not in rule and "choices" not in rule else text


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
