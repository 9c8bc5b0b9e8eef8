"""Reading and writing of files, and the flags --input and --output."""

import contextlib
import os
import pathlib
from collections.abc import Iterable

from absl import flags

from experiments.cli.errors import DataError
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
  """Raises UsageError if a name is empty, --output cannot be written, or both flags name the same file."""
  if read.value is not None:
    flag_path(read)
  if written.value is None:
    return
  path = output_path(written)
  if read.value is not None and _is_same_file(pathlib.Path(read.value), path):
    raise UsageError(f"--output must not be the same file as --{read.name}, got {written.value!r}")


def flag_path(flag: flags.FlagHolder) -> pathlib.Path:
  """Returns the value of a flag that names a file.

  Raises:
    UsageError: if it is missing.
  """
  if not flag.value:
    raise UsageError(f"--{flag.name} must name a file, got none")
  return pathlib.Path(flag.value)


def output_path(flag: flags.FlagHolder) -> pathlib.Path:
  """Returns the value of a flag that names a file to write, in an existing folder.

  Raises:
    UsageError: if it is missing, is a folder, or its folder does not exist.
  """
  path = flag_path(flag)
  if not path.absolute().parent.is_dir():
    raise UsageError(f"--{flag.name} must be in an existing folder, got {flag.value!r}")
  if path.is_dir():
    raise UsageError(f"--{flag.name} must be a file, got the folder {flag.value!r}")
  return path


def output_folder(flag: flags.FlagHolder) -> pathlib.Path:
  """Returns the value of a flag that names a folder to write into. The folder need not exist.

  Raises:
    UsageError: if it is missing, or is a file.
  """
  if not flag.value:
    raise UsageError(f"--{flag.name} must name a folder, got none")
  path = pathlib.Path(flag.value)
  if path.exists() and not path.is_dir():
    raise UsageError(f"--{flag.name} must be a folder, got the file {flag.value!r}")
  return path


def read_bytes(path: pathlib.Path) -> bytes:
  """Returns the content of a file.

  Raises:
    DataError: if it cannot be read.
  """
  try:
    return path.read_bytes()
  except OSError as error:
    raise DataError(f"{path}: cannot read the file: {error.strerror}") from error


def read_lines(path: pathlib.Path) -> list[str]:
  """Returns the lines of a file. Lines end with LF or CRLF only.

  Raises:
    DataError: if it cannot be read, or is not UTF-8.
  """
  content = read_bytes(path)
  try:
    text = content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    number = content[: error.start].count(b"\n") + 1
    byte = f"byte 0x{error.object[error.start]:02x}"
    raise DataError(f"{path}:{number}: expected UTF-8, got {byte}: {error.reason}") from error
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
