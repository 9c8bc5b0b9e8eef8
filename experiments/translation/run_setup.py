"""Start of a run: checks, then creation and locking of its folder."""

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
from experiments.cli.errors import UserError
from experiments.runs import provenance, workdir
from experiments.runs.multihost import begin_together, is_primary
from experiments.runs.sharding import check_equal_device_counts, local_rows, make_mesh, place_batch
from experiments.tasks import Task, make_task, read_languages, vocabulary_words
from experiments.tasks.parallel_text import ParallelText
from experiments.translation.evaluate import evaluate, load_custom_metrics
from experiments.translation.metrics import HIGHER_IS_BETTER
from experiments.translation.model import make_task_model
from experiments.translation.restore import check_warm_start
from experiments.translation.run_config import (
  check_same_config,
  custom_components,
  data_files,
  inherited_languages,
  read_config,
  training_components,
  write_run,
)
from experiments.translation.step import TrainSpec, abstract_state, make_rngs, make_train_spec, train_step
from experiments.translation.translator import make_translator
from experiments.translation.validation import validate


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
      files = data_files(config) | plugins.defining_files(training_components(config))
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
  if custom_components(config):
    _check_custom_components(config, task, spec)
  if config.init_from and not workdir.has_run(folder):
    check_warm_start(config, spec)
  task.training_batch(0)
  for split in (task.validation_split, *task.splits):
    task.examples(split, 1)


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
      f"{folder} stopped early, after {since_best} validations without improvement; to train it longer, set "
      f"--config.train.early_stopping_patience to 0 or more than {since_best}, got {patience}"
    )


def _check_custom_components(config: base.Config, task: Task, spec: TrainSpec) -> None:
  """Raises ConfigError if custom components cannot be trained, evaluated or compiled."""
  names = ", ".join(f"config.{name}={value}" for name, value in custom_components(config).items())
  try:
    batch = task.training_batch(0)
    if config.train.alignment_loss_weight and batch.links is None:
      raise ConfigError(
        "config.train.alignment_loss_weight must be 0 if the batches of the task have no links "
        f"(`make_batch(..., alignments=...)`), got {config.train.alignment_loss_weight}"
      )
    model, rngs = spec.model, make_rngs(config.seed)
    hash(model)  # the model is a static argument of compiled functions
    words = np.ones((1, 2), np.int32)
    params = jax.jit(model.init)(rngs.params, words, words[:, 0], words)["params"]
    _check_ignores_padding(model, params, batch.sources.shape[1])
    translator = make_translator(config, task, model, params, {"beam_size": 1})
    for split in dict.fromkeys((task.validation_split, *task.splits)):
      evaluate(translator, task.examples(split, 2), load_custom_metrics(config.evaluation))
    step = functools.partial(train_step, spec=spec)
    rows = local_rows(batch, spec.mesh.size * config.train.grad_accumulation_steps)
    jax.eval_shape(step, abstract_state(spec), place_batch(rows, spec.mesh), rngs.dropout)
  except UserError:
    raise
  except Exception as error:  # custom code may raise anything
    raise ConfigError(f"{names}: {plugins.format_error(error)}") from error


def _check_ignores_padding(model: attention.Seq2Seq, params: Any, source_length: int) -> None:
  """Raises ValueError if the logits depend on source padding, or are not finite for empty rows."""
  words, lengths = np.ones((2, 3), np.int32), np.array([3, 0], np.int32)
  apply = jax.jit(model.apply)
  unpadded, padded = (
    apply({"params": params}, np.pad(words, ((0, 0), (0, count))), lengths, words)[0]
    for count in (0, max(source_length - 3, 1))
  )
  if not np.isfinite(padded).all():
    raise ValueError("logits must be finite, also for padding rows with source length 0")
  unpadded, padded = unpadded[:1], padded[:1]
  if not np.allclose(unpadded, padded, rtol=0, atol=1e-3):
    raise ValueError(
      "logits must not depend on source padding, "
      f"got a difference of up to {np.max(np.abs(unpadded - padded)):.2g}; check masks and lengths"
    )
