"""How a script starts: its flags, the config, and one line for an error of the user.

A user's error (a wrong field, an impossible value, a missing file) ends the program with one line and exit
code 2. Everything else that fails is a defect, and keeps its traceback.
"""

import difflib
import errno
import os
import pathlib
import re
import runpy
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from absl import app, flags, logging

from configs import base
from experiments.cli import config_fields, plugins  # noqa: F401 (own defines --trust_workdir)
from experiments.cli.errors import Preempted, UserError

_DEFAULT_CONFIG = pathlib.Path(base.__file__).parent / "toy_translation.py"
_DEFINE: dict[type, Callable[..., flags.FlagHolder]] = {
  bool: flags.DEFINE_bool,
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  str: flags.DEFINE_string,
}
_LONGEST_LINE = 2_000  # letters of an error

# The flags below belong to the script that asks for them, so that its --help lists them.
flags.disclaim_key_flags()


class UsageError(UserError):
  """Flags that do not go together, in one line."""


def define_config() -> flags.FlagHolder:
  """Defines --config, a file, and --config.FIELD for each field of the config in it."""
  return flags.DEFINE_string(
    "config",
    str(_DEFAULT_CONFIG),
    "file with the experiment; any field can be changed: --config.train.num_train_steps=100",
  )


def get_config() -> base.Config:
  """Returns the config of the file that --config names, with the fields that have flags changed."""
  config = load_config(flags.FLAGS.config)
  for name in config_fields.flat(config):
    config_fields.set_field(config, name, flags.FLAGS[f"config.{name}"].value)
  return config


def load_config(path: str) -> base.Config:
  """Returns what a config file's function `get_config` returns.

  Raises:
    UsageError: if it cannot be run, or returns no config.
  """
  config = run_function(path, "get_config")
  if (
    not isinstance(config, base.Config)
    or config_fields.flat(config).keys() != config_fields.flat(base.Config()).keys()
  ):
    raise UsageError(f"{path}: get_config must return a configs.base.Config, got {config!r}")
  return config


def run_function(path: str, name: str) -> Any:
  """Returns what a function without arguments in a file returns.

  Raises:
    UsageError: if there is no such file or function, or it fails.
  """
  try:
    function = runpy.run_path(path).get(name)
    result = function() if function else None
  except (Exception, SystemExit) as error:  # a user's file may raise anything
    misspelt = re.search(r"has no attribute '(\w+)'", str(error))
    names = (name.rpartition(".")[2] for name in config_fields.flat(base.Config()))
    hint = config_fields.closest(misspelt[1], names) if misspelt else ""
    raise UsageError(f"{path}: {type(error).__name__}: {error}{hint}") from error
  if function is None:
    raise UsageError(f"{path}: expected a function {name}, got none")
  return result


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
  return [path] if path.is_dir() else [pathlib.Path(name) for name in str(path).split(",") if name]


def run(main: Callable[[], None], *, uses_cache: bool = True) -> None:
  """Parses the flags and runs a script's main function.

  Args:
    main: it has no arguments.
    uses_cache: whether compiled programs are kept for the next start; False for scripts that measure times.
  """
  for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
  logging.set_verbosity(logging.FATAL)  # JAX and orbax log each of their steps, and errors that they raise
  if not uses_cache:
    jax.config.update("jax_enable_compilation_cache", False)
  elif jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
    _keep_compiled()
  app.run(lambda _: _run(main), flags_parser=_parse)


def _keep_compiled() -> None:
  """Keeps compiled programs in the user's cache folder, in that of this machine, for the next start.

  A program is compiled for the processor of a machine; several machines may share a home.
  """
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
  except BrokenPipeError:  # the reader of the output has gone, as in `... | head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except OSError as error:
    if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
      raise
    _fail(f"{error.filename or 'could not write'}: {error.strerror}")
  except (MemoryError, jax.errors.JaxRuntimeError) as error:
    if not isinstance(error, MemoryError) and not str(error).startswith("RESOURCE_EXHAUSTED"):
      raise
    reason = str(error).splitlines() or [type(error).__name__]
    _fail(f"not enough memory; try a smaller batch, beam or model: {reason[0]}")
  except (Preempted, KeyboardInterrupt) as error:
    stopped = error if isinstance(error, Preempted) else Preempted("stopped", signal.SIGINT)
    print(stopped, file=sys.stderr)
    sys.exit(stopped.code)


def _parse(arguments: Sequence[str]) -> list[str]:
  """Parses the flags; the fields of the config are flags whose defaults are those of the file."""
  try:
    if "config" in flags.FLAGS:
      flags.FLAGS(arguments, known_only=True)
      for name, value in config_fields.flat(load_config(flags.FLAGS.config)).items():
        kind = type(config_fields.flat(base.Config())[name])
        _DEFINE[kind](f"config.{name}", value, "see configs/base.py", module_name="configs.base")
    rest = flags.FLAGS(arguments)
  except flags.UnrecognizedFlagError as error:
    name, by_field = error.flagname, {flag.rpartition(".")[2]: flag for flag in flags.FLAGS}
    near = difflib.get_close_matches(name, flags.FLAGS, 1, 0.8) or [
      by_field[field] for field in difflib.get_close_matches(name.rpartition(".")[2], by_field, 1)
    ]
    _fail(f"unknown flag --{name}" + (f"; did you mean --{near[0]}?" if near else ""))
  except (flags.Error, UsageError, UnicodeDecodeError) as error:
    _fail(str(error))
  if len(rest) > 1:
    _fail(f"all options are flags (--name=value), got {rest[1]!r}")
  return rest


def _fail(message: str) -> NoReturn:
  """Ends the program with one line."""
  line = " ".join(message.split())
  if len(line) > _LONGEST_LINE:
    line = f"{line[: _LONGEST_LINE - 500]} … {line[-500:]}"
  print(f"error: {line}", file=sys.stderr)
  sys.exit(2)
