"""The record of a run, run.json: its config, and checksums of its data files and vocabularies."""

import dataclasses
import hashlib
import json
import pathlib
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from configs import base
from experiments.cli import components, config_fields
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import DataError
from experiments.data.task import SIDES, Languages, Task
from experiments.data.tasks import make_task
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import SubwordTokenizer
from experiments.runs import workdir
from experiments.runs.validation import validate
from experiments.runs.workdir import WorkdirError

# Fields of `config.data` that determine the tokens.
_LANGUAGE_FIELDS = ("task", "tokenization", "lowercase", "subword_model", "vocabulary_size", "min_count")
_STEP_FIELDS = ("train.num_train_steps", "train.warmup_fraction")


class Record(NamedTuple):
  """The config of a run, and checksums of its inputs.

  Attributes:
    config: config of the run.
    data: SHA-256 of each data file, by config field.
    languages: SHA-256 of the vocabularies and tokenizers.
  """

  config: base.Config
  data: dict[str, str]
  languages: str

  def as_json(self) -> dict[str, Any]:
    """Returns the record as JSON."""
    return {**self._asdict(), "config": dataclasses.asdict(self.config)}


def read_record(folder: pathlib.Path) -> Record:
  """Reads the record of a run. Custom components are not imported.

  Raises:
    WorkdirError: if the folder has no run, its record is invalid in this version, or Python would look for a
      custom component in the folder of a run.
  """
  path = folder / workdir.RECORD
  if not path.is_file():
    names = [other.parent.name for other in sorted(folder.glob(f"*/{path.name}"))]
    hint = f"its subfolders with runs: {', '.join(names)}" if names else f"train with --workdir={folder}"
    raise WorkdirError(f"{folder}: no run here ({path.name} is missing); {hint}")
  try:
    values = json.loads(path.read_text("utf-8"))
    if not (
      isinstance(values, dict)
      and values.keys() == {*Record._fields}
      and isinstance(values["data"], dict)
      and isinstance(values["languages"], str)
    ):
      raise ValueError(f"expected an object with {', '.join(Record._fields)}")
    record = Record(**{**values, "config": config_fields.from_dict(base.Config, values["config"])})
    validate(record.config, imports=False)
  except ConfigError as error:
    raise WorkdirError(f"{path}: {error}") from error
  except (ValueError, TypeError, OverflowError, RecursionError) as error:
    raise WorkdirError(f"{path}: invalid in this version: {error}") from error
  check_not_imported_from(folder, record.config)
  return record


def read_config(folder: pathlib.Path) -> base.Config:
  """Returns the config of a run. Raises WorkdirError as `read_record`."""
  return read_record(folder).config


def check_not_imported_from(folder: pathlib.Path, config: base.Config) -> None:
  """Raises WorkdirError if Python would look for a custom component in the folder of a run.

  A run may come from others, so nothing in its folder, or in that of another run, is imported.
  """
  for field, name in components.custom_components(config):
    module = name.partition(":")[0].replace(".", "/")
    for place in [pathlib.Path(entry, module + suffix) for entry in sys.path for suffix in ("", ".py")]:
      for parent in place.resolve().parents:
        if parent == folder.resolve() or workdir.has_run(parent):
          raise WorkdirError(
            f"config.{field}={name} must not be in the folder of a run, from which nothing is imported; "
            f"Python would search {parent}"
          )


def check_same(
  folder: pathlib.Path, config: base.Config, data: Mapping[str, str] = MappingProxyType({})
) -> Record | None:
  """Checks that a folder has no run, or the same run. Returns the record of the run, or None.

  Data files may have moved. A run may get more steps if that does not change the learning rates of its first
  steps, and another patience.

  Args:
    folder: folder of the run.
    config: config to compare with that of the run.
    data: `file_digests` of the config. Without them, the paths of data files are compared.

  Raises:
    WorkdirError: with a list of the differences.
  """
  if not workdir.has_run(folder):
    return None
  saved = read_record(folder)
  before, after = config_fields.flat(saved.config), config_fields.flat(config)
  files = sorted(saved.data.keys() & data.keys())
  changed = [f"{name} (the file has changed)" for name in files if saved.data[name] != data[name]]
  different = [name for name in after if not _is_same(name, before[name], after[name]) and name not in files]
  hint = ""
  if {*different} <= {*_STEP_FIELDS} and saved.config.train.num_train_steps < config.train.num_train_steps:
    hint = _more_steps_hint(saved.config.train, config.train)
    different = different if hint else []
  changed += [f"{name} {before[name]!r} (now {after[name]!r})" for name in different]
  if changed:
    raise WorkdirError(
      f"{folder} has a run with a different config: {', '.join(changed)}; pass another --workdir{hint}"
    )
  return saved


def _is_same(name: str, before: Any, after: Any) -> bool:
  """Returns whether the values of a field are the same for a run."""
  if name == "init_from":
    return pathlib.Path(before) == pathlib.Path(after)
  return before == after or name == "train.early_stopping_patience"


