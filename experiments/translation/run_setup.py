"""The start of a run: all checks, then its folder, locked."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import attention
from configs import base
from experiments.cli import plugins
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import Mistake
from experiments.runs import provenance, workdir
from experiments.runs.multihost import begin_together, is_main
from experiments.runs.sharding import check_shares, make_mesh, own_rows, place_batch
from experiments.tasks import Task, make_task, read_languages, words_of
from experiments.translation.evaluate import evaluate, own_metrics
from experiments.translation.model import make_task_model
from experiments.translation.restore import check_beginning
from experiments.translation.run_config import (
  check_same_config,
  data_files,
  inherited_languages,
  own_parts,
  trained_parts,
  write_run,
)
from experiments.translation.step import Recipe, abstract_state, make_recipe, make_rngs, train_step
from experiments.translation.translator import make_translator
from experiments.translation.validation import validate


@contextlib.contextmanager
def open_run(
  config: base.Config, folder: pathlib.Path, parameter_shards: int
) -> Iterator[tuple[Task, Recipe]]:
  """Yields the task and the training recipe of a run whose folder is locked until the block ends.

  The folder is created after all checks. Several processes start together or not at all.
  """
  check_shares()
  with contextlib.ExitStack() as exits:
    try:
      validate(config)
      if config.init_from and pathlib.Path(config.init_from).resolve() == folder.resolve():
        raise ConfigError(f"config.init_from must be another run, got the run's own --workdir={folder}")
      check_same_config(folder, config)
      workdir.check_nothing_lost(folder)
      files = data_files(config) | plugins.files(trained_parts(config))
      data = provenance.digests(files)
      provenance.check_same_data(folder, files)
      launch = provenance.describe_launch(data)
      task = make_task(config, read_languages(folder, config.data) or inherited_languages(config))
      provenance.check_same_words(folder, words_of(task))
      launch["vocabularies"] = provenance.digest_of(words_of(task))
      recipe = make_recipe(config, make_task_model(config, task), make_mesh(parameter_shards))
      _check_data(config, folder, task, recipe)
      if is_main():
        exits.enter_context(workdir.workdir_lock(folder))
        check_same_config(folder, config)  # another process may have started a run since
    except Exception as error:
      begin_together(None, error)
      raise
    same = [launch["versions"], launch["commit"], launch["vocabularies"], list(data.values())]
    begin_together([*same, dataclasses.asdict(config), str(folder.resolve()), parameter_shards], None)
    if is_main():
      provenance.record_launch(folder, launch)
      write_run(folder, config, (task.source, task.target))
    yield task, recipe


def _check_data(config: base.Config, folder: pathlib.Path, task: Task, recipe: Recipe) -> None:
  """Checks custom parts, the run to start from, and that there is data of each split."""
  if own_parts(config):
    _try_own_parts(config, task, recipe)
  if config.init_from and not workdir.holds_run(folder):
    check_beginning(config, recipe)
  task.training_batch(0)
  for split in (task.watched, *task.splits):
    task.examples(split, 1)


def _try_own_parts(config: base.Config, task: Task, recipe: Recipe) -> None:
  """Raises ConfigError if custom parts cannot be trained, evaluated or compiled."""
  names = ", ".join(f"config.{name}={value}" for name, value in own_parts(config).items())
  try:
    batch = task.training_batch(0)
    if config.train.alignment_weight and batch.links is None:
      raise ConfigError(
        "config.train.alignment_weight must be 0 if the batches of a task have no links "
        f"(`make_batch(..., alignments=...)`), got {config.train.alignment_weight}"
      )
    model, rngs = recipe.model, make_rngs(config.seed)
    hash(model)  # it is a static argument of compiled functions
    words = np.ones((1, 2), np.int32)
    params = jax.jit(model.init)(rngs.params, words, words[:, 0], words)["params"]
    _check_ignores_padding(model, params, batch.sources.shape[1])
    translator = make_translator(config, task, model, params, {"beam_size": 1})
    for split in dict.fromkeys((task.watched, *task.splits)):
      evaluate(translator, task.examples(split, 2), own_metrics(config.evaluation))
    step = functools.partial(train_step, recipe=recipe)
    rows = own_rows(batch, recipe.mesh.size * config.train.accumulation)
    jax.eval_shape(step, abstract_state(recipe), place_batch(rows, recipe.mesh), rngs.dropout)
  except Mistake:
    raise
  except Exception as error:  # custom code may raise anything
    raise ConfigError(f"{names}: {plugins.told(error)}") from error


def _check_ignores_padding(model: attention.Seq2Seq, params: Any, width: int) -> None:
  """Raises ValueError if the logits depend on how far the source is padded, or a row of padding gives NaN."""
  words, lengths = np.ones((2, 3), np.int32), np.array([3, 0], np.int32)
  apply = jax.jit(model.apply)
  alone, padded = (
    apply({"params": params}, np.pad(words, ((0, 0), (0, count))), lengths, words)[0]
    for count in (0, max(width - 3, 1))
  )
  if not np.isfinite(padded).all():
    raise ValueError("the logits must be finite, also for rows of length 0, which fill up a batch")
  alone, padded = alone[:1], padded[:1]
  if not np.allclose(alone, padded, rtol=0, atol=1e-3):
    raise ValueError(
      "padding must not change the logits, "
      f"got a change of up to {np.max(np.abs(alone - padded)):.2g}; is a mask or a length left out?"
    )
