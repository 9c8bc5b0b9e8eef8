"""Start of a run: checks, then creation and locking of its folder."""

import contextlib
import dataclasses
import math
import os
import pathlib
from collections.abc import Iterator

import jax
import numpy as np

from configs import base
from experiments.cli import components
from experiments.cli.config_fields import ConfigError
from experiments.cli.messages import counted
from experiments.data.parallel_text import ParallelText
from experiments.data.task import Task, vocabulary_words
from experiments.data.tasks import make_task
from experiments.devices.multihost import begin_together, is_primary
from experiments.devices.sharding import check_equal_device_counts, make_mesh
from experiments.evaluation.metrics import HIGHER_IS_BETTER
from experiments.learning.model import make_task_model
from experiments.learning.step import TrainSpec, abstract_state, make_train_spec
from experiments.runs import provenance, workdir
from experiments.runs.component_checks import check_custom_components
from experiments.runs.restore import check_warm_start
from experiments.runs.run_config import (
  check_not_imported_from,
  check_same_config,
  data_files,
  inherited_languages,
  read_config,
  read_languages,
  write_run,
)
from experiments.runs.validation import validate


@contextlib.contextmanager
def open_run(config: base.Config, folder: pathlib.Path, fsdp_size: int) -> Iterator[tuple[Task, TrainSpec]]:
  """Yields the task and the training spec of a run, and locks its folder.

  The folder is created after all checks. If one process fails, all processes stop.
  """
  check_equal_device_counts()
  with contextlib.ExitStack() as exits:
    try:
      validate(config)
      if config.init_from and pathlib.Path(config.init_from).resolve() == folder.resolve():
        raise ConfigError(f"config.init_from must be a different run, got --workdir={folder}")
      check_same_config(folder, config)
      workdir.check_complete(folder)
      check_not_imported_from(folder, config)
      files = data_files(config)
      data = provenance.digests(files)
      provenance.check_same_data(folder, files)
      launch = provenance.describe_launch(data)
      languages = read_languages(folder, config.data)
      task = make_task(config, languages or inherited_languages(config))
      if config.init_from and languages is None and isinstance(task, ParallelText):
        task.add_new_words()
      provenance.check_same_vocabularies(folder, vocabulary_words(task))
      launch["vocabularies"] = provenance.vocabulary_digest(vocabulary_words(task))
      spec = make_train_spec(config, make_task_model(config, task), make_mesh(fsdp_size))
      _check_data(config, folder, task, spec)
      _check_memory(spec)
      _check_not_stopped(config, folder, task)
      if is_primary():
        exits.enter_context(workdir.workdir_lock(folder))
        check_same_config(folder, config)  # another process may have started a run meanwhile
    except Exception as error:
      begin_together(None, error)
      raise
    shared = [launch["versions"], launch["commit"], launch["vocabularies"], list(data.values())]
    begin_together([*shared, dataclasses.asdict(config), str(folder.resolve()), fsdp_size], None)
    if is_primary():
      provenance.record_launch(folder, launch)
      write_run(folder, config, (task.source, task.target))
    yield task, spec


def _check_data(config: base.Config, folder: pathlib.Path, task: Task, spec: TrainSpec) -> None:
  """Checks custom components, `config.init_from`, and that each split has data."""
  if components.custom_components(config):
    check_custom_components(config, task, spec)
  if config.init_from and not workdir.has_run(folder):
    check_warm_start(config, spec)
  task.training_batch(0)
  for split in (task.validation_split, *task.splits):
    task.examples(split, 1)


def _check_memory(spec: TrainSpec) -> None:
  """Raises ConfigError if parameters and optimizer state exceed the memory of the machine, on a CPU."""
  leaves = jax.tree.leaves(abstract_state(spec))
  needed = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
  available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  if jax.default_backend() == "cpu" and needed > available:
    raise ConfigError(
      "parameters and optimizer state must fit into the memory of this machine, "
      f"{available / 2**30:,.0f} GiB, got {needed / 2**30:,.0f} GiB; reduce the sizes in config.model"
    )


def validations_since_best(config: base.Config, folder: pathlib.Path, task: Task) -> int:
  """Returns the number of validations after the best one, by `config.train.best_metric`."""
  metric = config.train.best_metric
  name = f"{task.validation_split}/{metric}"
  scores = [record[name] for record in workdir.read_metrics(folder) if name in record]
  if not scores:
    return 0
  best = np.argmax(scores) if HIGHER_IS_BETTER[metric] else np.argmin(scores)
  return len(scores) - 1 - int(best)


def _check_not_stopped(config: base.Config, folder: pathlib.Path, task: Task) -> None:
  """Raises WorkdirError if a run gets more steps, but would stop early before the first of them."""
  patience = config.train.early_stopping_patience
  if not (patience and workdir.has_run(folder)):
    return
  since_best = validations_since_best(config, folder, task)
  if since_best >= patience and config.train.num_train_steps > read_config(folder).train.num_train_steps:
    raise workdir.WorkdirError(
      f"{folder} stopped early, after {counted(since_best, 'validation')} without improvement; to "
      "train it longer, set --config.train.early_stopping_patience to 0 or more than "
      f"{since_best}, got {patience}"
    )
