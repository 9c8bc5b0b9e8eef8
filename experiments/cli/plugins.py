"""Parts of one's own, outside this repository, that a config names by where they are.

`package.module:Name` is imported as Python does; `folder/file.py:Name` is read from that file.
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
  "whether custom parts that a run's config.json names are imported from any file, not only from those below "
  "the current folder",
)

# From which parts of a person's own were read, as tracebacks name them.
_FILES: set[str | None] = set()


def is_plugin(name: str) -> bool:
  """Returns whether a field's value names a part of one's own.

  >>> is_plugin("folder/gaussian.py:Gaussian"), is_plugin("additive")
  (True, False)
  """
  return ":" in name


def find(field: str, name: str) -> Any:
  """Returns what a field of the config names.

  Raises:
    ConfigError: if it cannot be imported, or is not there.
  """
  where, _, attribute = name.rpartition(":")
  try:
    module = _read(pathlib.Path(where)) if where.endswith(".py") else importlib.import_module(where)
  except (Exception, SystemExit) as error:  # whatever a person's file may raise
    raise ConfigError(f"config.{field}={name}: {told(error)}") from error
  _FILES.add(module.__file__)
  try:
    return getattr(module, attribute)
  except AttributeError as error:
    raise ConfigError(f"config.{field}={name}: {where} has no {attribute!r}") from error


def make(field: str, name: str, *arguments: Any) -> Any:
  """Returns what a field's function or class makes of arguments.

  Raises:
    ConfigError: as `find`; also if it cannot.
  """
  maker = find(field, name)
  try:
    return maker(*arguments)
  except Exception as error:  # whatever a person's file may raise
    raise ConfigError(f"config.{field}={name}: {told(error)}") from error


def told(error: BaseException) -> str:
  """Returns an error in one line, with the last place in a person's own files that it has come through."""
  places = [place for place in traceback.extract_tb(error.__traceback__) if place.filename in _FILES]
  where = f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""
  return f"{type(error).__name__}: {error}{where}"


def files(parts: Mapping[str, str]) -> dict[str, str]:
  """Returns the files that define the parts that fields of a config name, to be recorded with a run."""
  found = {field: origins(name) for field, name in parts.items()}
  return {field: str(paths[-1]) for field, paths in found.items() if paths}


def origins(name: str) -> list[pathlib.Path]:
  """Returns the files that importing a name runs, the one with the name last; [] if one is not found."""
  where = name.rpartition(":")[0]
  if where.endswith(".py"):
    return [pathlib.Path(where)]
  found = []
  place: list[str] | None = None
  try:
    # Package by package: `importlib.util.find_spec` would import all but the last.
    for module in where.split("."):
      spec = importlib.machinery.PathFinder.find_spec(module, place)
      if spec is None:
        return []
      if spec.has_location and spec.origin:  # a folder without an __init__.py runs nothing
        found.append(pathlib.Path(spec.origin))
      place = list(spec.submodule_search_locations or [])
  except (ImportError, ValueError):
    return []
  return found


def is_trusted(path: pathlib.Path | None, folder: pathlib.Path) -> bool:
  """Returns whether a file that the run in a folder names may be imported. From Python, any may."""
  if not flags.FLAGS.is_parsed() or flags.FLAGS["trust_workdir"].value:
    return True
  if path is None:
    return False
  try:
    file = path.resolve()
  except (OSError, RuntimeError, ValueError):  # a loop of links, a null byte
    return False
  return file.is_relative_to(pathlib.Path.cwd()) and not file.is_relative_to(folder.resolve())


def _read(path: pathlib.Path) -> ModuleType:
  """Returns a file as a module, always the same one."""
  digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
  name = f"{path.stem}_{digest[:8]}"
  if name not in sys.modules:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
      raise ImportError(f"cannot read {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    _FILES.add(str(path))
    try:
      spec.loader.exec_module(module)
    except BaseException:
      del sys.modules[name]
      raise
  return sys.modules[name]
