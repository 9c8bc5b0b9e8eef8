"""The training loop."""

import math
import pathlib
from typing import Any

import grain
import jax
import numpy as np

from configs import base
from experiments.cli.errors import Diverged, Interrupted
from experiments.cli.signals import stop_requests
from experiments.runs import workdir
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.multihost import is_main, largest, of_main, say
from experiments.runs.progress import Profile, Progress
from experiments.runs.sharding import everywhere, local_copy, own_rows, place_batch
from experiments.tasks import Task
from experiments.text.batches import Batch, without_ends
from experiments.translation.evaluate import evaluate, own_metrics, summary
from experiments.translation.metrics import HIGHER_IS_BETTER
from experiments.translation.optimizer import learning_rate
from experiments.translation.restore import chosen_params, open_checkpoints, warm_start
from experiments.translation.run_setup import open_run
from experiments.translation.step import (
  Recipe,
  TrainState,
  abstract_state,
  init_state,
  is_finite,
  make_rngs,
  make_step,
  no_sums,
  translating_params,
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
  parameter_shards: int = 1,
  profile: tuple[int, int] | None = None,
) -> Translator:
  """Trains a translator, or resumes an interrupted run of the same config.

  Args:
    config: the experiment.
    folder: its workdir.
    parameter_shards: number of parts that parameters are cut into; all other devices share the batch.
    profile: the first and the last step to profile. Default: no profile.

  Returns:
    The translator of the checkpoint that `config.evaluation.checkpoint` names.

  Raises:
    ConfigError, DataError, WorkdirError, DeviceError, ProcessError: for a user error, before anything is
      written.
    WorkdirError, CheckpointError: if the disk is full, or no checkpoint can be read.
    Diverged: if the loss or a parameter is not finite.
    Interrupted: after Ctrl-C or SIGTERM; the same call resumes.
  """
  with (
    open_run(config, folder, parameter_shards) as (task, recipe),
    open_checkpoints(config, folder, read_only=False) as checkpoints,
  ):
    batches = make_pipeline(task, config.train, recipe.mesh.size)
    start, state = _first_state(config, recipe, checkpoints, batches)
    step = start
    say(_description(task, state))
    if step:
      say(f"continuing after step {step:,} of {config.train.steps:,}")
    tokens = float(state.sums.tokens)  # of steps before an interruption
    with (
      workdir.MetricsWriter(folder, step) as metrics,
      Progress(step, config.train.steps, tokens, is_shown=is_main()) as progress,
      Profile(folder / "profile", profile if is_main() else None, progress.say) as profiler,
      stop_requests() as requested,
    ):
      dropout_rng, train_step, gradient_norm = make_rngs(config.seed).dropout, make_step(recipe), None
      validation = task.examples(task.watched, config.evaluation.validation_sentences)
      is_over = step == config.train.steps or _has_stalled(config, folder, task)
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
          state, gradient_norm = train_step(state, place_batch(batch, recipe.mesh), dropout_rng)
        profiler.after(step, state)
        jax.block_until_ready(previous_norm)  # at most two steps are queued, so a request to stop is soon met
        progress.advance(step)
        is_last = step == config.train.steps
        if is_last or step % config.train.log_every == 0:
          _check_finite(step, state, checkpoints)
          tokens = float(state.sums.tokens)
          values = {
            "train/loss": float(state.sums.loss) / tokens,
            "train/gradient_norm": float(gradient_norm),
          }
          values["train/learning_rate"] = learning_rate(config.train, step)
          metrics.write(step, values, progress.record(values["train/loss"], tokens))
          state = state._replace(sums=jax.jit(no_sums, out_shardings=everywhere(recipe.mesh))())
        if is_last or step % config.train.validate_every == 0:
          _check_finite(step, state, checkpoints)
          with progress.aside("validating"):
            params = local_copy(translating_params(state), recipe.mesh)
            greedy = make_translator(config, task, recipe.model, params, {"beam_size": 1})
            values = evaluate(greedy, validation, own_metrics(config.evaluation))
          metrics.write(step, {f"{task.watched}/{metric}": value for metric, value in values.items()})
          progress.say(f"step {step:,}, {task.watched}: {summary(values)}")
          with progress.aside("writing checkpoints"):
            checkpoints.save(step, state, batches.get_state(), of_main(values[config.train.metric]))
          is_over = is_last or _has_stalled(config, folder, task)
        if stop := _stop_signal(step, requested(), is_last=is_last):
          _check_finite(step, state, checkpoints)
          checkpoints.save(step, state, batches.get_state(), None)
          raise Interrupted(f"stopped at step {step:,}; the same command continues from there", stop)
      if step > start:
        progress.say(progress.summary())
    return make_translator(config, task, recipe.model, chosen_params(config, checkpoints, recipe))


