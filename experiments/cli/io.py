"""Reading and writing of files, and the flags --input and --output."""

import contextlib
import os
import pathlib
from collections.abc import Iterable

from absl import flags

from experiments.cli.flags import UsageError

# Flags defined below are key flags of the script that calls the function, so that its --help lists them.
flags.disclaim_key_flags()


def define_input(help_string: str) -> flags.FlagHolder:
  """Defines --input."""
  return flags.DEFINE_string("input", None, help_string)


def define_output(help_string: str) -> flags.FlagHolder:
  """Defines --output."""
  return flags.DEFINE_string("output", None, help_string)


def check_files(read: flags.FlagHolder, written: flags.FlagHolder) -> None:
  """Raises UsageError if --output cannot be written, or is the same file as --input."""
  if written.value is None:
    return
  path = pathlib.Path(written.value)
  if not path.absolute().parent.is_dir():
    raise UsageError(f"--output must be in an existing folder, got {written.value!r}")
  if path.is_dir():
    raise UsageError(f"--output must be a file, got the folder {written.value!r}")
  if read.value is not None and _is_same_file(pathlib.Path(read.value), path):
    raise UsageError(f"--output must not be the same file as --{read.name}, got {written.value!r}")


def input_path(flag: flags.FlagHolder) -> pathlib.Path:
  """Returns the value of --input as a path.

  Raises:
    UsageError: if it is missing.
  """
  if not flag.value:
    raise UsageError("--input must name a file, got none")
  return pathlib.Path(flag.value)


def read_lines(path: pathlib.Path) -> list[str]:
  """Returns the lines of a file. Lines end with LF or CRLF only."""
  try:
    text = path.read_bytes().decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise UsageError(f"{path}: expected UTF-8, got {error}") from error
  # str.splitlines would also split at other characters.
  return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def write_lines(flag: flags.FlagHolder, lines: Iterable[str]) -> None:
  """Writes lines to --output, or prints them if it is not set."""
  text = "".join(f"{line}\n" for line in lines)
  if flag.value is None:
    print(text, end="")
  else:
    write_text(pathlib.Path(flag.value), text)


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a file atomically. Devices and symbolic links are written in place.

  Raises:
    OSError: if the file cannot be written.
  """
  write_bytes(path, text.encode("utf-8"))


def write_bytes(path: pathlib.Path, content: bytes) -> None:
  """Writes a file like `write_text`, from bytes."""
  if path.is_symlink() or (path.exists() and not path.is_file()):
    path.write_bytes(content)
    return
  temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
  try:
    temporary.write_bytes(content)
    os.replace(temporary, path)
  except OSError as error:
    raise OSError(error.errno, error.strerror, str(path)) from error
  finally:
    with contextlib.suppress(OSError):
      temporary.unlink(missing_ok=True)


def _is_same_file(a: pathlib.Path, b: pathlib.Path) -> bool:
  # A device, such as a terminal, may be both input and output.
  return a.is_file() and b.is_file() and a.samefile(b)
