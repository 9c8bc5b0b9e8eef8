"""Restoring translators and parameters from the folder of a run."""

import dataclasses
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

import attention
from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.data.task import SIDES, Task
from experiments.devices.sharding import fetch_local, make_mesh
from experiments.inference.translator import Translator, make_translator
from experiments.learning.model import make_task_model
from experiments.learning.step import TrainSpec, TrainState, abstract_state, eval_params, make_train_spec
from experiments.runs.checkpoints import Checkpoints, open_checkpoints
from experiments.runs.record import Record, make_run_task, read_config, read_record
from experiments.runs.validation import validate
from experiments.runs.workdir import WorkdirError


class KeptCheckpoints(NamedTuple):
  """Parameters of several checkpoints of a run.

  Attributes:
    params: parameters for evaluation, by step, sorted.
    step: step of the checkpoint that the run uses for evaluation, or the last step if it averages
      checkpoints.
  """

  params: dict[int, Any]
  step: int


def load(
  folder: str | pathlib.Path,
  *,
  checkpoint: str | None = None,
  batch_size: int | None = None,
  decode_options: Mapping[str, Any] = MappingProxyType({}),
) -> Translator:
  """Returns the translator of a run.

  Args:
    folder: folder of the run.
    checkpoint: "best", "last" or "average". Default: from the config.
    batch_size: number of sentences per batch. Default: from the config.
    decode_options: fields of `DecodeOptions` that override the config.

  Raises:
    WorkdirError: if the folder has no run or no checkpoint.
    CheckpointError: if no checkpoint can be read.
    ConfigError: if an argument is invalid.
  """
  folder = pathlib.Path(folder)
  record = read_record(folder)
  config = record.config
  options: dict[str, Any] = {"checkpoint": checkpoint, "batch_size": batch_size}
  overrides = {name: value for name, value in options.items() if value is not None}
  config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, **overrides))
  validate(config)
  task, spec, params = _restore(record._replace(config=config), folder)
  return make_translator(config, task, spec.model, params, decode_options)


def load_ensemble(
  folders: Sequence[str | pathlib.Path],
  *,
  checkpoint: str | None = None,
  batch_size: int | None = None,
  decode_options: Mapping[str, Any] = MappingProxyType({}),
) -> Translator:
  """Returns an ensemble of the translators of several runs. It cannot `score`.

  Args:
    folders: folders of runs with the same vocabularies. Options of decoding come from the first one.
    checkpoint: as in `load`.
    batch_size: as in `load`.
    decode_options: as in `load`.

  Raises:
    WorkdirError: as in `load`, or if the vocabularies differ.
    CheckpointError: as in `load`.
    ConfigError: as in `load`.
  """
  if isinstance(folders, (str, os.PathLike)) or not folders:
    raise WorkdirError(f"folders must be a list of at least one folder, got {folders!r}")
  options: dict[str, Any] = {
    "checkpoint": checkpoint,
    "batch_size": batch_size,
    "decode_options": decode_options,
  }
  first, *rest = members = [load(folder, **options) for folder in folders]
  for folder, member in zip(folders[1:], rest, strict=True):
    if any(getattr(member.task, side).vocabulary != getattr(first.task, side).vocabulary for side in SIDES):
      raise WorkdirError(
        "runs of an ensemble must have the same vocabularies, "
        f"got different ones in {folders[0]} and {folder}"
      )
  if not rest:
    return first
  models: Any = [member.model for member in members]
  model = attention.Ensemble(tuple(models))
  params = [member.params for member in members]
  return Translator(
    first.task, model, params, batch_size=first.batch_size, decode_options=first.decode_options
  )


def check_warm_start(config: base.Config, spec: TrainSpec) -> None:
  """Checks that a run can start with the parameters of `config.init_from`.

  Raises:
    WorkdirError: if no parameter of that run fits the model.
    ConfigError: if its parameters have another meaning in the model.
  """
  source_model = read_config(pathlib.Path(config.init_from)).model
  for name in ("attend_order", "input_feeding", "position_encoding"):
    expected, value = getattr(source_model, name), getattr(config.model, name)
    if expected != value:
      raise ConfigError(
        f"config.model.{name} must be {expected!r}, as in config.init_from={config.init_from}, got {value!r}"
      )
  _matching_params(abstract_state(spec).params, pathlib.Path(config.init_from))


def warm_start(state: TrainState, folder: pathlib.Path) -> tuple[TrainState, str]:
  """Initializes a state with the parameters of another run that have the same names and shapes.

  If a vocabulary has more words than that of the other run, the first rows or columns are initialized.

  Args:
    state: state before the first step.
    folder: folder of the other run.

  Returns:
    The state, and a line that describes which parameters were loaded.

  Raises:
    WorkdirError: if the folder has no run, or no parameter fits.
  """
  matches = _matching_params(state.params, folder)
  names = [jax.tree_util.keystr(path, simple=True, separator="/") for path in matches]
  missing = [name for name, array in zip(names, matches.values(), strict=True) if array is None]

  def copy_params() -> Any:
    """Returns new arrays on each call, because a training step donates them."""
    leaves, structure = jax.tree.flatten(state.params)
    pairs = zip(leaves, matches.values(), strict=True)
    arrays = [leaf + 0 if array is None else _filled(leaf, array) for leaf, array in pairs]
    return jax.tree.unflatten(structure, arrays)

  state = state._replace(params=copy_params(), average=None if state.average is None else copy_params())
  text = f"loaded {len(names) - len(missing)} of {len(names)} arrays from {folder}"
  return state, text + (f"; not loaded: {', '.join(missing)}" if missing else "")


