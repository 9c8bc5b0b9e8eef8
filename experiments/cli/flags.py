"""Start of a script: flags, config and error handling.

A user error, such as an invalid value or a missing file, prints one line and exits with code 2. Any other
exception is a bug and keeps its traceback.
"""

import difflib
import errno
import os
import pathlib
import re
import runpy
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from absl import app, flags, logging

from configs import base
from experiments.cli import components, config_fields
from experiments.cli.errors import Preempted, UserError
from experiments.cli.messages import escape_controls
from experiments.cli.signals import exit_on_signals

_DEFAULT_CONFIG = pathlib.Path(base.__file__).parent / "toy_translation.py"
_DEFINE: dict[type, Callable[..., flags.FlagHolder]] = {
  bool: flags.DEFINE_bool,
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  str: flags.DEFINE_string,
}
_MAX_ERROR_LENGTH = 2_000  # characters
# absl's reasons for invalid values, and what is allowed.
_REASONS = {
  r"invalid literal for int\(\).*": "an integer",
  r"could not convert string to float.*": "a number",
  r"Expect argument to be a string or int, found .*": "an integer",
  r"Expect argument to be a string, int, or float, found .*": "a number",
  r"flag value must be a string, found .*": "a string",
  r"\('Non-boolean argument.*": "true or false",
  r"\S+ is not an? \w+ in the range \[(.*), (.*)\]": r"from \3 to \4",
  r"\S+ is not (an? .*)": r"\3",
  r"value should be one of <(.*)>": r"one of \3",
  r"already defined as .*": "set once",
  r"Unable to parse the value .*": "a list separated by commas",
}

# Flags defined below are key flags of the script that calls the function, so that its --help lists them.
flags.disclaim_key_flags()


class UsageError(UserError):
  """An invalid flag or combination of flags."""


def define_config() -> flags.FlagHolder:
  """Defines --config, a config file, and --config.FIELD for each of its fields."""
  for name, default in config_fields.flat(base.Config()).items():
    define, help_string = _DEFINE[type(default)], config_fields.describe(name)
    define(f"config.{name}", default, help_string, module_name="configs.base")
  cwd = pathlib.Path.cwd()
  is_in_cwd = _DEFAULT_CONFIG.is_relative_to(cwd)
  return flags.DEFINE_string(
    "config",
    str(_DEFAULT_CONFIG.relative_to(cwd) if is_in_cwd else _DEFAULT_CONFIG),
    "config file; --config.FIELD=VALUE overrides a field, such as --config.train.num_train_steps=100; "
    "--helpfull lists the fields",
  )


def get_config() -> base.Config:
  """Returns the config of --config, with the fields set by --config.FIELD."""
  config = load_config(flags.FLAGS.config)
  for name in config_fields.flat(config):
    config_fields.set_field(config, name, flags.FLAGS[f"config.{name}"].value)
  return config


def load_config(path: str) -> base.Config:
  """Returns the config of a config file.

  Raises:
    UsageError: if the file cannot be run, or `get_config` does not return a config.
  """
  config = run_function(path, "get_config")
  if (
    not isinstance(config, base.Config)
    or config_fields.flat(config).keys() != config_fields.flat(base.Config()).keys()
  ):
    raise UsageError(f"{path}: get_config must return a configs.base.Config, got {config!r}")
  return components.with_names(config)


def run_function(path: str, name: str) -> Any:
  """Runs a function without arguments in a Python file, and returns its result.

  Raises:
    UsageError: if the file or function does not exist, or fails.
  """
  example = "a Python file such as configs/toy_translation.py"
  if not path:
    raise UsageError(f"--config must name {example}, got none")
  if not pathlib.Path(path).is_file():
    problem = "expected a file, got a folder" if pathlib.Path(path).is_dir() else "no such file"
    raise UsageError(f"{path}: {problem}; --config must name {example}")
  try:
    function = runpy.run_path(path, run_name=components.module_name(path)).get(name)
    result = function() if function else None
  except (Exception, SystemExit) as error:  # a user's file may raise anything
    missing = re.search(r"has no attribute '(\w+)'", str(error))
    names = {part for name in config_fields.flat(base.Config()) for part in name.split(".")}
    hint = config_fields.closest(missing[1], names) if missing else ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f" (line {lines[-1]})" if lines else ""
    raise UsageError(f"{path}: {type(error).__name__}: {error}{where}{hint}") from error
  if function is None:
    raise UsageError(f"{path}: function {name} is missing")
  return result


def define_workdir(
  default: str | None, help_string: str = "folder of the run (required)"
) -> flags.FlagHolder:
  """Defines --workdir."""
  return flags.DEFINE_string("workdir", default, help_string)


def workdir_path(flag: flags.FlagHolder) -> pathlib.Path:
  """Returns the value of --workdir as a path.

  Raises:
    UsageError: if it is missing, or names a file.
  """
  if not flag.value:
    raise UsageError("--workdir must name the folder of a run, got none")
  path = pathlib.Path(flag.value)
  if path.exists() and not path.is_dir():
    raise UsageError(f"{path}: expected a folder, got a file")
  return path


