"""The config of a run: reading, writing, checks and custom components."""

import dataclasses
import pathlib
import sys

from configs import base
from experiments.cli import components, config_fields
from experiments.cli.config_fields import ConfigError
from experiments.data.task import SIDES, Languages
from experiments.data.text_processor import TextProcessor
from experiments.runs import provenance, workdir
from experiments.runs.validation import validate
from experiments.runs.workdir import WorkdirError

# Fields of `config.data` that determine the tokens.
_LANGUAGE_FIELDS = ("task", "tokenization", "lowercase", "subword_model", "vocabulary_size", "min_count")


def read_config(folder: pathlib.Path) -> base.Config:
  """Reads the config of a run. Custom components are not imported.

  Raises:
    WorkdirError: if the folder has no run, its config is invalid in this version, or Python would look for a
      custom component in the folder.
  """
  values, path = workdir.read_config(folder), folder / "config.json"
  try:
    config = config_fields.from_dict(base.Config, values)
    validate(config, imports=False)
  except ConfigError as error:
    raise WorkdirError(f"{path}: {error}") from error
  except (ValueError, OverflowError) as error:
    raise WorkdirError(f"{path}: invalid config for this version: {error}") from error
  check_not_imported_from(folder, config)
  return config


def check_not_imported_from(folder: pathlib.Path, config: base.Config) -> None:
  """Raises WorkdirError if Python would look for a custom component in the folder of a run.

  A run may come from others, so nothing in its folder is ever imported.
  """
  for field, name in components.custom_components(config):
    module = name.partition(":")[0].replace(".", "/")
    places = [pathlib.Path(entry, module + suffix) for entry in sys.path for suffix in ("", ".py")]
    if any(place.resolve().is_relative_to(folder.resolve()) for place in places):
      raise WorkdirError(
        f"{folder}: config.{field}={name} must be outside this folder, from which nothing is imported"
      )


def data_files(config: base.Config, *splits: str) -> dict[str, str]:
  """Returns the paths of data files by config field. A path is empty if there is no file."""
  names = [f"{split}_file" for split in splits or ("train", "validation", "test")]
  return {f"data.{name}": getattr(config.data, name) for name in names}


def check_same_config(folder: pathlib.Path, config: base.Config) -> None:
  """Raises WorkdirError if the folder has a run with a different config. The error lists the fields.

  A run may get more steps if that does not change the learning rates of its first steps, and another
  patience.
  """
  if not workdir.has_run(folder):
    workdir.check_no_leftovers(folder)
    return
  run_config = read_config(folder)
  run_values, values = config_fields.flat(run_config), config_fields.flat(config)
  different = [
    name
    for name in values
    if name != "train.early_stopping_patience"
    and values[name] != run_values[name]
    and not _is_same_file(folder, name, run_values[name], values[name])
  ]
  if not different:
    return
  before, after, hint = run_config.train, config.train, ""
  if (
    set(different) <= {"train.num_train_steps", "train.warmup_fraction"}
    and before.num_train_steps < after.num_train_steps
  ):
    warmup = int(before.warmup_fraction * before.num_train_steps)
    if before.schedule == "constant" and warmup == int(after.warmup_fraction * after.num_train_steps):
      return
    hint = "; only a run with config.train.schedule=constant can get more steps"
    if before.schedule == "constant":
      fraction = (warmup + 0.5) / after.num_train_steps if warmup else 0
      hint = f", or keep the warm-up of {warmup} steps with --config.train.warmup_fraction={fraction:.6g}"
  listed = ", ".join(f"{name} {run_values[name]!r} (now {values[name]!r})" for name in different)
  raise WorkdirError(f"{folder} has a run with a different config: {listed}; pass another --workdir{hint}")


def _is_same_file(folder: pathlib.Path, name: str, run_value: str, value: str) -> bool:
  """Returns whether a field names the same file or run as when the run began, under another path."""
  path_fields = "init_from", "data.train_file", "data.validation_file", "data.test_file"
  if name not in path_fields or not (run_value and value):
    return False
  if name == "init_from":
    return pathlib.Path(run_value) == pathlib.Path(value)
  launch = provenance.first_launch(folder)
  return launch is not None and provenance.digests({name: value})[name] == launch["data"].get(name)


def inherited_languages(config: base.Config) -> Languages | None:
  """Returns the languages of the run `config.init_from`, or None if it is not set.

  Raises:
    WorkdirError: if the folder has no run.
    ConfigError: if its tokenization differs from the config.
  """
  if not config.init_from:
    return None
  folder = pathlib.Path(config.init_from)
  run_values, values = config_fields.flat(read_config(folder)), config_fields.flat(config)
  for name in (f"data.{field}" for field in _LANGUAGE_FIELDS):
    if values[name] != run_values[name]:
      raise ConfigError(
        f"config.{name} must be {run_values[name]!r}, as in config.init_from={folder}, whose vocabularies "
        f"are used, got {values[name]!r}"
      )
  return read_languages(folder, config.data)


def read_languages(folder: pathlib.Path, data: base.Data) -> Languages | None:
  """Returns the languages of a run, or None if the folder has no run.

  Args:
    folder: folder of the run.
    data: data config of the run.

  Raises:
    WorkdirError: if a file is missing or invalid.
  """
  if not workdir.has_run(folder):
    return None
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


def write_run(folder: pathlib.Path, config: base.Config, languages: Languages) -> None:
  """Writes the config and languages of a new run, or the allowed changes to the config of an existing run."""
  if not workdir.has_run(folder):
    write_languages(folder, languages)
    workdir.write_config(folder, dataclasses.asdict(config))
    return
  run_config = read_config(folder)
  if run_config.train != config.train:
    workdir.keep_results(folder)
  if run_config != config:
    workdir.write_config(folder, dataclasses.asdict(config))