def _matching_params(params: Any, folder: pathlib.Path) -> dict[Any, jax.Array | None]:
  """Returns for each path of `params` the parameter of a run with the same name and shape, or None."""
  task, _, run_params = _restore(read_record(folder), folder)
  sizes = {len(language.vocabulary) for language in (task.source, task.target)}
  by_path = dict(jax.tree_util.tree_leaves_with_path(run_params))
  matches = {
    path: by_path[path] if path in by_path and _fits(by_path[path].shape, leaf.shape, sizes) else None
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  }
  if all(array is None for array in matches.values()):
    raise WorkdirError(f"config.init_from={folder}: no array of that run fits the model")
  return matches


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...], vocabulary_sizes: Collection[int]) -> bool:
  """Returns whether an array has the wanted shape, or fewer words along one axis."""
  if len(shape) != len(wanted):
    return False
  different = [(size, other) for size, other in zip(shape, wanted, strict=True) if size != other]
  return not different or (
    len(different) == 1 and different[0][0] in vocabulary_sizes and different[0][0] < different[0][1]
  )


def _filled(leaf: jax.Array, array: jax.Array) -> jax.Array:
  """Returns an array with the sharding and shape of a leaf, whose values stay where the array has none."""
  if leaf.shape != array.shape:
    filled = leaf.at[tuple(map(slice, array.shape))].set(np.array(array, leaf.dtype))
    return jax.device_put(filled, leaf.sharding)
  values = np.array(array, leaf.dtype)  # a copy, because JAX may alias a NumPy array
  return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: values[index])


def _restore(record: Record, folder: pathlib.Path) -> tuple[Task, TrainSpec, Any]:
  """Returns the task, the training spec and the parameters for evaluation of a run."""
  task, spec = _make_task_and_spec(record, folder)
  checkpoints = open_checkpoints(record.config, folder)
  if checkpoints.latest_step() is None:
    raise WorkdirError(f"{folder}: no complete checkpoint yet; train with --workdir={folder}")
  return task, spec, select_params(record.config, checkpoints, spec)


def _make_task_and_spec(record: Record, folder: pathlib.Path) -> tuple[Task, TrainSpec]:
  """Returns the task of a run, with the vocabularies of the run, and its training spec."""
  config = record.config
  task = make_run_task(folder, record)
  return task, make_train_spec(config, make_task_model(config, task), make_mesh())


def kept_params(folder: pathlib.Path, steps: Sequence[int] = ()) -> KeptCheckpoints:
  """Returns the parameters of several checkpoints of a run.

  Args:
    folder: folder of the run.
    steps: steps of the checkpoints. Default: all kept checkpoints.

  Raises:
    WorkdirError: if there is no checkpoint, or one of `steps` cannot be used.
    CheckpointError: if a checkpoint of `steps` does not exist, or cannot be read.
  """
  record = read_record(folder)
  config = record.config
  _, spec = _make_task_and_spec(record, folder)
  checkpoints = open_checkpoints(config, folder)
  best, last = checkpoints.best_step(), checkpoints.latest_step()
  if best is None or last is None:
    raise WorkdirError(f"{folder}: no complete checkpoint yet; train with --workdir={folder}")
  params = _restore_params(checkpoints, spec, sorted({*(steps or [*checkpoints.newest_steps(), best])}))
  if damaged := sorted({*steps} - params.keys()):
    raise WorkdirError(f"{folder}: the checkpoint of step {damaged[0]} cannot be used")
  step = best if config.evaluation.checkpoint == "best" else last
  return KeptCheckpoints(params, step if step in params else max(params))


def select_params(config: base.Config, checkpoints: Checkpoints, spec: TrainSpec) -> Any:
  """Returns the parameters for evaluation: the best or last checkpoint, or the average of the newest ones."""
  choice = config.evaluation.checkpoint
  steps: list[Any] = checkpoints.newest_steps() or ["last"] if choice == "average" else [choice]
  first, *rest = _restore_params(checkpoints, spec, steps).values()
  if not rest:
    return first
  return jax.tree.map(lambda *leaves: sum(leaves) / np.float32(len(leaves)), first, *rest)


def _restore_params(checkpoints: Checkpoints, spec: TrainSpec, steps: Sequence[Any]) -> dict[int, Any]:
  """Returns parameters for evaluation by step. For damaged checkpoints, see `Checkpoints.restore`."""
  params = {}
  target = abstract_state(spec)
  for step in steps:
    restored = checkpoints.restore(target, step)
    if restored is not None and restored.step not in params:
      params[restored.step] = fetch_local(eval_params(restored.state), spec.mesh)
  return params
