"""Custom components that a config names by their location.

`package.module:Name` is imported like any module. `folder/file.py:Name` is loaded from that file.
"""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import pathlib
import sys
import traceback
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from absl import flags

from experiments.cli.config_fields import ConfigError

flags.DEFINE_bool(
  "trust_workdir",
  False,
  "import custom components named by a run's config.json from any file, not only from files below the "
  "current folder",
)

# Files of custom components, as named in tracebacks.
_FILES: set[str | None] = set()


def is_plugin(name: str) -> bool:
  """Returns whether a config value names a custom component.

  >>> is_plugin("folder/gaussian.py:Gaussian"), is_plugin("additive")
  (True, False)
  """
  return ":" in name


def resolve(field: str, name: str) -> Any:
  """Imports and returns the object that a config field names.

  Args:
    field: name of the field, for error messages.
    name: `package.module:Name` or `folder/file.py:Name`.

  Raises:
    ConfigError: if it cannot be imported, or does not exist.
  """
  where, _, attribute = name.rpartition(":")
  if where.endswith(".py") and not pathlib.Path(where).exists():
    raise ConfigError(f"config.{field}={name}: cannot read the file: No such file or directory")
  try:
    module = _read(pathlib.Path(where)) if where.endswith(".py") else importlib.import_module(where)
  except (Exception, SystemExit) as error:  # custom code may raise anything
    raise ConfigError(f"config.{field}={name}: {format_error(error)}") from error
  _FILES.add(module.__file__)
  try:
    return getattr(module, attribute)
  except AttributeError as error:
    raise ConfigError(f"config.{field}={name}: {where} has no {attribute!r}") from error


def build(field: str, name: str, *arguments: Any) -> Any:
  """Calls the function or class that a config field names, and returns the result.

  Raises:
    ConfigError: as in `resolve`, or if the call fails.
  """
  function = resolve(field, name)
  try:
    return function(*arguments)
  except (Exception, SystemExit) as error:  # custom code may raise anything
    raise ConfigError(f"config.{field}={name}: {format_error(error)}") from error


def format_error(error: BaseException) -> str:
  """Returns an error as one line, with its last location in the file of a custom component."""
  frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _FILES]
  where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
  return f"{type(error).__name__}: {error}".removesuffix(": ") + where


def defining_files(components: Mapping[str, str]) -> dict[str, str]:
  """Returns the files that define custom components, by config field."""
  paths_by_field = {field: imported_files(name) for field, name in components.items()}
  return {field: str(paths[-1]) for field, paths in paths_by_field.items() if paths}


def imported_files(name: str) -> list[pathlib.Path]:
  """Returns the files that importing a component runs; the last one defines it. Empty if one is missing."""
  where = name.rpartition(":")[0]
  if where.endswith(".py"):
    return [pathlib.Path(where)]
  paths = []
  search_path: list[str] | None = None
  try:
    # One package at a time, because `importlib.util.find_spec` would import the parent packages.
    for module in where.split("."):
      spec = importlib.machinery.PathFinder.find_spec(module, search_path)
      if spec is None:
        return []
      if spec.has_location and spec.origin:  # a namespace package has no file
        paths.append(pathlib.Path(spec.origin))
      search_path = list(spec.submodule_search_locations or [])
  except (ImportError, ValueError):
    return []
  return paths


def is_trusted(path: pathlib.Path | None, folder: pathlib.Path) -> bool:
  """Returns whether a file named by the run in `folder` may be imported. Outside scripts, any file may."""
  if not flags.FLAGS.is_parsed() or flags.FLAGS["trust_workdir"].value:
    return True
  if path is None:
    return False
  try:
    file = path.resolve()
  except (OSError, RuntimeError, ValueError):  # a symlink loop, a null byte
    return False
  return file.is_relative_to(pathlib.Path.cwd()) and not file.is_relative_to(folder.resolve())


def _read(path: pathlib.Path) -> ModuleType:
  """Imports a file as a module, once per process."""
  digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
  name = f"{path.stem}_{digest[:8]}"
  if name not in sys.modules:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
      raise ImportError(f"cannot read {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # `dataclasses` looks up the module of a class here
    _FILES.add(str(path))
    try:
      spec.loader.exec_module(module)
    except BaseException:
      del sys.modules[name]
      raise
  return sys.modules[name]
