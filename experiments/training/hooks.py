"""Hooks of the training loop: functions of the run, the step and the training state."""

import math
import pathlib
from typing import NamedTuple

import jax
import numpy as np

from configs import base
from experiments.cli.errors import TrainingDiverged
from experiments.cli.messages import counted, escape_controls
from experiments.data.task import Example, Task
from experiments.devices.multihost import broadcast_primary, is_primary, print_primary
from experiments.devices.sharding import fetch_local, replicated
from experiments.evaluation.evaluate import evaluate, load_custom_metrics, summary
from experiments.evaluation.metrics import HIGHER_IS_BETTER
from experiments.inference.translator import make_translator
from experiments.learning.optimizer import learning_rate
from experiments.learning.step import TrainSpec, TrainState, eval_params, is_finite, zero_sums
from experiments.runs import workdir
from experiments.runs.checkpoints import Checkpoints
from experiments.training.progress import Progress

# A validation loss above the training loss by this much, per token, is a sign of overfitting.
_MAX_LOSS_DIFFERENCE = 0.5


class Run(NamedTuple):
  """What the hooks of the training loop share.

  Attributes:
    config: config of the run.
    folder: folder of the run.
    task: task of the run.
    spec: model, optimizer and devices.
    validation: examples of the validation split.
    metrics: writes metrics.
    progress: shows progress.
  """

  config: base.Config
  folder: pathlib.Path
  task: Task
  spec: TrainSpec
  validation: list[Example]
  metrics: workdir.MetricsWriter
  progress: Progress


def log(run: Run, step: int, state: TrainState, gradient_norm: jax.Array) -> TrainState:
  """Writes the training metrics since the last record, and returns the state with new sums."""
  tokens = float(state.sums.tokens)
  values = {"train/loss": float(state.sums.loss) / tokens, "train/gradient_norm": float(gradient_norm)}
  values["train/learning_rate"] = learning_rate(run.config.train, step)
  run.metrics.write(step, values, run.progress.record(values["train/loss"], tokens))
  return state._replace(sums=jax.jit(zero_sums, out_shardings=replicated(run.spec.mesh))())


def validate(run: Run, step: int, state: TrainState) -> float:
  """Writes the metrics of the validation split, and returns the one that chooses the best checkpoint."""
  config, task, split = run.config, run.task, run.task.validation_split
  with run.progress.paused("validating"):
    params = fetch_local(eval_params(state), run.spec.mesh)
    greedy = make_translator(config, task, run.spec.model, params, {"beam_size": 1})
    values = evaluate(greedy, run.validation, load_custom_metrics(config.evaluation))
  run.metrics.write(step, {f"{split}/{metric}": value for metric, value in values.items()})
  run.progress.print(f"step {step:,}, {escape_controls(split)}: {summary(values)}")
  return broadcast_primary(values[config.train.best_metric])


def should_stop_early(run: Run) -> bool:
  """Returns whether the metric has not improved in the last `early_stopping_patience` validations."""
  metric, patience = run.config.train.best_metric, run.config.train.early_stopping_patience
  if not patience:
    return False
  name = f"{run.task.validation_split}/{metric}"
  records = workdir.read_metrics(run.folder) if is_primary() else []
  scores = [
    record[name] if HIGHER_IS_BETTER[metric] else -record[name] for record in records if name in record
  ]
  since_best = int(broadcast_primary(len(scores) - 1 - int(np.argmax(scores)) if scores else 0))
  if since_best >= patience:
    print_primary(
      f"early stopping: {name} has not improved for "
      f"{counted(since_best, 'validation')}; to train longer, set a larger "
      "--config.train.early_stopping_patience"
    )
  return since_best >= patience


def overfitting_warning(run: Run) -> str:
  """Returns a warning if the last validation loss is far above the training loss, or an empty string."""
  if not is_primary():
    return ""
  config, split = run.config, run.task.validation_split
  last = {name: value for record in workdir.read_metrics(run.folder) for name, value in record.items()}
  training, validation = (last.get(f"{name}/loss", math.nan) for name in ("train", split))
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


def check_finite(step: int, state: TrainState, checkpoints: Checkpoints) -> None:
  """Raises TrainingDiverged if the loss or a parameter is not finite."""
  if math.isfinite(state.sums.loss) and is_finite(state.params):
    return
  last = checkpoints.latest_step()
  checkpoint = "there is no checkpoint yet" if last is None else f"the last checkpoint is of step {last:,}"
  raise TrainingDiverged(
    f"the loss or a parameter is not finite at step {step:,}; {checkpoint}; try a smaller "
    "config.train.learning_rate or config.train.grad_clip_norm in another --workdir"
  )
