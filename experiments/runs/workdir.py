"""The folder of a run.

vocabulary.source.txt   source words, one per line; vocabulary.target.txt has the target words
subwords.source.model   subword model of the source, if there is one; subwords.target.model of the target
run.json                config, and checksums of data and vocabularies; written after the vocabularies, so a
                        folder with it is complete
launches.jsonl          one line per start: command, commit, versions and devices; for people only
.lock                   held by the training process
checkpoints/            newest and best training states
damaged/                damaged checkpoints
metrics.jsonl           one line per record: `step` and metrics, without times
tensorboard/            metrics and speeds, for TensorBoard
profile/                profile of `--profile`, for TensorBoard or Perfetto
results.json            split -> metric -> value, written after training
results.900_steps.json  results after 900 steps, if the run was then extended
figures/                figures, PNG
"""

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import filelock
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from experiments.cli.errors import UserError
from experiments.cli.io import write_text
from experiments.devices.multihost import is_primary

RECORD = "run.json"


class WorkdirError(UserError):
  """A folder of a run that is missing, incomplete, or does not fit."""


def has_run(folder: pathlib.Path) -> bool:
  """Returns whether a folder has a run."""
  return (folder / RECORD).exists()


@contextlib.contextmanager
def workdir_lock(folder: pathlib.Path) -> Iterator[None]:
  """Locks the folder of a run. With several processes, call it in process 0 only.

  Args:
    folder: folder of the run. It is created.

  Raises:
    WorkdirError: if another process holds the lock.
  """
  folder.mkdir(parents=True, exist_ok=True)
  try:
    with filelock.FileLock(folder / ".lock", timeout=0.1):  # `is_locked` may hold the lock briefly
      yield
  except filelock.Timeout as error:
    raise WorkdirError(f"{folder}: another process is training this run") from error


def is_locked(folder: pathlib.Path) -> bool:
  """Returns whether a process is training in a folder."""
  if not (folder / ".lock").exists():
    return False
  try:
    with filelock.FileLock(folder / ".lock", blocking=False):
      return False
  except filelock.Timeout:
    return True


def check_complete(folder: pathlib.Path) -> None:
  """Raises WorkdirError if a folder lacks a file that a run writes before a file that the folder has."""
  # The checkpoint of step 0 of a warm start is written before metrics.jsonl.
  order = (
    ("run.json", "checkpoints/*"),
    ("run.json", "metrics.jsonl"),
    ("metrics.jsonl", "checkpoints/[1-9]*"),
    ("checkpoints/[1-9]*", "results.json"),
  )
  for earlier, later in order:
    if any(folder.glob(later)) and not any(folder.glob(earlier)):
      names = [name.rstrip("[1-9]*") for name in (earlier, later)]
      raise WorkdirError(f"{folder}: {names[0]} is missing but {names[1]} exists; pass another --workdir")


def read_results(folder: pathlib.Path) -> dict[str, dict[str, float]]:
  """Returns the results of a run, split -> metric -> value.

  Raises:
    WorkdirError: if the run is not finished, or the file is invalid.
  """
  path = folder / "results.json"
  try:
    results = json.loads(path.read_text("utf-8"))
  except FileNotFoundError:
    raise WorkdirError(f"{folder}: no results yet; train with --workdir={folder}") from None
  except (ValueError, RecursionError) as error:
    raise WorkdirError(f"{path}: invalid JSON: {error}") from error
  if not isinstance(results, dict) or not all(isinstance(values, dict) for values in results.values()):
    raise WorkdirError(f"{path}: expected metrics by split, got {results!r}")
  return results


def write_results(folder: pathlib.Path, results: Mapping[str, Mapping[str, float]]) -> None:
  """Writes results.json: split -> metric -> value."""
  write_json(folder / "results.json", results)


def keep_results(folder: pathlib.Path) -> None:
  """Renames the results of a run that is extended to results.N_steps.json, where N is its last step."""
  if records := read_metrics(folder):
    with contextlib.suppress(FileNotFoundError):
      (folder / "results.json").rename(folder / f"results.{records[-1]['step']}_steps.json")


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file atomically."""
  write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


class MetricsWriter(contextlib.AbstractContextManager):
  """Writes metrics to metrics.jsonl and TensorBoard in process 0, as a context manager.

  Args:
    folder: folder of the run.
    step: step that the run resumes after. Later records are removed, because these steps will run again.

  Raises:
    WorkdirError: if a file cannot be written, also in `write`.
  """

  def __init__(self, folder: pathlib.Path, step: int):
    self._is_primary = is_primary()
    if not self._is_primary:
      return
    self._path = folder / "metrics.jsonl"
    kept = [record for record in read_metrics(folder) if record["step"] <= step]
    with self._disk_errors():
      write_text(self._path, "".join(map(_line, kept)))
      (folder / "tensorboard").mkdir(exist_ok=True)
      self._file = self._path.open("a", encoding="utf-8")
      # The thread of a SummaryWriter would wait forever on a full disk.
      self._board = EventsWriter(str(folder / "tensorboard" / "events"))
      # TensorBoard discards records from this step on.
      self._board.write_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

  def __exit__(self, *_) -> None:
    if not self._is_primary:
      return
    with contextlib.suppress(OSError):  # everything is flushed, so an error was already reported
      self._file.close()
    with contextlib.suppress(OSError):
      self._board.close()

  def write(self, step: int, values: Mapping[str, float], speeds: Mapping[str, float] | None = None) -> None:
    """Writes metrics of a step. Speeds go to TensorBoard only, so that metrics.jsonl is reproducible."""
    if not self._is_primary:
      return
    with self._disk_errors():
      self._file.write(_line({"step": step, **values}))
      self._file.flush()
      for name, value in {**values, **(speeds or {})}.items():
        self._board.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
      self._board.flush()

  @contextlib.contextmanager
  def _disk_errors(self) -> Iterator[None]:
    """Converts disk errors to WorkdirError."""
    try:
      yield
    except OSError as error:
      raise WorkdirError(f"cannot write to {self._path.parent}: {error.strerror or error}") from error


def read_metrics(folder: pathlib.Path) -> list[dict[str, float]]:
  """Returns the records of metrics.jsonl, without an incomplete last line. A missing file has no records.

  Raises:
    WorkdirError: if another line is invalid.
  """
  path = folder / "metrics.jsonl"
  if not path.exists():
    return []
  *lines, last = path.read_text("utf-8", errors="replace").split("\n")
  records = []
  for number, line in enumerate([*lines, last], start=1):
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as error:
      if number > len(lines):  # an incomplete line is not valid JSON
        break
      raise WorkdirError(f"{path}:{number}: invalid JSON: {error}") from error
    is_record = isinstance(record, dict) and isinstance(record.get("step"), int)
    if not is_record or not all(isinstance(value, (int, float)) for value in record.values()):
      raise WorkdirError(f"{path}:{number}: expected an object of numbers with 'step', got {record!r:.80}")
    records.append(record)
  return records


def _line(record: Mapping[str, float]) -> str:
  return json.dumps(record) + "\n"
