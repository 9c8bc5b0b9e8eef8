"""Custom components: functions and classes that a config names as `package.module:Name`."""

import copy
import pathlib
import pkgutil
import sys
import traceback
import types
from typing import Any

from configs import base
from experiments.cli import config_fields
from experiments.cli.config_fields import ConfigError


def with_names(config: base.Config) -> base.Config:
  """Returns a copy of a config in which custom components that are objects are replaced by their names.

  Raises:
    ConfigError: if other processes could not import an object by its name.
  """
  config, rules = copy.deepcopy(config), config_fields.rules()
  for field, value in config_fields.flat(config).items():
    if rules[field].get("custom") and not isinstance(value, str):
      values = value if isinstance(value, (list, tuple)) else [value]
      config_fields.set_field(config, field, ",".join(_name(field, item) for item in values))
  return config


def _name(field: str, value: Any) -> str:
  if isinstance(value, str):
    return value
  module = getattr(value, "__module__", None)
  name = f"{module}:{getattr(value, '__qualname__', '')}"
  # A decorated function may have the name of another one. A config file may have been imported as a module.
  is_another = module in sys.modules and base.is_custom(name) and not _is_same(resolve(field, name), value)
  if not base.is_custom(name) or module == "__main__" or is_another:
    raise ConfigError(
      f"config.{field} must be a name, or a function or class of a module that Python can import, got "
      f"{value!r:.200}"
    )
  return name


def _is_same(found: Any, value: Any) -> bool:
  """Returns whether two objects are equal, or were defined by the same code."""
  if found == value or isinstance(value, types.MethodType):
    return found == value
  code = getattr(value, "__code__", None)
  return (
    type(found) is type(value)
    and (isinstance(value, type) or code is not None)
    and (getattr(found, "__code__", None) == code)
  )


def module_name(path: str) -> str:
  """Returns the name by which Python can import a file, or "<file>" if its folder is not on Python's path."""
  file = pathlib.Path(path).resolve().with_suffix("")
  for entry in map(pathlib.Path, sys.path):
    if file.is_relative_to(entry.resolve()):
      return ".".join(file.relative_to(entry.resolve()).parts)
  return "<file>"


def custom_components(config: base.Config) -> list[tuple[str, str]]:
  """Returns the fields of a config with custom components, and their names."""
  rules = config_fields.rules()
  return [
    (field, name)
    for field, value in config_fields.flat(config).items()
    if rules[field].get("custom")
    for name in base.split(value)
    if base.is_custom(name)
  ]


def build(field: str, name: str, *arguments: Any) -> Any:
  """Calls the function or class that a config field names, and returns the result.

  Raises:
    ConfigError: as in `resolve`, or if the call fails.
  """
  function = resolve(field, name)
  try:
    return function(*arguments)
  except (Exception, SystemExit) as error:  # custom code may raise anything
    raise ConfigError(f"config.{field}={name}: {format_error(error, name)}") from error


def resolve(field: str, name: str) -> Any:
  """Imports and returns the object that a config field names.

  Raises:
    ConfigError: if it cannot be imported.
  """
  try:
    return pkgutil.resolve_name(name)
  except ModuleNotFoundError as error:
    searched = "Python searches the current folder, PYTHONPATH and installed packages"
    raise ConfigError(f"config.{field}={name}: {format_error(error, name)}; {searched}") from error
  except (Exception, SystemExit) as error:  # custom code may raise anything
    raise ConfigError(f"config.{field}={name}: {format_error(error, name)}") from error


def format_error(error: BaseException, *names: str) -> str:
  """Returns an error as one line, with its last location in the modules of custom components.

  Args:
    error: the error.
    names: names of the components.
  """
  modules = [sys.modules.get(name.partition(":")[0]) for name in names]
  files = {getattr(module, "__file__", None) for module in modules}
  # A module that is being imported is not in `sys.modules` when its import fails.
  frames = [
    frame
    for frame in traceback.extract_tb(error.__traceback__)
    if frame.filename in files or frame.name == "<module>"
  ]
  where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
  text = " ".join(str(error).split())
  return f"{type(error).__name__}: {text}".removesuffix(": ") + where