def workdir_paths(flag: flags.FlagHolder) -> list[pathlib.Path]:
  """Returns the folders of --workdir, separated by commas. An existing folder may have commas in its name.

  Raises:
    UsageError: if it is missing, or names a file.
  """
  path = workdir_path(flag)
  if path.is_dir():
    return [path]
  paths = [pathlib.Path(name) for name in flag.value.split(",") if name]
  if not paths:
    raise UsageError(f"--workdir must name folders of runs, separated by commas, got {flag.value!r}")
  return paths


def run(main: Callable[[], None], *, uses_cache: bool = True) -> None:
  """Parses the flags and runs the main function of a script.

  Args:
    main: function without arguments.
    uses_cache: use the persistent compilation cache. Set it to False in scripts that measure times.
  """
  exit_on_signals()
  for stream in (sys.stdout, sys.stderr):
    # With line buffering, no output is lost if a signal ends the process.
    options = {"encoding": "utf-8", "errors": "backslashreplace", "line_buffering": True}
    stream.reconfigure(**options)  # type: ignore[union-attr]
  logging.set_verbosity(logging.FATAL)  # JAX and orbax also log the errors that they raise
  if not uses_cache:
    jax.config.update("jax_enable_compilation_cache", False)
  elif jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
    _enable_compilation_cache()
  try:
    app.run(lambda _: _run(main), flags_parser=_parse)
  except BrokenPipeError:  # while --help is printed, as in `... --help | head`
    _ignore_broken_pipe()
  finally:
    try:
      sys.stdout.flush()
    except BrokenPipeError:
      _ignore_broken_pipe()


def _enable_compilation_cache() -> None:
  """Enables the persistent compilation cache. Each host has its folder, as hosts may share a home folder."""
  base_folder = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  folder = pathlib.Path(base_folder) / "attention-jax" / socket.gethostname()
  warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")  # a full disk
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_compilation_cache_max_size", 2**30)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _run(main: Callable[[], None]) -> None:
  try:
    main()
  except UserError as error:
    _fail(str(error))
  except BrokenPipeError:  # the reader of the output has exited, as in `... | head`
    _ignore_broken_pipe()
  except OSError as error:
    if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
      raise
    _fail(f"{error.filename or 'could not write'}: {error.strerror}")
  except (MemoryError, jax.errors.JaxRuntimeError) as error:
    if not isinstance(error, MemoryError) and not str(error).startswith("RESOURCE_EXHAUSTED"):
      raise
    reason = str(error).splitlines() or [type(error).__name__]
    _fail(f"out of memory; try a smaller batch, beam or model: {reason[0]}")
  except Preempted as error:
    print(error, file=sys.stderr)
    sys.exit(error.code)


def _ignore_broken_pipe() -> None:
  """Redirects standard output to the null device, so that no later write or flush fails."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(arguments: Sequence[str]) -> list[str]:
  """Parses the flags. Flags --config.FIELD have the values of the config file as defaults."""
  try:
    rest = flags.FLAGS(arguments)
    if "config" in flags.FLAGS:
      for name, value in config_fields.flat(load_config(flags.FLAGS.config)).items():
        flags.FLAGS.set_default(f"config.{name}", value)
  except flags.UnrecognizedFlagError as error:
    name, by_field = error.flagname, {flag.rpartition(".")[2]: flag for flag in flags.FLAGS}
    section, _, field = name.rpartition(".")
    matches = (
      [flag for flag in flags.FLAGS if len(field) > 2 and flag.startswith(f"{section}.") and field in flag]
      or difflib.get_close_matches(name, flags.FLAGS, 1, 0.8)
      or [by_field[close] for close in difflib.get_close_matches(field, by_field, 1)]
    )
    _fail(f"unknown flag --{name}" + (f"; did you mean --{' or --'.join(matches)}?" if matches else ""))
  except UnicodeDecodeError as error:
    _fail(f"--flagfile must be a text file in UTF-8, got {error}")
  except (flags.Error, ValueError) as error:  # absl raises ValueError for --noNAME=VALUE
    _fail(_plain(str(error)))
  if len(rest) > 1:
    _fail(f"arguments must be flags (--name=value), got {rest[1]!r}")
  return rest


def _plain(text: str) -> str:
  """Returns an error text of absl in the form of other errors."""
  for reason, allowed in _REASONS.items():
    if match := re.fullmatch(f"flag --([^=]+)=(.*): {reason}", text, re.DOTALL):
      return f"--{match[1]} must be {match.expand(allowed).replace('|', ', ')}, got {match[2]!r}"
  text = re.sub(r"^Missing value for flag (\S+)$", r"\1 needs a value", text)
  text = re.sub(r"^(\S+) with no argument$", r"\1 needs a value", text)
  return re.sub(r"^ERROR:: Unable to open flagfile: (\[Errno \d+\] )?", "--flagfile: ", text)


def _fail(message: str) -> NoReturn:
  """Prints an error as one line and exits with code 2."""
  line = escape_controls(" ".join(message.split()))
  if len(line) > _MAX_ERROR_LENGTH:
    line = f"{line[: _MAX_ERROR_LENGTH - 500]} … {line[-500:]}"
  print(f"error: {line}", file=sys.stderr)
  sys.exit(2)
