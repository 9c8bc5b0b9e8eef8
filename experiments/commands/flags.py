"""How a script starts: its flags, and one line for a person's mistake.

A mistake (a wrong field, an impossible value, a file that is not there) ends the program with one line and
exit code 2. Everything else that fails is a defect, and keeps its traceback.
"""

import dataclasses
import difflib
import errno
import os
import pathlib
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from configs import base
from experiments.commands import fields, own  # noqa: F401 (own defines --trust_workdir)
from experiments.commands.compilation import keep_compiled
from experiments.commands.mistakes import Interrupted, Mistake
from experiments.commands.stopping import end_at_interrupts
from experiments.commands.streams import open_streams, outliving

MISTAKE = 2  # exit code of a person's mistake

# Letters of an error line: its beginning and its end, where the hints are.
_BEGINNING, _END = 1_500, 500


class UsageError(Mistake):
  """Flags that do not go together, told in one line."""


_DEFAULT_CONFIG = "configs/toy_translation.py"

# The command line with flag files expanded, in which ml_collections looks for fields of the config.
_ARGUMENTS: list[str] = []

# The flags below belong to the script that asks for them, so that its --help tells of them.
flags.disclaim_key_flags()


def define_config() -> flags.FlagHolder:
  """Defines --config, a file, and --config.FIELD for each of its fields."""
  # No default, for ml_collections would read its file when the script is imported; see `_parse`.
  return config_flags.DEFINE_config_file(
    "config",
    help_string=f"file with the experiment (default: {_DEFAULT_CONFIG}); "
    "any field can be changed: --config.train.steps=100",
    sys_argv=_ARGUMENTS,
  )


def config_path() -> str:
  """Returns the file that --config names."""
  return config_flags.get_config_filename(flags.FLAGS["config"])


def define_workdir(default: str | None, help_string: str = "folder of the run") -> flags.FlagHolder:
  """Defines --workdir; the script's --help then also shows --trust_workdir."""
  flags.declare_key_flag("trust_workdir")
  return flags.DEFINE_string("workdir", default, help_string)


def workdir_path(flag: flags.FlagHolder) -> pathlib.Path:
  """Returns the folder that --workdir names.

  Raises:
    UsageError: if it names none.
  """
  if not flag.value:
    raise UsageError("--workdir must name the folder of a run, got none")
  if not fields.is_utf8(flag.value):
    raise UsageError(f"--workdir must be a name in UTF-8, got {flag.value!r}")
  path = pathlib.Path(flag.value)
  if path.exists() and not path.is_dir():
    raise UsageError(f"{path}: expected a folder, got a file")
  return path


def workdir_paths(flag: flags.FlagHolder) -> list[pathlib.Path]:
  """Returns the folders that --workdir names, with commas between; a folder's own name may have one.

  Raises:
    UsageError: if it names none.
  """
  path = workdir_path(flag)
  paths = [path] if path.is_dir() else [pathlib.Path(name) for name in str(path).split(",") if name]
  if not paths:
    raise UsageError(f"--workdir must name the folder of a run, got {path}")
  return paths


def step_range(flag: flags.FlagHolder) -> tuple[int, int] | None:
  """Returns the first and the last step that a flag names as FIRST:LAST, or None.

  Raises:
    UsageError: if it names none.
  """
  if flag.value is None:
    return None
  match = re.fullmatch(r"([0-9]+):([0-9]+)", flag.value)
  first, last = (int(number) for number in match.groups()) if match else (0, 0)
  if not 1 <= first <= last:
    raise UsageError(f"--{flag.name} must be steps FIRST:LAST, counted from 1, got {flag.value!r}")
  return first, last


def run(main: Callable[[], None], *, outlives_readers: bool = False, is_timed: bool = False) -> None:
  """Parses the flags and runs a script's main function.

  Args:
    main: it has no arguments.
    outlives_readers: whether it goes on where nobody reads its output any more, as in `train | head`, for it
      does more than to print.
    is_timed: whether it measures times, of compilation too: then no compiled programs are kept or found.
  """
  end_at_interrupts()
  open_streams()
  if outlives_readers:
    sys.stdout, sys.stderr = map(outliving, (sys.stdout, sys.stderr))
  logging.set_verbosity(logging.ERROR)  # JAX and orbax report each of their steps
  if is_timed:
    jax.config.update("jax_enable_compilation_cache", False)
  else:
    keep_compiled()
  app.run(lambda _: _run(main), flags_parser=_parse)


def _run(main: Callable[[], None]) -> None:
  try:
    main()
  except Mistake as error:
    _fail(str(error))
  except BrokenPipeError:  # the reader of the output has gone, as in `... | head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except (MemoryError, jax.errors.JaxRuntimeError) as error:
    if isinstance(error, jax.errors.JaxRuntimeError) and not str(error).startswith("RESOURCE_EXHAUSTED"):
      raise
    reason = str(error) or "Python has none left"
    _fail(f"not enough memory; try a smaller batch, beam or model: {reason.splitlines()[0]}")
  except OSError as error:  # a file or folder of the person's
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
      _fail(f"could not write: {error.strerror}")
    if error.filename is None:
      raise
    is_in_the_way = isinstance(error, FileExistsError)
    _fail(f"{error.filename}: {'expected a folder, got a file' if is_in_the_way else error.strerror}")
  except Interrupted as error:
    print(error, file=sys.stderr)
    sys.exit(error.code)


