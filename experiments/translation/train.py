"""Training: the loop, and what it does at some of the steps."""

import contextlib
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from configs import base
from experiments.commands.mistakes import Diverged, Interrupted
from experiments.commands.stopping import stop_requests
from experiments.runs import workdir
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.devices import everywhere, local_copy, make_mesh, own_rows, place_batch
from experiments.runs.processes import is_main, largest, of_main, say
from experiments.runs.profiles import Profile
from experiments.runs.progress import Progress
from experiments.tasks import Task
from experiments.text.batches import Batch
from experiments.translation.evaluate import evaluate, own_metrics, summary
from experiments.translation.loading import chosen_params, open_checkpoints, warm_start
from experiments.translation.metrics import HIGHER_IS_BETTER
from experiments.translation.model import make_task_model
from experiments.translation.opening import ALONE, Launch, opened
from experiments.translation.pipeline import make_pipeline
from experiments.translation.step import (
  Recipe,
  TrainState,
  abstract_state,
  count_parameters,
  init_state,
  is_finite,
  learning_rate,
  make_recipe,
  make_rngs,
  make_step,
  no_sums,
  translating_params,
)
from experiments.translation.translator import Translator, make_translator

# Steps after which several processes ask each other whether one of them is to stop.
_ASK_EVERY = 10


def train(config: base.Config, folder: pathlib.Path, launch: Launch = ALONE) -> Translator:
  """Trains a translator, or goes on where an earlier run of the same config stopped.

  Args:
    config: the experiment.
    folder: its workdir.
    launch: how it is carried out.

  Returns:
    The translator of the checkpoint that `config.evaluation.checkpoint` names.

  Raises:
    ConfigError, DataError, WorkdirError, DeviceError, ProcessError: for a person's mistake that is seen
      before anything of the run is written.
    WorkdirError, CheckpointError: also if the disk does not take what is measured, or a checkpoint; if the
      folder is deleted meanwhile; or if no checkpoint can be read.
    Diverged: if the loss or a parameter is no finite number any more.
    Interrupted: after Ctrl-C or SIGTERM; the same call goes on from there.
  """
  with (
    opened(config, folder, launch) as task,
    open_checkpoints(config, folder, read_only=False) as checkpoints,
  ):
    recipe = make_recipe(config, make_task_model(config, task), make_mesh(launch.parameter_shards))
    batches = make_pipeline(task, config.train, own_rows(recipe.mesh, config.train.accumulation))
    restored = checkpoints.restore(abstract_state(recipe))
    if restored is None:
      step, state = 0, init_state(recipe, make_rngs(config.seed).params)
      if config.init_from:
        state, taken = warm_start(state, pathlib.Path(config.init_from))
        say(taken)
        checkpoints.save(0, state, batches.get_state(), None)  # from here on the other run may change
    else:
      step, state = restored.step, restored.state
      batches.set_state(restored.position)
    say("\n".join([_description(task, state), *getattr(task, "notes", ())]))
    if step:
      say(f"continuing after step {step:,} of {config.train.steps:,}")
    with _Run(config, folder, task, recipe, checkpoints, launch, step, state) as run:
      is_over = step == config.train.steps or run.has_stalled()
      while not is_over:
        with run.progress.waiting():
          batch = next(batches)
        step, state = step + 1, run.advance(step + 1, state, batch)
        if run.is_every(config.train.log_every, step):
          state = run.log(step, state)
        if run.is_every(config.train.validate_every, step):
          score = run.validate(step, state)
          run.save(step, state, batches, score)  # last: a run killed before it validates again
          is_over = step == config.train.steps or run.has_stalled()
        run.stop_if_asked(step, state, batches)
    return make_translator(config, task, recipe.model, chosen_params(config, checkpoints, recipe))


