"""The training loop."""

import math
import pathlib
from typing import Any

import grain
import jax
import numpy as np

from configs import base
from experiments.cli.errors import Preempted, TrainingDiverged
from experiments.cli.signals import stop_requests
from experiments.runs import workdir
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.multihost import is_primary, largest, of_main, print_primary
from experiments.runs.progress import Profile, Progress
from experiments.runs.sharding import fetch_local, local_rows, place_batch, replicated
from experiments.tasks import Task
from experiments.text.batches import Batch, remove_eos
from experiments.translation.evaluate import evaluate, load_custom_metrics, summary
from experiments.translation.metrics import HIGHER_IS_BETTER
from experiments.translation.optimizer import learning_rate
from experiments.translation.restore import open_checkpoints, select_params, warm_start
from experiments.translation.run_setup import open_run
from experiments.translation.step import (
  TrainSpec,
  TrainState,
  abstract_state,
  eval_params,
  init_state,
  is_finite,
  make_rngs,
  make_step,
  zero_sums,
)
from experiments.translation.translator import Translator, make_translator

# Batches that are made ahead, by one thread.
_AHEAD = 16

# Several processes ask each other whether to stop, which takes time, after this many steps.
_ASK_EVERY = 10


def train(
  config: base.Config,
  folder: pathlib.Path,
  *,
  fsdp_size: int = 1,
  profile: tuple[int, int] | None = None,
) -> Translator:
  """Trains a translator, or resumes an interrupted run of the same config.

  Args:
    config: the experiment.
    folder: its workdir.
    fsdp_size: number of parts that parameters are cut into; all other devices share the batch.
    profile: the first and the last step to profile. Default: no profile.

  Returns:
    The translator of the checkpoint that `config.evaluation.checkpoint` names.

  Raises:
    ConfigError, DataError, WorkdirError, DeviceError, ProcessError: for a user error, before anything is
      written.
    WorkdirError, CheckpointError: if the disk is full, or no checkpoint can be read.
    TrainingDiverged: if the loss or a parameter is not finite.
    Preempted: after Ctrl-C or SIGTERM; the same call resumes.
  """
  with (
    open_run(config, folder, fsdp_size) as (task, spec),
    open_checkpoints(config, folder, read_only=False) as checkpoints,
  ):
    batches = make_pipeline(task, config.train, spec.mesh.size)
    start, state = _first_state(config, spec, checkpoints, batches)
    step = start
    print_primary(_description(task, state))
    if step:
      print_primary(f"continuing after step {step:,} of {config.train.num_train_steps:,}")
    tokens = float(state.sums.tokens)  # of steps before an interruption
    with (
      workdir.MetricsWriter(folder, step) as metrics,
      Progress(step, config.train.num_train_steps, tokens, is_shown=is_primary()) as progress,
      Profile(folder / "profile", profile if is_primary() else None, progress.print_primary) as profiler,
      stop_requests() as requested,
    ):
      dropout_rng, train_step, gradient_norm = make_rngs(config.seed).dropout, make_step(spec), None
      validation = task.examples(task.validation_split, config.evaluation.num_validation_examples)
      is_over = step == config.train.num_train_steps or _has_stalled(config, folder, task)
      while not is_over:
        with progress.waiting():
          batch = next(batches)
        step += 1
        profiler.before(step, state)
        previous_norm = gradient_norm
        (B, S), T = batch.sources.shape, batch.targets.shape[1]
        with (
          progress.compiling(f"{B} pairs of {S} and {T} tokens"),
          jax.profiler.StepTraceAnnotation("train", step_num=step),
        ):
          state, gradient_norm = train_step(state, place_batch(batch, spec.mesh), dropout_rng)
        profiler.after(step, state)
        jax.block_until_ready(previous_norm)  # at most two steps are queued, so a request to stop is soon met
        progress.advance(step)
        is_last = step == config.train.num_train_steps
        if is_last or step % config.train.log_every_steps == 0:
          _check_finite(step, state, checkpoints)
          tokens = float(state.sums.tokens)
          values = {
            "train/loss": float(state.sums.loss) / tokens,
            "train/gradient_norm": float(gradient_norm),
          }
          values["train/learning_rate"] = learning_rate(config.train, step)
          metrics.write(step, values, progress.record(values["train/loss"], tokens))
          state = state._replace(sums=jax.jit(zero_sums, out_shardings=replicated(spec.mesh))())
        if is_last or step % config.train.eval_every_steps == 0:
          _check_finite(step, state, checkpoints)
          with progress.aside("validating"):
            params = fetch_local(eval_params(state), spec.mesh)
            greedy = make_translator(config, task, spec.model, params, {"beam_size": 1})
            values = evaluate(greedy, validation, load_custom_metrics(config.evaluation))
          metrics.write(
            step, {f"{task.validation_split}/{metric}": value for metric, value in values.items()}
          )
          progress.print_primary(f"step {step:,}, {task.validation_split}: {summary(values)}")
          with progress.aside("writing checkpoints"):
            checkpoints.save(step, state, batches.get_state(), of_main(values[config.train.best_metric]))
          is_over = is_last or _has_stalled(config, folder, task)
        if stop := _stop_signal(step, requested(), is_last=is_last):
          _check_finite(step, state, checkpoints)
          checkpoints.save(step, state, batches.get_state(), None)
          raise Preempted(f"stopped at step {step:,}; the same command continues from there", stop)
      if step > start:
        progress.print_primary(progress.summary())
    return make_translator(config, task, spec.model, select_params(config, checkpoints, spec))


