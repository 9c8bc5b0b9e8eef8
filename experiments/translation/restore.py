"""From a run's folder to its translator."""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

import attention
from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.runs import provenance
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.sharding import fetch_local, make_mesh
from experiments.runs.workdir import WorkdirError
from experiments.tasks import Task, make_task, read_languages, vocabulary_words
from experiments.translation.metrics import HIGHER_IS_BETTER
from experiments.translation.model import make_task_model
from experiments.translation.run_config import check_trusted, describe_changes, read_config
from experiments.translation.step import TrainSpec, TrainState, abstract_state, eval_params, make_train_spec
from experiments.translation.translator import Translator, make_translator
from experiments.translation.validation import validate


class KeptCheckpoints(NamedTuple):
  """Some checkpoints of a run.

  Attributes:
    params: the parameters to translate with, by their steps, in order.
    step: of the checkpoint that the run translates with; the last one, if that is a mean of several.
  """

  params: dict[int, Any]
  step: int


def load(
  folder: str | pathlib.Path,
  *,
  checkpoint: str | None = None,
  batch_size: int | None = None,
  search: Mapping[str, Any] = MappingProxyType({}),
) -> Translator:
  """Returns the translator of one of a run's checkpoints.

  Args:
    folder: the workdir.
    checkpoint: "best", "last" or "average"; None for the config's.
    batch_size: sentences translated at once; None for the config's.
    search: fields of `DecodeOptions` that are to be others than the config's.

  Raises:
    WorkdirError: if there is none.
    CheckpointError: if it cannot be read.
    ConfigError: if an argument is none of these.
  """
  folder = pathlib.Path(folder)
  config = read_config(folder)
  if changes := describe_changes(folder, config):
    print(changes, file=sys.stderr, flush=True)
  options: dict[str, Any] = {"checkpoint": checkpoint, "batch_size": batch_size}
  given = {name: value for name, value in options.items() if value is not None}
  config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, **given))
  check_trusted(folder, config)
  validate(config)
  task, spec, params = _restore(config, folder)
  return make_translator(config, task, spec.model, params, search)


def load_ensemble(
  folders: Sequence[str | pathlib.Path],
  *,
  checkpoint: str | None = None,
  batch_size: int | None = None,
  search: Mapping[str, Any] = MappingProxyType({}),
) -> Translator:
  """Returns a translator that is the mean of those of some runs; it translates, and cannot `score`.

  Args:
    folders: the workdirs, of runs with the same vocabularies; the first one's search is taken.
    checkpoint, batch_size, search: as in `load`.

  Raises:
    WorkdirError, CheckpointError: as in `load`; also if the vocabularies are others.
  """
  if isinstance(folders, (str, os.PathLike)) or not folders:
    raise WorkdirError(f"folders must be a list of workdirs, at least one, got {folders!r}")
  options: dict[str, Any] = {"checkpoint": checkpoint, "batch_size": batch_size, "search": search}
  first, *others = members = [load(folder, **options) for folder in folders]
  for folder, other in zip(folders[1:], others, strict=True):
    if vocabulary_words(other.task) != vocabulary_words(first.task):
      raise WorkdirError(f"{folder} has other vocabularies than {folders[0]}: they cannot translate as one")
  if not others:
    return first
  models: Any = [member.model for member in members]
  model = attention.Ensemble(tuple(models))
  params = [member.params for member in members]
  return Translator(first.task, model, params, batch_size=first.batch_size, search=first.search)


def check_warm_start(config: base.Config, spec: TrainSpec) -> None:
  """Checks that a run may begin with the parameters of the one that `config.init_from` names.

  Raises:
    WorkdirError: if that has no parameter for the config's model.
    ConfigError: if its arrays have the shapes of the config's, and another meaning.
  """
  theirs = read_config(pathlib.Path(config.init_from)).model
  for name in ("attend_order", "input_feeding", "position_encoding"):
    wanted, got = getattr(theirs, name), getattr(config.model, name)
    if wanted != got:
      raise ConfigError(
        f"config.model.{name} must be {wanted!r}, as in config.init_from={config.init_from}, whose arrays "
        f"mean something else otherwise, got {got!r}"
      )
  _fitting(abstract_state(spec).params, pathlib.Path(config.init_from))


def warm_start(state: TrainState, folder: pathlib.Path) -> tuple[TrainState, str]:
  """Returns a state with those parameters of another run that it has, and a line that says which.

  Args:
    state: before the first step.
    folder: of the other run.

  Raises:
    WorkdirError: if there is none, or none of its arrays fits.
  """
  theirs = _fitting(state.params, folder)
  names = [jax.tree_util.keystr(path, simple=True, separator="/") for path in theirs]
  new = [name for name, array in zip(names, theirs.values(), strict=True) if array is None]

  def taken() -> Any:
    """Returns new arrays at each call: a step uses their memory again."""
    leaves, structure = jax.tree.flatten(state.params)
    pairs = zip(leaves, theirs.values(), strict=True)
    found = [leaf + 0 if array is None else _placed_like(leaf, array) for leaf, array in pairs]
    return jax.tree.unflatten(structure, found)

  state = state._replace(params=taken(), average=None if state.average is None else taken())
  text = f"{len(names) - len(new)} of {len(names)} arrays are those of {folder}"
  return state, text + (f"; new are {', '.join(new)}" if new else "")


