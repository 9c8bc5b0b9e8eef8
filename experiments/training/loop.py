"""The training loop."""

import pathlib
from collections.abc import Callable
from typing import Any

import grain
import jax

from configs import base
from experiments.cli import components
from experiments.cli.errors import Preempted
from experiments.cli.messages import counted
from experiments.cli.signals import stop_requests
from experiments.data.batches import Batch, remove_eos
from experiments.data.task import Task
from experiments.devices.multihost import is_primary, max_over_processes, print_primary
from experiments.devices.sharding import local_rows, place_batch
from experiments.inference.translator import Translator, make_translator
from experiments.learning.step import (
  TrainSpec,
  TrainState,
  abstract_state,
  init_state,
  make_rngs,
  make_step,
)
from experiments.runs import workdir
from experiments.runs.checkpoints import Checkpoints, open_checkpoints
from experiments.runs.restore import select_params, warm_start
from experiments.runs.run_setup import open_run
from experiments.training import hooks
from experiments.training.progress import Profile, Progress

# Number of batches that are prefetched, by one thread.
_PREFETCH_SIZE = 16

# Processes exchange stop requests every 10 steps, because the exchange takes time.
_STOP_CHECK_EVERY_STEPS = 10


def train(
  config: base.Config,
  folder: pathlib.Path,
  *,
  fsdp_size: int = 1,
  profile: tuple[int, int] | None = None,
) -> Translator:
  """Trains a translator, or resumes an interrupted run.

  Args:
    config: config of the run.
    folder: folder of the run.
    fsdp_size: number of devices that parameters are sharded over.
    profile: first and last step to profile. Default: no profile.

  Returns:
    The translator of `config.evaluation.checkpoint`.

  Raises:
    UserError: if the config, the data, the folder or the devices do not fit, before any file is written.
    WorkdirError: if a file cannot be written.
    CheckpointError: if no checkpoint can be read.
    TrainingDiverged: if the loss or a parameter is not finite.
    Preempted: after Ctrl-C or SIGTERM. The same call resumes training.
  """
  config = components.with_names(config)
  with open_run(config, folder, fsdp_size) as (task, spec):
    checkpoints = open_checkpoints(config, folder, read_only=False)
    batches = make_pipeline(task, config.train, spec.mesh.size)
    start, state = _first_state(config, spec, checkpoints, batches)
    step, last = start, config.train.num_train_steps
    print_primary(_description(task, state))
    if step:
      print_primary(f"resuming after step {step:,} of {last:,}")
    tokens = float(state.sums.tokens)  # tokens of steps before the interruption
    with (
      workdir.MetricsWriter(folder, step) as metrics,
      Progress(step, last, tokens, is_visible=is_primary()) as progress,
      Profile(folder / "profile", profile if is_primary() else None, progress.print) as profiler,
      stop_requests() as requested,
    ):
      validation = task.examples(task.validation_split, config.evaluation.num_validation_examples)
      run = hooks.Run(config, folder, task, spec, validation, metrics, progress)
      train_step, gradient_norm = _make_train_step(run), None
      is_done = step == last or hooks.should_stop_early(run)
      while not is_done:
        with progress.waiting():
          batch = next(batches)
        step += 1
        profiler.before(step, state)
        previous_norm = gradient_norm
        state, gradient_norm = train_step(step, state, batch)
        profiler.after(step, state)
        jax.block_until_ready(previous_norm)  # at most two steps are queued, so that stop requests are fast
        progress.advance(step)

        is_last, score = step == last, None
        logs = is_last or step % config.train.log_every_steps == 0
        validates = is_last or step % config.train.eval_every_steps == 0
        stop = _stop_signal(step, requested(), is_last=is_last)
        if logs or validates or stop:
          hooks.check_finite(step, state, checkpoints)
        if logs:
          state = hooks.log(run, step, state, gradient_norm)
        if validates:
          score = hooks.validate(run, step, state)
        if validates or stop:
          with progress.paused("writing checkpoints"):
            checkpoints.save(step, state, batches.get_state(), score)
        if validates:
          stop = stop or _stop_signal(step, requested(), is_last=is_last)  # requested meanwhile
        if stop:
          raise Preempted(f"stopped at step {step:,}; run the same command again to resume", stop)
        is_done = is_last or (validates and hooks.should_stop_early(run))
      if step > start:
        progress.print(progress.summary())
        if warning := hooks.overfitting_warning(run):
          progress.print(warning)
    return make_translator(config, task, spec.model, select_params(config, checkpoints, spec))


def _make_train_step(run: hooks.Run) -> Callable[[int, TrainState, Batch], tuple[TrainState, jax.Array]]:
  """Returns a function that runs a step on a batch, and shows when it is compiled."""
  dropout_rng, compiled = make_rngs(run.config.seed).dropout, make_step(run.spec)

  def train_step(step: int, state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
    (B, S), T = batch.sources.shape, batch.targets.shape[1]
    with (
      run.progress.compiling(f"{counted(B, 'pair')} of {S} and {T} tokens"),
      jax.profiler.StepTraceAnnotation("train", step_num=step),
    ):
      return compiled(state, place_batch(batch, run.spec.mesh), dropout_rng)

  return train_step


def make_pipeline(task: Task, config: base.Train, num_devices: int) -> grain.DatasetIterator:
  """Returns an iterator over the rows of this process in the batches of a run, with prefetching.

  Its state (`get_state`, `set_state`) is part of a checkpoint.
  """
  steps: Any = grain.MapDataset.range(config.num_train_steps)

  def batch(step: int) -> Batch:
    global_batch = task.training_batch(step)
    if not config.train_eos:
      global_batch = remove_eos(global_batch)
    return local_rows(global_batch, num_devices * config.grad_accumulation_steps)

  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_PREFETCH_SIZE)
  return iter(steps.map(batch).to_iter_dataset(options))


def _first_state(
  config: base.Config, spec: TrainSpec, checkpoints: Checkpoints, batches: grain.DatasetIterator
) -> tuple[int, TrainState]:
  """Returns the first step and state: from the newest checkpoint, from another run, or initialized."""
  restored = checkpoints.restore(abstract_state(spec))
  if restored is not None:
    batches.set_state(restored.position)
    return restored.step, restored.state
  state = init_state(spec, make_rngs(config.seed).params)
  if config.init_from:
    state, text = warm_start(state, pathlib.Path(config.init_from))
    print_primary(text)
    checkpoints.save(0, state, batches.get_state(), None)  # resuming must not depend on the other run
  return 0, state


def _stop_signal(step: int, requested: int, *, is_last: bool) -> int:
  """Returns the signal that requests this or another process to stop, or 0."""
  if jax.process_count() > 1 and step % _STOP_CHECK_EVERY_STEPS and not is_last:
    return 0
  return max_over_processes(requested)


def _description(task: Task, state: TrainState) -> str:
  devices = jax.devices()
  count = f"{len(devices)} x " if len(devices) > 1 else ""
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
  first = (
    f"{task}; {len(task.source.vocabulary):,} source and {len(task.target.vocabulary):,} target tokens; "
    f"{num_parameters:,} parameters; on {count}{devices[0].device_kind}"
  )
  return "\n".join([first, *task.warnings])