def _parse(arguments: Sequence[str]) -> list[str]:
  """Returns what is left after the flags, the program's name."""
  program, *given = arguments
  try:
    given = flags.FLAGS.read_flags_from_files(given)
  except flags.CantOpenFlagFileError as error:
    _fail(f"--flagfile must be a file of flags: {error.__context__}")
  except (flags.Error, UnicodeDecodeError) as error:
    _fail(f"--flagfile must be a file of flags, one a line: {error}")
  if "config" in flags.FLAGS:
    path = _config_path(given)
    if path is None:
      path = str(pathlib.Path(base.__file__).parents[1] / _DEFAULT_CONFIG)
    given = [f"--config={path}", *_without_config(given)]  # before those of its fields
    _ARGUMENTS[:] = [program, *given]
    _check_file(path)
    _check_fields(given)
  try:
    rest = flags.FLAGS([program, *given])
  except flags.IllegalFlagValueError as error:
    _fail(_type_error(str(error)))
  except flags.UnrecognizedFlagError as error:
    _fail(f"unknown flag --{error.flagname}{_closest_flag(program, error.flagname)}")
  except (flags.Error, OSError) as error:
    _fail(str(error))
  except SystemExit:  # by --help, which to absl is a failure
    sys.exit(0)
  if len(rest) > 1:
    _fail(f"all options are flags (--name=value), got {rest[1]!r}")
  return rest


def _closest_flag(program: str, name: str) -> str:
  """Returns a hint at the nearest flag of the script, or field of its config; nothing if none is near."""
  known = {flag.name: flag.name for flag in flags.FLAGS.get_key_flags_for_module(program)}
  if "config" in flags.FLAGS:
    for field in fields.flat(base.Config()):
      known.setdefault(field.rpartition(".")[2], f"config.{field}")
  near = difflib.get_close_matches(name, known, n=1)
  return f"; did you mean --{known[near[0]]}?" if near else ""


def _type_error(message: str) -> str:
  """Returns absl's message about a flag, or what a config's field must be if the flag is one."""
  match = re.match(r"flag --config\.([^=]*)=(.*?): ", message, re.DOTALL)
  if not match:
    return message
  name, value = match.groups()
  kind = type(fields.flat(base.Config())[name]).__name__
  return f"config.{name} must be of type {kind}, got {value!r}"


def _config_path(arguments: Sequence[str]) -> str | None:
  """Returns the value of the last --config, or None if there is none."""
  path = None
  for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
    if argument in ("--config", "-config"):
      path = following
    elif argument.startswith(("--config=", "-config=")):
      path = argument.partition("=")[2]
  return path


def _without_config(arguments: Sequence[str]) -> list[str]:
  """Returns the arguments without any --config."""
  kept, is_value = [], False
  for argument in arguments:
    is_flag = argument in ("--config", "-config")
    if not (is_value or is_flag or argument.startswith(("--config=", "-config="))):
      kept.append(argument)
    is_value = is_flag
  return kept


def _check_file(path: str) -> None:
  """Says in one line what is wrong with a file of a config."""
  if not pathlib.Path(path).is_file():
    _fail(f"--config must name a file such as configs/toy_translation.py: No such file: {path!r}")
  try:
    get_config = runpy.run_path(path).get("get_config")
    config = None if get_config is None else get_config()
  except (Exception, SystemExit) as error:  # whatever a person's file may raise
    _fail(f"{path}: {type(error).__name__}: {error}")
  if get_config is None:
    _fail(f"{path}: expected a function get_config, got none")
  if not isinstance(config, base.Config):
    _fail(f"{path}: get_config must return a configs.base.Config, got {type(config).__name__}")
  if unknown := _unknown_field(config):
    _fail(f"{path}: {unknown}")
  differing = fields.flat(config).keys() ^ fields.flat(base.Config()).keys()
  if differing:
    names = ", ".join(sorted(differing))
    _fail(f"{path}: the config must have the fields of configs.base.Config, differs in {names}")


def _check_fields(arguments: Sequence[str]) -> None:
  """Names the nearest field for a --config.FIELD that does not exist."""
  for argument in arguments:
    match = re.match(r"--?(?:no)?config\.([^=]*)", argument)
    if match:
      error = _field_error(match.group(1))
      if error:
        _fail(error)


def _unknown_field(config: Any, prefix: str = "") -> str:
  """Returns what is wrong with a name that a file has given a value to, or nothing."""
  fields = {field.name for field in dataclasses.fields(config)}
  for name, value in vars(config).items():
    if name not in fields:
      return _field_error(prefix + name)
    if dataclasses.is_dataclass(value) and (inner := _unknown_field(value, f"{prefix}{name}.")):
      return inner
  return ""


def _field_error(name: str) -> str:
  """Returns what is wrong with the name of a field, or nothing."""
  holder = base.Config()
  for part in name.split("."):
    if not dataclasses.is_dataclass(holder):
      return f"config has no field {name!r}: it ends before {part!r}"
    names = [field.name for field in dataclasses.fields(holder)]
    if part not in names:
      return f"config has no field {name!r}; allowed are {', '.join(names)}{fields.closest(part, names)}"
    holder = getattr(holder, part)
  if dataclasses.is_dataclass(holder):
    names = [field.name for field in dataclasses.fields(holder)]
    return f"config.{name} is a group of fields: {', '.join(names)}"
  return ""


def _fail(message: str) -> NoReturn:
  """Ends the program with one line, of a length that can be read; the stream escapes it."""
  line = " ".join(message.split())
  if len(line) > _BEGINNING + _END:
    line = f"{line[:_BEGINNING]} … {line[-_END:]}"
  print(f"error: {line}", file=sys.stderr)
  sys.exit(MISTAKE)