def make_pipeline(task: Task, config: base.Train, num_devices: int) -> grain.DatasetIterator:
  """Returns an iterator over this process's rows of the batches of a run's steps, made ahead of time.

  Its `get_state` and `set_state` are about its position, which belongs to a checkpoint.
  """
  steps: Any = grain.MapDataset.range(config.steps)

  def batch(step: int) -> Batch:
    whole = task.training_batch(step)
    return own_rows(whole if config.learns_end else without_ends(whole), num_devices * config.accumulation)

  return iter(steps.map(batch).to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)))


def _first_state(
  config: base.Config, recipe: Recipe, checkpoints: Checkpoints, batches: grain.DatasetIterator
) -> tuple[int, TrainState]:
  """Returns the step and the state to train from: of the newest checkpoint, of another run, or new."""
  restored = checkpoints.restore(abstract_state(recipe))
  if restored is not None:
    batches.set_state(restored.position)
    return restored.step, restored.state
  state = init_state(recipe, make_rngs(config.seed).params)
  if config.init_from:
    state, text = warm_start(state, pathlib.Path(config.init_from))
    say(text)
    checkpoints.save(0, state, batches.get_state(), None)  # the other run may change from here on
  return 0, state


def _stop_signal(step: int, requested: int, *, is_last: bool) -> int:
  """Returns the signal that asks this process, or another, to stop; 0 for none."""
  if jax.process_count() > 1 and step % _ASK_EVERY and not is_last:
    return 0
  return largest(requested)


def _has_stalled(config: base.Config, folder: pathlib.Path, task: Task) -> bool:
  """Returns whether `config.train.patience` validations in a row have not improved the metric."""
  metric, patience = config.train.metric, config.train.patience
  if not patience:
    return False
  name, since_best = f"{task.watched}/{metric}", 0
  if is_main():
    scores = [record[name] for record in workdir.read_metrics(folder) if name in record]
    if scores:
      best = np.argmax(scores) if HIGHER_IS_BETTER[metric] else np.argmin(scores)
      since_best = len(scores) - 1 - int(best)
  since_best = int(of_main(since_best))
  if since_best >= patience:
    say(f"{name} has not improved for {since_best} validations: training ends here")
  return since_best >= patience


def _check_finite(step: int, state: TrainState, checkpoints: Checkpoints) -> None:
  """Raises Diverged if the loss or a parameter is not finite."""
  if math.isfinite(state.sums.loss) and is_finite(state.params):
    return
  last = checkpoints.latest_step()
  kept = "there is no checkpoint yet" if last is None else f"the last checkpoint is of step {last:,}"
  raise Diverged(
    f"the loss or a parameter is not finite at step {step:,}; {kept}; try a smaller "
    "config.train.learning_rate or config.train.clip_norm in another --workdir"
  )


def _description(task: Task, state: TrainState) -> str:
  devices = jax.devices()
  count = f"{len(devices)} x " if len(devices) > 1 else ""
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
  first = (
    f"{task}; {len(task.source.vocabulary):,} source and {len(task.target.vocabulary):,} target words; "
    f"{num_parameters:,} parameters; on {count}{devices[0].device_kind}"
  )
  return "\n".join([first, *getattr(task, "notes", ())])