def _more_steps_hint(before: base.Train, after: base.Train) -> str:
  """Returns "" if more steps keep the learning rates of the first steps, else a hint for the error."""
  warmup = int(before.warmup_fraction * before.num_train_steps)
  if before.schedule != "constant":
    return "; only a run with config.train.schedule=constant can get more steps"
  if warmup == int(after.warmup_fraction * after.num_train_steps):
    return ""
  fraction = (warmup + 0.5) / after.num_train_steps if warmup else 0
  return f", or keep the warm-up of {warmup} steps with --config.train.warmup_fraction={fraction:.12g}"


def check_same_data(folder: pathlib.Path, *splits: str) -> base.Config:
  """Returns the config of a run, whose data files must not have changed since the run began.

  Args:
    folder: folder of the run.
    splits: splits whose files are checked, such as "test".

  Raises:
    WorkdirError: as `read_record`.
    DataError: if a file has changed, or cannot be read.
  """
  saved = read_record(folder)
  for name, digest in file_digests(saved.config, *splits).items():
    if digest != saved.data.get(name):
      raise DataError(f"config.{name}: the file has changed since the run in {folder} began")
  return saved.config


def file_digests(config: base.Config, *splits: str) -> dict[str, str]:
  """Returns the SHA-256 of data files, by config field.

  Args:
    config: config of the run.
    splits: splits whose files are read. Default: all.

  Raises:
    DataError: if a file cannot be read.
  """
  names = [f"{split}_file" for split in splits or ("train", "validation", "test")]
  paths = {f"data.{name}": getattr(config.data, name) for name in names}
  return {field: _sha256(path) for field, path in paths.items() if path}


def _sha256(path: str) -> str:
  if pathlib.Path(path).is_fifo():
    raise DataError(f"{path}: expected a file, got a pipe, which cannot be read twice")
  try:
    with open(path, "rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()
  except OSError as error:
    raise DataError(f"{path}: cannot read the file: {error.strerror}") from error


def language_digest(languages: Languages) -> str:
  """Returns a SHA-256 of the vocabularies and tokenizers of both languages."""
  digest = hashlib.sha256()
  for language in languages:
    tokenizer = type(language.tokenizer).__qualname__
    text = json.dumps([language.vocabulary.words, tokenizer, language.lowercase])
    digest.update(text.encode("utf-8"))
    if isinstance(language.tokenizer, SubwordTokenizer):
      digest.update(language.tokenizer.model)
  return digest.hexdigest()


def make_run_task(folder: pathlib.Path, record: Record) -> Task:
  """Returns the task of a run, with the languages of the run.

  Raises:
    WorkdirError: if the languages have changed since the run began.
  """
  task = make_task(record.config, read_languages(folder, record.config.data))
  if language_digest((task.source, task.target)) != record.languages:
    raise WorkdirError(f"{folder}: the vocabularies or tokenizers are not those with which the run began")
  return task


def read_languages(folder: pathlib.Path, data: base.Data) -> Languages:
  """Returns the languages of a run.

  Raises:
    WorkdirError: if a file is missing or invalid.
  """
  try:
    source, target = (
      TextProcessor.load(folder, side, tokenization=data.tokenization, lowercase=data.lowercase)
      for side in SIDES
    )
  except FileNotFoundError as error:
    raise WorkdirError(f"{folder}: the vocabulary of the run is missing ({error.filename})") from error
  except ValueError as error:
    raise WorkdirError(str(error)) from error
  return source, target


def write_languages(folder: pathlib.Path, languages: Languages) -> None:
  """Writes the languages of a run."""
  for language, side in zip(languages, SIDES, strict=True):
    language.save(folder, side)


def inherited_languages(config: base.Config) -> Languages:
  """Returns the languages of the run `config.init_from`.

  Raises:
    WorkdirError: if the folder has no run.
    ConfigError: if its tokenization differs from the config.
  """
  folder = pathlib.Path(config.init_from)
  record = read_record(folder)
  for name in _LANGUAGE_FIELDS:
    before, after = getattr(record.config.data, name), getattr(config.data, name)
    if before != after:
      raise ConfigError(
        f"config.data.{name} must be {before!r}, as in config.init_from={folder}, whose vocabularies are "
        f"used, got {after!r}"
      )
  task = make_run_task(folder, record)
  return task.source, task.target


def write_record(folder: pathlib.Path, record: Record) -> None:
  """Writes a record. It must be the last file of a new run, because it marks the folder as a run."""
  workdir.write_json(folder / workdir.RECORD, record.as_json())


def write_run(folder: pathlib.Path, record: Record, languages: Languages) -> None:
  """Writes the languages and record of a new run, or the allowed changes to the config of an existing run."""
  if not workdir.has_run(folder):
    write_languages(folder, languages)
  else:
    saved = read_record(folder)
    if saved == record:
      return
    if saved.config.train != record.config.train:
      workdir.keep_results(folder)
  write_record(folder, record)
