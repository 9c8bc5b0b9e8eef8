"""The training loop."""

import math
import pathlib
from typing import Any

import grain
import jax

from configs import base
from experiments.cli.errors import Preempted, TrainingDiverged
from experiments.cli.messages import counted, escape_controls
from experiments.cli.signals import stop_requests
from experiments.data.batches import Batch, remove_eos
from experiments.data.task import Task
from experiments.devices.multihost import broadcast_primary, is_primary, max_over_processes, print_primary
from experiments.devices.sharding import fetch_local, local_rows, place_batch, replicated
from experiments.evaluation.evaluate import evaluate, load_custom_metrics, summary
from experiments.inference.translator import Translator, make_translator
from experiments.learning.optimizer import learning_rate
from experiments.learning.step import (
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
from experiments.runs import workdir
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.progress import Profile, Progress
from experiments.runs.restore import open_checkpoints, select_params, warm_start
from experiments.runs.run_setup import open_run, validations_since_best

# Number of batches that are prefetched, by one thread.
_PREFETCH_SIZE = 16

# Processes exchange stop requests every 10 steps, because the exchange takes time.
_STOP_CHECK_EVERY_STEPS = 10

# A validation loss above the training loss by this much, per token, is a sign of overfitting.
_MAX_LOSS_DIFFERENCE = 0.5


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
  with (
    open_run(config, folder, fsdp_size) as (task, spec),
    open_checkpoints(config, folder, read_only=False) as checkpoints,
  ):
    batches = make_pipeline(task, config.train, spec.mesh.size)
    start, state = _first_state(config, spec, checkpoints, batches)
    step = start
    print_primary(_description(task, state))
    if step:
      print_primary(f"resuming after step {step:,} of {config.train.num_train_steps:,}")
    tokens = float(state.sums.tokens)  # tokens of steps before the interruption
    with (
      workdir.MetricsWriter(folder, step) as metrics,
      Progress(step, config.train.num_train_steps, tokens, is_visible=is_primary()) as progress,
      Profile(folder / "profile", profile if is_primary() else None, progress.print) as profiler,
      stop_requests() as requested,
    ):
      dropout_rng, train_step, gradient_norm = make_rngs(config.seed).dropout, make_step(spec), None
      validation = task.examples(task.validation_split, config.evaluation.num_validation_examples)
      is_done = step == config.train.num_train_steps or _should_stop_early(config, folder, task)
      while not is_done:
        with progress.waiting():
          batch = next(batches)
        step += 1
        profiler.before(step, state)
        previous_norm = gradient_norm
        (B, S), T = batch.sources.shape, batch.targets.shape[1]
        with (
          progress.compiling(f"{counted(B, 'pair')} of {S} and {T} tokens"),
          jax.profiler.StepTraceAnnotation("train", step_num=step),
        ):
          state, gradient_norm = train_step(state, place_batch(batch, spec.mesh), dropout_rng)
        profiler.after(step, state)
        jax.block_until_ready(previous_norm)  # at most two steps are queued, so that stop requests are fast
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
          with progress.paused("validating"):
            params = fetch_local(eval_params(state), spec.mesh)
            greedy = make_translator(config, task, spec.model, params, {"beam_size": 1})
            values = evaluate(greedy, validation, load_custom_metrics(config.evaluation))
          metrics.write(
            step, {f"{task.validation_split}/{metric}": value for metric, value in values.items()}
          )
          progress.print(f"step {step:,}, {escape_controls(task.validation_split)}: {summary(values)}")
          with progress.paused("writing checkpoints"):
            checkpoints.save(
              step, state, batches.get_state(), broadcast_primary(values[config.train.best_metric])
            )
          is_done = is_last or _should_stop_early(config, folder, task)
        if stop := _stop_signal(step, requested(), is_last=is_last):
          _check_finite(step, state, checkpoints)
          checkpoints.save(step, state, batches.get_state(), None)
          raise Preempted(f"stopped at step {step:,}; run the same command again to resume", stop)
      if step > start:
        progress.print(progress.summary())
        if warning := _overfitting_warning(config, folder, task):
          progress.print(warning)
    return make_translator(config, task, spec.model, select_params(config, checkpoints, spec))


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


def _should_stop_early(config: base.Config, folder: pathlib.Path, task: Task) -> bool:
  """Returns whether the metric has not improved in the last `early_stopping_patience` validations."""
  metric, patience = config.train.best_metric, config.train.early_stopping_patience
  if not patience:
    return False
  since_best = int(broadcast_primary(validations_since_best(config, folder, task) if is_primary() else 0))
  if since_best >= patience:
    print_primary(
      f"early stopping: {task.validation_split}/{metric} has not improved for "
      f"{counted(since_best, 'validation')}; to train longer, set a larger "
      "--config.train.early_stopping_patience"
    )
  return since_best >= patience


def _overfitting_warning(config: base.Config, folder: pathlib.Path, task: Task) -> str:
  """Returns a warning if the last validation loss is far above the training loss, or an empty string."""
  if not is_primary():
    return ""
  last = {name: value for record in workdir.read_metrics(folder) for name, value in record.items()}
  training, validation = (last.get(f"{split}/loss", math.nan) for split in ("train", task.validation_split))
  if not validation - training > _MAX_LOSS_DIFFERENCE:
    return ""
  options = "a larger config.model.dropout_rate, or more data"
  if config.data.tokenization != "character" and config.data.task == "parallel_text":
    options = f"config.data.tokenization=character, {options}"
    if config.data.tokenization == "subword":
      options = f"a smaller config.data.vocabulary_size, {options}"
  return (
    f"the validation loss ({validation:.2f}) is far above the training loss ({training:.2f}): the model "
    f"memorizes training text; try {options}"
  )


def _check_finite(step: int, state: TrainState, checkpoints: Checkpoints) -> None:
  """Raises TrainingDiverged if the loss or a parameter is not finite."""
  if math.isfinite(state.sums.loss) and is_finite(state.params):
    return
  last = checkpoints.latest_step()
  checkpoint = "there is no checkpoint yet" if last is None else f"the last checkpoint is of step {last:,}"
  raise TrainingDiverged(
    f"the loss or a parameter is not finite at step {step:,}; {checkpoint}; try a smaller "
    "config.train.learning_rate or config.train.grad_clip_norm in another --workdir"
  )


def _description(task: Task, state: TrainState) -> str:
  devices = jax.devices()
  count = f"{len(devices)} x " if len(devices) > 1 else ""
  num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
  first = (
    f"{task}; {len(task.source.vocabulary):,} source and {len(task.target.vocabulary):,} target tokens; "
    f"{num_parameters:,} parameters; on {count}{devices[0].device_kind}"
  )
  return "\n".join([first, *getattr(task, "warnings", ())])
