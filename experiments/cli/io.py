"""Files that a script reads and writes."""

import contextlib
import os
import pathlib
from collections.abc import Iterable

from absl import flags

from experiments.cli.flags import UsageError

# The flags below belong to the script that asks for them, so that its --help tells of them.
flags.disclaim_key_flags()


def define_input(help_string: str) -> flags.FlagHolder:
  """Defines --input."""
  return flags.DEFINE_string("input", None, help_string)


def define_output(help_string: str) -> flags.FlagHolder:
  """Defines --output."""
  return flags.DEFINE_string("output", None, help_string)


def check_files(read: flags.FlagHolder, written: flags.FlagHolder) -> None:
  """Raises UsageError for an --output that cannot be written, or is the --input."""
  if written.value is None:
    return
  path = pathlib.Path(written.value)
  if not path.absolute().parent.is_dir():
    raise UsageError(f"--output must be in a folder that is there, got {written.value!r}")
  if path.is_dir():
    raise UsageError(f"--output must be a file, got the folder {written.value!r}")
  if read.value is not None and _is_same_file(pathlib.Path(read.value), path):
    raise UsageError(f"--output must not be the file of --{read.name}, got {written.value!r}")


def input_path(flag: flags.FlagHolder) -> pathlib.Path:
  """Returns the file that --input names.

  Raises:
    UsageError: if it names none.
  """
  if not flag.value:
    raise UsageError("--input must name a file, got none")
  return pathlib.Path(flag.value)


def read_lines(path: pathlib.Path) -> list[str]:
  """Returns the lines of a file. They end at a newline alone, of which a carriage return may be a part."""
  try:
    text = path.read_bytes().decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise UsageError(f"{path}: expected UTF-8, got {error}") from error
  # Not splitlines, which also breaks lines at other characters than the newline.
  return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def write_lines(flag: flags.FlagHolder, lines: Iterable[str]) -> None:
  """Writes lines to the file that --output names, or prints them."""
  text = "".join(f"{line}\n" for line in lines)
  if flag.value is None:
    print(text, end="")
  else:
    write_text(pathlib.Path(flag.value), text)


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a file of which no half is ever there; a device or a link stays what it is.

  Raises:
    OSError: with this path, if the disk does not take it.
  """
  write_bytes(path, text.encode("utf-8"))


def write_bytes(path: pathlib.Path, content: bytes) -> None:
  """Does what `write_text` does, with bytes."""
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


def _is_same_file(one: pathlib.Path, other: pathlib.Path) -> bool:
  # Devices, such as a terminal, may be both.
  return one.is_file() and other.is_file() and one.samefile(other)
