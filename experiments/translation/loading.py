"""From a run's folder to its translator."""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from configs import base
from experiments.runs import provenance
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.devices import local_copy, make_mesh
from experiments.runs.workdir import WorkdirError
from experiments.tasks import make_task, read_languages
from experiments.translation.metrics import HIGHER_IS_BETTER
from experiments.translation.model import make_task_model
from experiments.translation.opening import words_of
from experiments.translation.settings import read_config, told_defaults
from experiments.translation.step import Recipe, abstract_state, make_recipe, translating_params
from experiments.translation.translator import Translator, make_translator


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
    checkpoint: "best" or "last"; None for the config's.
    batch_size: sentences translated at once; None for the config's.
    search: fields of `Search` that are to be others than the config's.

  Raises:
    WorkdirError: if there is none.
    CheckpointError: if it cannot be read.
  """
  folder = pathlib.Path(folder)
  config = read_config(folder)
  if line := told_defaults(folder):
    print(line, file=sys.stderr, flush=True)
  options: dict[str, Any] = {"checkpoint": checkpoint, "batch_size": batch_size}
  given = {name: value for name, value in options.items() if value is not None}
  config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, **given))
  task = make_task(config, read_languages(folder, config.data))
  provenance.check_same_words(folder, words_of(task))
  recipe = make_recipe(config, make_task_model(config, task), make_mesh())
  with open_checkpoints(config, folder) as checkpoints:
    if checkpoints.latest_step() is None:
      raise WorkdirError(f"{folder} holds no checkpoint yet; train with --workdir={folder}")
    params = chosen_params(config, checkpoints, recipe)
  return make_translator(config, task, recipe.model, params, search)


def open_checkpoints(config: base.Config, folder: pathlib.Path) -> Checkpoints:
  """Returns the checkpoints of a run, a context manager."""
  return Checkpoints(folder / "checkpoints", higher_is_better=HIGHER_IS_BETTER[config.train.metric])


def chosen_params(config: base.Config, checkpoints: Checkpoints, recipe: Recipe) -> Any:
  """Returns the parameters to translate with, of the best or of the last checkpoint."""
  step = checkpoints.best_step() if config.evaluation.checkpoint == "best" else checkpoints.latest_step()
  restored = checkpoints.restore(abstract_state(recipe), step)
  if restored is None:
    raise WorkdirError("there is no checkpoint to translate with")
  return local_copy(translating_params(restored.state), recipe.mesh)
