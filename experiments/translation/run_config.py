"""What a folder holds of the config of its run."""

import dataclasses
import pathlib
import sys

from configs import base
from experiments import tasks
from experiments.cli import config_fields, plugins
from experiments.cli.config_fields import ConfigError
from experiments.runs import provenance, workdir
from experiments.runs.workdir import WorkdirError
from experiments.translation.evaluate import metric_names
from experiments.translation.validation import validate

# The fields of `config.data` on which it depends what the tokens are.
_OF_LANGUAGES = ("task", "tokenization", "lowercase", "subword_model", "vocabulary_size", "min_count")


def read_config(folder: pathlib.Path) -> base.Config:
  """Returns the config of a run; custom parts that it names are not imported.

  Raises:
    WorkdirError: if the folder holds no run, or its config is not one of this version.
  """
  values, path = workdir.read_config(folder), folder / "config.json"
  try:
    config = config_fields.from_dict(base.Config, values)
    validate(config, imports=False)
    return config
  except ConfigError as error:
    raise WorkdirError(f"{path}: {error}") from error
  except (ValueError, OverflowError) as error:
    raise WorkdirError(f"{path}: not a config of this version: {error}") from error


def check_trusted(folder: pathlib.Path, config: base.Config) -> None:
  """Prints which custom parts of a run are imported, before they are.

  Raises:
    WorkdirError: if one is in a file that is not below the current folder, or is in that of the run, and
      --trust_workdir is not given.
  """
  for field, name in custom_components(config).items():
    paths: list[pathlib.Path | None] = [*plugins.imported_files(name)] or [None]
    for path in paths:
      if not plugins.is_trusted(path, folder):
        allowed = "in files below the current folder and outside the run's"
        got = f"got {path or 'none'}; --trust_workdir imports it anyway"
        raise WorkdirError(f"{folder}: config.{field}={name} must be {allowed}, {got}")
    print(f"{folder}: imports {', '.join(map(str, paths))} (config.{field})", file=sys.stderr, flush=True)


def describe_changes(folder: pathlib.Path, config: base.Config) -> str:
  """Returns a line about the files of `trained_parts` that are not what a run began with, or nothing."""
  # A file that is missing is an error of the field that names it, when it is imported.
  files = plugins.defining_files(trained_parts(config))
  files = {field: path for field, path in files.items() if pathlib.Path(path).exists()}
  launch, found = provenance.first_launch(folder), provenance.digests(files)
  changed = {files[field]: None for field in found if launch and found[field] != launch["data"].get(field)}
  return f"{', '.join(changed)}: changed since {folder} was trained" if changed else ""


def custom_components(config: base.Config) -> dict[str, str]:
  """Returns the fields of a config that name parts of a person's own, and the names."""
  values = config_fields.flat(config)
  parts = "model.encoder", "model.decoder", "model.attention", "model.normalizer"
  named = {name: values[name] for name in ("data.task", *parts)}
  for i, name in enumerate(metric_names(config.evaluation)):
    named[f"evaluation.custom_metrics[{i}]"] = name
  return {name: value for name, value in named.items() if plugins.is_plugin(value)}


def trained_parts(config: base.Config) -> dict[str, str]:
  """Returns the custom parts on which training depends: all but the metrics."""
  return {
    field: name for field, name in custom_components(config).items() if not field.startswith("evaluation.")
  }


def data_files(config: base.Config, *splits: str) -> dict[str, str]:
  """Returns the paths of files of sentences by their fields; empty for none."""
  names = [f"{split}_file" for split in splits or ("train", "validation", "test")]
  return {f"data.{name}": getattr(config.data, name) for name in names}


def check_same_config(folder: pathlib.Path, config: base.Config) -> None:
  """Raises WorkdirError if the folder holds a run with another config; it names the fields that differ.

  A run may be made longer if that leaves its learning rates as they were.
  """
  if not workdir.has_run(folder):
    workdir.check_nothing_left(folder)
    return
  began_with = read_config(folder)
  theirs, ours = config_fields.flat(began_with), config_fields.flat(config)
  differing = [
    name
    for name in ours
    if ours[name] != theirs[name] and not _is_moved(folder, name, theirs[name], ours[name])
  ]
  if not differing:
    return
  before, now, hint = began_with.train, config.train, ""
  if (
    set(differing) <= {"train.num_train_steps", "train.warmup_fraction"}
    and before.num_train_steps < now.num_train_steps
  ):
    warmup = int(before.warmup_fraction * before.num_train_steps)
    if before.schedule == "constant" and warmup == int(now.warmup_fraction * now.num_train_steps):
      return
    hint = "; only a run with config.train.schedule=constant can be made longer"
    if before.schedule == "constant":
      share = (warmup + 0.5) / now.num_train_steps if warmup else 0
      hint = f", or keep its warm-up of {warmup} steps: --config.train.warmup_fraction={share:.6g}"
  listed = ", ".join(f"{name} {theirs[name]!r} (here {ours[name]!r})" for name in differing)
  raise WorkdirError(f"{folder} holds a run with another config: {listed}; take another --workdir{hint}")


def _is_moved(folder: pathlib.Path, name: str, theirs: str, ours: str) -> bool:
  """Returns whether a field names what it did when the run began, in another place or with another name."""
  if name not in ("init_from", "data.train_file", "data.validation_file", "data.test_file") or not (
    theirs and ours
  ):
    return False
  if name == "init_from":
    return pathlib.Path(theirs) == pathlib.Path(ours)
  launch = provenance.first_launch(folder)
  return launch is not None and provenance.digests({name: ours})[name] == launch["data"].get(name)


def inherited_languages(config: base.Config) -> tasks.Languages | None:
  """Returns the languages of the run that `config.init_from` names; None if it names none.

  Raises:
    WorkdirError: if there is no run.
    ConfigError: if its text is cut into tokens in another way.
  """
  if not config.init_from:
    return None
  folder = pathlib.Path(config.init_from)
  theirs, ours = config_fields.flat(read_config(folder)), config_fields.flat(config)
  for name in (f"data.{field}" for field in _OF_LANGUAGES):
    if ours[name] != theirs[name]:
      allowed = f"{theirs[name]!r}, as in config.init_from={folder}, whose vocabularies are taken"
      raise ConfigError(f"config.{name} must be {allowed}, got {ours[name]!r}")
  return tasks.read_languages(folder, config.data)


def write_run(folder: pathlib.Path, config: base.Config, languages: tasks.Languages) -> None:
  """Writes what a run begins with; of one that is there, what `check_same_config` lets change."""
  if not workdir.has_run(folder):
    tasks.write_languages(folder, languages)
    workdir.write_config(folder, dataclasses.asdict(config))
    return
  began_with = read_config(folder)
  if began_with.train.num_train_steps != config.train.num_train_steps:
    workdir.keep_results(folder, f"{began_with.train.num_train_steps}_steps")
  if began_with != config:
    workdir.write_config(folder, dataclasses.asdict(config))
