"""The fields of a config, whatever they are for: their names, their types, and rules for their values."""

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from experiments.commands.mistakes import Mistake

# Of a width, a number of rows or a length: a product of two of them is a number that XLA can count to.
LARGEST = 2**20

# field, value, whether it is allowed, what is
Rule: TypeAlias = tuple[str, Any, bool, str]


class ConfigError(Mistake):
  """A value that a config cannot have, told in one line."""


def check(rules: Iterable[Rule]) -> None:
  """Raises ConfigError at the first rule that is broken; it says what is allowed."""
  for name, value, is_allowed, allowed in rules:
    if not is_allowed:
      raise ConfigError(f"config.{name} must be {allowed}, got {value!r}")


def types(config: Any, default: Any) -> Iterator[Rule]:
  """Returns the rules that all fields have the types of those of another config."""
  defaults = flat(default)
  for name, value in flat(config).items():
    expected = type(defaults[name])
    is_right = type(value) is expected or (expected is float and type(value) is int)
    yield name, value, is_right, f"of type {expected.__name__}"
    if expected is str:
      yield name, value, is_utf8(value), "text in UTF-8"


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
  """Returns a dataclass from what `dataclasses.asdict` made of it; `check` is for the values.

  A field that is missing, for it was added later, has its default.

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


def missing(kind: type, values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
  """Returns the fields that `from_dict` gives their defaults, as `flat` does."""
  default = kind()
  found: dict[str, Any] = {}
  for field in dataclasses.fields(kind):
    name, held = field.name, getattr(default, field.name)
    if name not in values:
      group = flat(held, f"{prefix}{name}.") if dataclasses.is_dataclass(held) else {prefix + name: held}
      found |= group
    elif dataclasses.is_dataclass(held):
      found |= missing(type(held), values[name], f"{prefix}{name}.")
  return found


def is_utf8(text: str) -> bool:
  """Returns whether a text from a command line was UTF-8, as what is written must be."""
  return not any("\ud800" <= letter <= "\udfff" for letter in text)


def closest(name: str, allowed: list[str]) -> str:
  """Returns a hint such as "; did you mean 'steps'?", or nothing if no name is near.

  >>> closest("step", ["steps", "seed"])
  "; did you mean 'steps'?"
  """
  near = difflib.get_close_matches(name, allowed, n=1)
  return f"; did you mean {near[0]!r}?" if near else ""


def one_of(name: str, value: str, allowed: Iterable[str], *, or_own: bool = False) -> Rule:
  """Returns the rule that a field is one of some, or names a part of one's own (see own.py)."""
  own = ", or package.module:Name or file.py:Name of your own" if or_own else ""
  return name, value, value in allowed or (or_own and ":" in value), f"one of {', '.join(allowed)}{own}"


def share(name: str, value: float) -> Rule:
  """Returns the rule that a field is a share, in [0, 1)."""
  return name, value, 0 <= value < 1, "in [0, 1)"


def at_least(name: str, value: int, least: int, most: int = 2**31 - 1) -> Rule:
  """Returns the rule that a field is in a range."""
  allowed = f"at least {least}" if value < least else f"at most {most:,}"
  return name, value, least <= value <= most, allowed
