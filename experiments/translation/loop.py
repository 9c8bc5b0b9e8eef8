"""A training run, from a config to a translator."""

import contextlib
import dataclasses
import math
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

import attention
from configs import base
from experiments.translation import workdir
from experiments.translation.batches import Batch, stack
from experiments.translation.checkpoints import Checkpoints
from experiments.translation.evaluation import Translator
from experiments.translation.mistakes import Diverged
from experiments.translation.models import make_model
from experiments.translation.progress import Progress
from experiments.translation.settings import check_config
from experiments.translation.tasks import Task, make_task
from experiments.translation.training import (
  Sums,
  TrainState,
  count_parameters,
  init_state,
  is_finite,
  make_optimizer,
  make_rngs,
  train_steps,
)


class Interrupted(Exception):
  """Ctrl-C has stopped a run; its checkpoint is written."""


def train(config: base.Config, folder: pathlib.Path) -> Translator:
  """Trains a translator, or goes on where an earlier run of the same config stopped.

  Args:
    config: the experiment.
    folder: its workdir.

  Raises:
    ConfigError, DataError, WorkdirError: for a person's mistake; nothing has been written then.
    Diverged: if the loss or a parameter is no finite number any more.
    Interrupted: after Ctrl-C; the same call goes on from there.
  """
  task = _open(config, folder)
  validation = task.examples("validation", config.evaluation.validation_sentences)
  model, optimizer = make_task_model(config, task), make_optimizer(config.train)
  rngs = make_rngs(config.seed)
  state = init_state(model, optimizer, task.training_batch(0), rngs.params)
  print(_description(task, state), flush=True)
  begin = time.perf_counter()
  with contextlib.ExitStack() as exits:
    checkpoints = exits.enter_context(Checkpoints(folder / "checkpoints"))
    state = checkpoints.restore(state) or state
    start = int(state.step)
    if start:
      print(f"continuing after step {start:,} of {config.train.steps:,}", flush=True)
    metrics = exits.enter_context(workdir.MetricsWriter(folder, start))
    progress = exits.enter_context(Progress(start, config.train.steps))
    stop_requested = exits.enter_context(_stop_request())
    for batches in _prefetched(task, _dispatches(start, config.train)):
      state, sums = train_steps(state, batches, rngs.dropout, model=model, optimizer=optimizer)
      step = int(state.step)
      is_last = step == config.train.steps
      is_logged = is_last or step % config.train.log_every == 0
      is_validated = is_last or step % config.train.validate_every == 0
      is_stopped = stop_requested() and not is_last
      _check_finite(state, sums, params_too=is_validated or is_stopped)
      progress.advance(step, sums)
      if is_logged:
        metrics.write(step, progress.record())
      if is_validated:
        values = make_translator(config, task, model, state.params).evaluate(validation)
        metrics.write(step, {f"validation/{name}": value for name, value in values.items()})
        progress.say(f"step {step:,}, validation: {summary(values)}")
      if is_validated or is_stopped:
        checkpoints.save(state)  # last: a run killed before it measures again
      if is_stopped:
        raise Interrupted(f"stopped at step {step:,}; the same command continues from there")
  if start < config.train.steps:
    seconds = time.perf_counter() - begin
    print(f"trained {config.train.steps - start:,} steps in {seconds:.0f} s", flush=True)
  return make_translator(config, task, model, state.params)


def _open(config: base.Config, folder: pathlib.Path) -> Task:
  """Returns the task of a run, and makes its folder once every mistake that can be seen has been."""
  check_config(config)
  workdir.check_same_config(folder, config)
  task = make_task(config, workdir.read_vocabularies(folder))
  task.training_batch(0)
  for split in task.splits:
    task.examples(split, 1)
  workdir.write_run(folder, config, (task.source_vocabulary, task.target_vocabulary))
  return task


def _check_finite(state: TrainState, sums: Sums, *, params_too: bool) -> None:
  """Raises Diverged if training has left the finite numbers."""
  if not math.isfinite(sums.loss) or (params_too and not is_finite(state.params)):
    raise Diverged(
      f"the loss or a parameter is not finite at step {int(state.step):,}; the last checkpoint is older; "
      "try a smaller config.train.learning_rate or config.train.clip_norm in another --workdir"
    )


