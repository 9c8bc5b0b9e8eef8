"""What a run begins with: all checks, then its folder, locked."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

import attention
from configs import base
from experiments.commands import own
from experiments.commands.fields import ConfigError
from experiments.commands.mistakes import Mistake
from experiments.runs import provenance, workdir
from experiments.runs.devices import check_shares, make_mesh
from experiments.runs.locks import workdir_lock
from experiments.runs.processes import begin_together, is_main
from experiments.tasks import Task, make_task, read_languages, words_of
from experiments.translation.evaluate import evaluate, own_metrics
from experiments.translation.loading import check_beginning
from experiments.translation.memory import check_memory
from experiments.translation.model import make_task_model
from experiments.translation.settings import (
  check_same_config,
  inherited_languages,
  own_parts,
  write_run,
)
from experiments.translation.step import abstract_state, make_recipe, make_rngs, train_step
from experiments.translation.translator import make_translator
from experiments.translation.validation import validate


class Launch(NamedTuple):
  """How a run is carried out: what may be another way each time that it goes on.

  Attributes:
    parameter_shards: into how many parts parameters are cut; all other devices share the batch.
    profile: the first and the last step of which a profile is recorded; None for no profile.
  """

  parameter_shards: int = 1
  profile: tuple[int, int] | None = None


ALONE = Launch()


@contextlib.contextmanager
def opened(config: base.Config, folder: pathlib.Path, launch: Launch) -> Iterator[Task]:
  """Gives the task of a run; its folder is made, and locked, once every mistake that can be seen has been.

  If there are several processes, they begin together or not at all.
  """
  check_shares()  # first: where it fails, processes cannot even tell each other
  with contextlib.ExitStack() as exits:
    try:
      task, description = _checked(config, folder, launch)
      if is_main():
        exits.enter_context(workdir_lock(folder))
        check_same_config(folder, config)  # another trainer may have been faster
    except Exception as error:  # to be told here, when the others have been
      begin_together(None, error)
      raise
    begin_together(_shared_settings(config, folder, launch, task, description), None)
    if is_main():
      provenance.record_launch(folder, description)
      write_run(folder, config, (task.source, task.target))
      exits.enter_context(workdir.told_if_deleted(folder))
    yield task


def _checked(config: base.Config, folder: pathlib.Path, launch: Launch) -> tuple[Task, dict[str, Any]]:
  """Returns the task and what describes this start, after all checks that need no lock."""
  validate(config)
  make_mesh(launch.parameter_shards)
  if config.init_from and pathlib.Path(config.init_from).resolve() == folder.resolve():
    raise ConfigError(f"config.init_from must be another run, got the run's own --workdir={folder}")
  check_same_config(folder, config)
  workdir.check_nothing_lost(folder)
  data = config.data
  files = [data.train, data.validation, data.test, *own.files(own_parts(config).values())]
  description = provenance.describe_launch(provenance.digests(files))
  provenance.check_same_data(folder, description["data"])
  task = make_task(config, read_languages(folder, config.data) or inherited_languages(config))
  provenance.check_same_words(folder, words_of(task))
  description["vocabularies"] = provenance.digest_of(words_of(task))
  if own_parts(config):
    _try_own_parts(config, task)
  else:  # a custom part may use memory, and `train.batch_size`, in another way
    recipe = make_recipe(config, make_task_model(config, task), make_mesh(launch.parameter_shards))
    check_memory(config, task, recipe)
  if config.init_from and not workdir.holds_run(folder):
    check_beginning(config, task)
  task.training_batch(0)
  for split in (task.watched, *task.splits):
    task.examples(split, 1)
  return task, description


def _try_own_parts(config: base.Config, task: Task) -> None:
  """Raises ConfigError if a person's own parts do not do what a run will ask of them."""
  names = ", ".join(f"config.{name}={value}" for name, value in own_parts(config).items())
  try:
    model = make_task_model(config, task)
    hash(model)  # for it is a constant of compiled programs
    words = np.ones((1, 2), np.int32)
    params = jax.jit(model.init)(make_rngs(config.seed).params, words, words[:, 0], words)["params"]
    _check_ignores_padding(model, params, task.training_batch(0).sources.shape[1])
    translator = make_translator(config, task, model, params, {"beam_size": 1})
    for split in dict.fromkeys((task.watched, *task.splits)):
      evaluate(translator, task.examples(split, 2), own_metrics(config.evaluation))
    recipe, rngs = make_recipe(config, model, make_mesh()), make_rngs(config.seed)
    step = functools.partial(train_step, recipe=recipe)
    jax.eval_shape(step, abstract_state(recipe), task.training_batch(0), rngs.dropout)
  except Mistake:
    raise
  except Exception as error:  # whatever a person's file may raise
    raise ConfigError(f"{names}: {own.told(error)}") from error


def _check_ignores_padding(model: attention.Seq2Seq, params: Any, width: int) -> None:
  """Raises ValueError if a translation depends on whether its source is padded to a width."""
  words, length = np.ones((1, 3), np.int32), np.full(1, 3, np.int32)
  apply = jax.jit(model.apply)
  alone, padded = (
    apply({"params": params}, np.pad(words, ((0, 0), (0, count))), length, words)[0]
    for count in (0, max(width - 3, 1))
  )
  if not np.allclose(alone, padded, rtol=0, atol=1e-3):
    raise ValueError(
      "what stands at padding must not change the logits, "
      f"got a change of up to {np.max(np.abs(alone - padded)):.2g}; is a mask or a length left out?"
    )


def _shared_settings(
  config: base.Config, folder: pathlib.Path, launch: Launch, task: Task, description: dict[str, Any]
) -> list[Any]:
  """Returns what must be the same in all processes."""
  versions, digests = (description["versions"], description["commit"]), list(description["data"].values())
  place = str(folder.resolve())
  return [dataclasses.asdict(config), place, digests, words_of(task), versions, launch.parameter_shards]