def make_pipeline(task: Task, config: base.Train, num_devices: int) -> grain.DatasetIterator:
  """Returns an iterator over this process's rows of the batches of a run's steps, made ahead of time.

  Its `get_state` and `set_state` are about its position, which belongs to a checkpoint.
  """
  steps: Any = grain.MapDataset.range(config.num_train_steps)

  def batch(step: int) -> Batch:
    whole = task.training_batch(step)
    return local_rows(
      whole if config.train_eos else remove_eos(whole), num_devices * config.grad_accumulation_steps
    )

  return iter(steps.map(batch).to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)))


def _first_state(
  config: base.Config, spec: TrainSpec, checkpoints: Checkpoints, batches: grain.DatasetIterator
) -> tuple[int, TrainState]:
  """Returns the step and the state to train from: of the newest checkpoint, of another run, or new."""
  restored = checkpoints.restore(abstract_state(spec))
  if restored is not None:
    batches.set_state(restored.position)
    return restored.step, restored.state
  state = init_state(spec, make_rngs(config.seed).params)
  if config.init_from:
    state, text = warm_start(state, pathlib.Path(config.init_from))
    print_primary(text)
    checkpoints.save(0, state, batches.get_state(), None)  # the other run may change from here on
  return 0, state


def _stop_signal(step: int, requested: int, *, is_last: bool) -> int:
  """Returns the signal that asks this process, or another, to stop; 0 for none."""
  if jax.process_count() > 1 and step % _ASK_EVERY and not is_last:
    return 0
  return largest(requested)


def _has_stalled(config: base.Config, folder: pathlib.Path, task: Task) -> bool:
  """Returns whether the last `early_stopping_patience` validations have not improved the metric."""
  metric, patience = config.train.best_metric, config.train.early_stopping_patience
  if not patience:
    return False
  name, since_best = f"{task.validation_split}/{metric}", 0
  if is_primary():
    scores = [record[name] for record in workdir.read_metrics(folder) if name in record]
    if scores:
      best = np.argmax(scores) if HIGHER_IS_BETTER[metric] else np.argmin(scores)
      since_best = len(scores) - 1 - int(best)
  since_best = int(of_main(since_best))
  if since_best >= patience:
    print_primary(f"{name} has not improved for {since_best} validations: training ends here")
  return since_best >= patience


def _check_finite(step: int, state: TrainState, checkpoints: Checkpoints) -> None:
  """Raises TrainingDiverged if the loss or a parameter is not finite."""
  if math.isfinite(state.sums.loss) and is_finite(state.params):
    return
  last = checkpoints.latest_step()
  kept = "there is no checkpoint yet" if last is None else f"the last checkpoint is of step {last:,}"
  raise TrainingDiverged(
    f"the loss or a parameter is not finite at step {step:,}; {kept}; try a smaller "
    "config.train.learning_rate or config.train.grad_clip_norm in another --workdir"
  )


def _description(task: Task, state: TrainState) -> str:
  devices = jax.devices()
  count = f"{len(devices)} x " if len(devices) > 1 else ""
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
  first = (
    f"{task}; {len(task.source.vocabulary):,} source and {len(task.target.vocabulary):,} target words; "
    f"{num_parameters:,} parameters; on {count}{devices[0].device_kind}"
  )
  return "\n".join([first, *getattr(task, "warnings", ())])