class _Run(contextlib.ExitStack):
  """What a run does at its steps; it holds nothing that training changes. A context manager.

  Args:
    config, folder, launch: those of `train`.
    task: what is translated.
    recipe: what a step does.
    checkpoints: where they are written.
    start: the step that it goes on from.
    state: the state there.

  Attributes:
    progress: what a person sees of it.
  """

  def __init__(
    self,
    config: base.Config,
    folder: pathlib.Path,
    task: Task,
    recipe: Recipe,
    checkpoints: Checkpoints,
    launch: Launch,
    start: int,
    state: TrainState,
  ):
    super().__init__()
    self._config, self._folder, self._task, self._recipe = config, folder, task, recipe
    self._checkpoints = checkpoints
    self._dropout_rng = make_rngs(config.seed).dropout
    self._validation = task.examples(task.watched, config.evaluation.validation_sentences)
    self._compiled: dict[Any, Any] = {}
    self._gradient_norm: Any = None  # of the step before
    self._has_warned = False
    if is_main():
      self._metrics = self.enter_context(workdir.MetricsWriter(folder, start))
    tokens = float(state.sums.tokens)  # of steps that another process made
    self.progress = self.enter_context(Progress(start, config.train.steps, tokens, is_shown=is_main()))
    steps = launch.profile if is_main() else None
    self._profile = self.enter_context(Profile(folder / "profile", steps, self.progress.say))
    self._requested: Callable[[], int] = self.enter_context(stop_requests())

  def __exit__(self, *error) -> bool | None:
    if error[0] is None and self.progress.has_advanced:
      self.progress.say(self.progress.summary())
    return super().__exit__(*error)

  def is_every(self, count: int, step: int) -> bool:
    """Returns whether a step is one of every `count`, or the last."""
    return step % count == 0 or step == self._config.train.steps

  def advance(self, step: int, state: TrainState, batch: Batch) -> TrainState:
    """Makes a step; it waits for the one before, so a request to stop waits for two steps at most."""
    placed = place_batch(batch, self._recipe.mesh)
    key = tuple(array.shape for array in jax.tree.leaves(placed))
    if key not in self._compiled:
      (B, S), T = placed.sources.shape, placed.targets.shape[1]
      with self.progress.compiling(f"{B} pairs of {S} and {T} tokens"):
        lowered = make_step(self._recipe).lower(state, placed, self._dropout_rng)
        self._compiled[key] = lowered.compile()
    with self._profile.of(step, lambda: state):
      state, gradient_norm = self._compiled[key](state, placed, self._dropout_rng)
    self.progress.advance(step)
    if self._gradient_norm is not None:
      jax.block_until_ready(self._gradient_norm)
    self._gradient_norm = gradient_norm
    return state

  def log(self, step: int, state: TrainState) -> TrainState:
    """Writes the loss since the last record; returns the state with its sums at 0 again."""
    self._check_finite(step, state)
    self._check_there()  # what is written to a deleted file goes nowhere, and nothing says so
    tokens = float(state.sums.tokens)
    loss = float(state.sums.loss) / tokens
    speeds = self.progress.record(loss, tokens)
    self._warn_if_worse_than_guessing(loss)
    if is_main():
      values = {"train/loss": loss, "train/gradient_norm": float(self._gradient_norm)}
      values["train/learning_rate"] = learning_rate(self._config.train, step)
      self._metrics.write(step, values, speeds)
    return state._replace(sums=jax.jit(no_sums, out_shardings=everywhere(self._recipe.mesh))())

  def _warn_if_worse_than_guessing(self, loss: float) -> None:
    """Says, once, that a loss is far above that of a model which takes all words for equally likely."""
    guessing = math.log(len(self._task.target.vocabulary))
    if loss > guessing + 1 and not self._has_warned:  # at the first steps it is a little larger
      self._has_warned = True
      self.progress.say(
        f"a loss of {loss:.2f} is worse than guessing, {guessing:.2f}; "
        "if it stays so, try a smaller config.train.learning_rate"
      )

  def validate(self, step: int, state: TrainState) -> float:
    """Measures and writes how good the translations are; returns the metric that is watched."""
    self._check_finite(step, state)
    config, name = self._config, self._task.watched
    params = local_copy(translating_params(state), self._recipe.mesh)
    # All processes do, though one writes: a wait of all others for one would end at JAX's time limits.
    with self.progress.aside("validating"):
      greedy = make_translator(config, self._task, self._recipe.model, params, {"beam_size": 1})
      values = evaluate(greedy, self._validation, own_metrics(config.evaluation))
    if is_main():
      self._metrics.write(step, {f"{name}/{metric}": value for metric, value in values.items()})
    self.progress.say(f"step {step:,}, {name}: {summary(values)}")
    return of_main(values[config.train.metric])

  def save(self, step: int, state: TrainState, batches: Any, score: float | None) -> None:
    """Writes a checkpoint, from which another process goes on."""
    self._check_there()
    with self.progress.aside("writing checkpoints"):
      self._checkpoints.save(step, state, batches.get_state(), score)

  def stop_if_asked(self, step: int, state: TrainState, batches: Any) -> None:
    """Raises Interrupted, with a checkpoint left, if a signal asks this process or another to stop."""
    # Several processes ask each other, which takes time: at some of the steps, the same for all.
    if jax.process_count() > 1 and not self.is_every(_ASK_EVERY, step):
      return
    stop = largest(self._requested())
    if stop:
      self._check_finite(step, state)
      self.save(step, state, batches, None)
      raise Interrupted(f"stopped at step {step:,}; the same command continues from there", 128 + stop)

  def has_stalled(self) -> bool:
    """Returns whether the watched metric has not become better for too long."""
    metric, patience = self._config.train.metric, self._config.train.patience
    if not patience:
      return False
    name, since_best = f"{self._task.watched}/{metric}", 0
    if is_main():
      scores = [record[name] for record in workdir.read_metrics(self._folder) if name in record]
      if scores:
        best = np.argmax(scores) if HIGHER_IS_BETTER[metric] else np.argmin(scores)
        since_best = len(scores) - 1 - int(best)
    since_best = int(of_main(since_best))
    if since_best < patience:
      return False
    self.progress.say(f"{name} has not become better for {since_best} validations: training ends here")
    return True

  def _check_finite(self, step: int, state: TrainState) -> None:
    """Raises Diverged if training has left the finite numbers."""
    if math.isfinite(state.sums.loss) and is_finite(state.params):
      return
    last = self._checkpoints.latest_step()
    kept = "there is no checkpoint yet" if last is None else f"the last checkpoint is of step {last:,}"
    raise Diverged(
      f"the loss or a parameter is not finite at step {step:,}; {kept}; try a smaller "
      "config.train.learning_rate or config.train.clip_norm in another --workdir"
    )

  def _check_there(self) -> None:
    if is_main():  # another may not yet see what this one has written
      workdir.check_there(self._folder)


def _description(task: Task, state: TrainState) -> str:
  devices = jax.devices()
  count = f"{len(devices)} x " if len(devices) > 1 else ""
  return (
    f"{task}; {len(task.source.vocabulary):,} source and {len(task.target.vocabulary):,} target words; "
    f"{count_parameters(state.params):,} parameters; on {count}{devices[0].device_kind}"
  )