def load(folder: pathlib.Path, *, batch_size: int | None = None) -> tuple[base.Config, Translator]:
  """Returns the config of a run and the translator of its newest checkpoint.

  Args:
    folder: the workdir.
    batch_size: sentences translated at once; None for the config's.

  Raises:
    WorkdirError: if there is none.
  """
  config = workdir.read_config(folder)
  if batch_size is not None:
    evaluation = dataclasses.replace(config.evaluation, batch_size=batch_size)
    config = dataclasses.replace(config, evaluation=evaluation)
  task = make_task(config, workdir.read_vocabularies(folder))
  model = make_task_model(config, task)
  optimizer, rng = make_optimizer(config.train), make_rngs(config.seed).params
  like = jax.eval_shape(lambda: init_state(model, optimizer, _two_words(), rng))
  state = None
  if (folder / "checkpoints").exists():  # else Checkpoints would make it
    with Checkpoints(folder / "checkpoints") as checkpoints:
      state = checkpoints.restore(like)
  if state is None:
    raise workdir.WorkdirError(f"{folder} holds no checkpoint yet; train with --workdir={folder}")
  return config, make_translator(config, task, model, state.params)


def make_task_model(config: base.Config, task: Task) -> attention.Seq2Seq:
  """Returns the config's model for the task's vocabularies."""
  return make_model(
    config.model,
    source_vocabulary_size=len(task.source_vocabulary),
    target_vocabulary_size=len(task.target_vocabulary),
  )


def make_translator(config: base.Config, task: Task, model: attention.Seq2Seq, params: Any) -> Translator:
  """Returns a translator with the config's settings for evaluation."""
  return Translator(
    task,
    model,
    params,
    batch_size=config.evaluation.batch_size,
    max_target_length=config.evaluation.max_target_length,
  )


def summary(values: dict[str, float]) -> str:
  """Returns the main metrics in a few words.

  >>> summary({"sentences": 200.0, "exact_match": 0.5, "bleu": 61.25, "loss": 0.1})
  '200 sentences, exact match 0.500, BLEU 61.2, loss 0.1000'
  """
  text = (
    f"{values['sentences']:,.0f} sentences, exact match {values['exact_match']:.3f}, "
    f"BLEU {values['bleu']:.1f}, loss {values['loss']:.4f}"
  )
  if "alignment_error_rate" in values:
    text += f", alignment error rate {values['alignment_error_rate']:.3f}"
  return text


def _description(task: Task, state: TrainState) -> str:
  return (
    f"{task}; {len(task.source_vocabulary):,} source and {len(task.target_vocabulary):,} target words; "
    f"{count_parameters(state.params):,} parameters; on {jax.devices()[0].device_kind}"
  )


def _dispatches(start: int, config: base.Train) -> Iterator[range]:
  """Yields the steps of each call of the compiled function."""
  for first in range(start, config.steps, config.steps_per_dispatch):
    yield range(first, min(first + config.steps_per_dispatch, config.steps))


def _prefetched(task: Task, dispatches: Iterator[range]) -> Iterator[Batch]:
  """Yields the batches of each call; the next ones are made while a call runs."""

  def fetch(steps: range) -> Batch:
    return stack([task.training_batch(step) for step in steps])

  with ThreadPoolExecutor(max_workers=1) as executor:
    waiting = None
    for steps in dispatches:
      ahead = executor.submit(fetch, steps)
      if waiting is not None:
        yield waiting.result()
      waiting = ahead
    if waiting is not None:
      yield waiting.result()


@contextlib.contextmanager
def _stop_request() -> Iterator[Callable[[], bool]]:
  """Gives a function that tells whether Ctrl-C was pressed; a second Ctrl-C stops at once.

  An exception in the middle of a step would lose the state, whose memory the step takes over.
  """
  requested = False

  def handle(*_) -> None:
    nonlocal requested
    requested = True
    # Not print: the step that is interrupted may be writing to the same stream.
    os.write(2, b"stopping after this step; Ctrl-C again stops at once\n")
    signal.signal(signal.SIGINT, before)

  before = signal.signal(signal.SIGINT, handle)
  try:
    yield lambda: requested
  finally:
    signal.signal(signal.SIGINT, before)


def _two_words() -> Batch:
  """Returns a small batch, for shapes of parameters that do not depend on the batch's."""
  ones = np.ones((1, 2), np.int32)
  return Batch(sources=ones, source_lengths=np.ones((1,), np.int32), inputs=ones, targets=ones)