def _fitting(params: Any, folder: pathlib.Path) -> dict[Any, jax.Array | None]:
  """Returns, for each parameter by its path, that of a run with the same name and shape, or None."""
  config = read_config(folder)
  check_trusted(folder, config)
  _, _, theirs = _restore(config, folder)
  there = dict(jax.tree_util.tree_leaves_with_path(theirs))
  found = {
    path: there[path] if path in there and there[path].shape == leaf.shape else None
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  }
  if all(array is None for array in found.values()):
    raise WorkdirError(f"config.init_from={folder}: none of its arrays has a name and shape of this model")
  return found


def _placed_like(leaf: jax.Array, array: jax.Array) -> jax.Array:
  """Returns an array on the devices of another, in parts as it is."""
  values = np.array(array, leaf.dtype)  # a copy: JAX may use a NumPy array's memory as it is
  return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: values[index])


def _restore(config: base.Config, folder: pathlib.Path) -> tuple[Task, TrainSpec, Any]:
  """Returns the task of a run, what its steps do, and the parameters that it translates with."""
  task, spec = _prepared(config, folder)
  with open_checkpoints(config, folder) as checkpoints:
    if checkpoints.latest_step() is None:
      raise WorkdirError(f"{folder} holds no checkpoint yet; train with --workdir={folder}")
    return task, spec, select_params(config, checkpoints, spec)


def _prepared(config: base.Config, folder: pathlib.Path) -> tuple[Task, TrainSpec]:
  """Returns the task of a run, with its own words, and what its steps do."""
  task = make_task(config, read_languages(folder, config.data))
  provenance.check_same_vocabularies(folder, vocabulary_words(task))
  return task, make_train_spec(config, make_task_model(config, task), make_mesh())


def kept_params(folder: pathlib.Path, steps: Sequence[int] = ()) -> KeptCheckpoints:
  """Returns the parameters to translate with of several checkpoints of a run.

  Args:
    folder: the workdir.
    steps: which ones; none for all that the run keeps.

  Raises:
    WorkdirError: if there is none, or one of `steps` is damaged.
    CheckpointError: if there is none of a step, or it cannot be read.
  """
  config = read_config(folder)
  check_trusted(folder, config)
  _, spec = _prepared(config, folder)
  with open_checkpoints(config, folder) as checkpoints:
    best, last = checkpoints.best_step(), checkpoints.latest_step()
    if best is None or last is None:
      raise WorkdirError(f"{folder} holds no checkpoint yet; train with --workdir={folder}")
    params = _restored(checkpoints, spec, sorted({*(steps or [*checkpoints.newest_steps(), best])}))
  if damaged := sorted({*steps} - params.keys()):
    raise WorkdirError(f"{folder}: the checkpoint of step {damaged[0]} is damaged")
  return KeptCheckpoints(params, best if config.evaluation.checkpoint == "best" else last)


def open_checkpoints(config: base.Config, folder: pathlib.Path, *, read_only: bool = True) -> Checkpoints:
  """Returns the checkpoints of a run, a context manager."""
  better = HIGHER_IS_BETTER[config.train.best_metric]
  return Checkpoints(
    folder / "checkpoints", higher_is_better=better, keep=config.train.max_to_keep, read_only=read_only
  )


def select_params(config: base.Config, checkpoints: Checkpoints, spec: TrainSpec) -> Any:
  """Returns the parameters to translate with: of the best or last checkpoint, or the mean of the newest."""
  best, last = checkpoints.best_step(), checkpoints.latest_step()
  if best is None or last is None:
    raise WorkdirError("there is no checkpoint to translate with")
  steps = {"best": [best], "last": [last], "average": checkpoints.newest_steps() or [last]}
  first, *others = _restored(checkpoints, spec, steps[config.evaluation.checkpoint]).values()
  if not others:
    return first
  return jax.tree.map(lambda *leaves: sum(leaves) / np.float32(len(leaves)), first, *others)


def _restored(checkpoints: Checkpoints, spec: TrainSpec, steps: Sequence[int]) -> dict[int, Any]:
  """Returns the parameters to translate with, by their steps; another's instead of a damaged one."""
  found = {}
  like = abstract_state(spec)
  for step in steps:
    restored = checkpoints.restore(like, step)
    if restored is not None and restored.step not in found:
      found[restored.step] = fetch_local(eval_params(restored.state), spec.mesh)
  return found
