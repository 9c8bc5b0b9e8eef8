"""A training run, from a config to a translator."""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

import attention
from configs import base
from experiments.commands.mistakes import Diverged, Interrupted
from experiments.runs import provenance, workdir
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.devices import (
  check_shares,
  everywhere,
  local_copy,
  make_mesh,
  own_rows,
  place_batch,
)
from experiments.runs.locks import workdir_lock
from experiments.runs.processes import begin_together, is_main, largest, of_main, say
from experiments.runs.profiles import Profile
from experiments.runs.progress import Progress
from experiments.runs.stopping import stop_requests
from experiments.tasks import Task, make_task, read_languages
from experiments.text.batches import Batch
from experiments.translation.evaluate import Search, Translator
from experiments.translation.metrics import HIGHER_IS_BETTER
from experiments.translation.model import make_model
from experiments.translation.pipeline import make_pipeline
from experiments.translation.settings import check_config, check_same_config, read_config, write_run
from experiments.translation.step import (
  Recipe,
  TrainState,
  abstract_state,
  cast,
  count_parameters,
  init_state,
  is_finite,
  make_recipe,
  make_rngs,
  no_sums,
  train_step,
  translating_params,
)

# Steps after which several processes ask each other whether one of them is to stop.
_ASK_EVERY = 10


class Launch(NamedTuple):
  """How a run is carried out: what may be another way each time that it goes on.

  Attributes:
    parameter_shards: into how many parts parameters are cut; all other devices share the batch.
    profile: the first and the last step of which a profile is recorded; None for no profile.
  """

  parameter_shards: int = 1
  profile: tuple[int, int] | None = None


ALONE = Launch()


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
  with contextlib.ExitStack() as exits:
    task = exits.enter_context(_opened(config, folder, launch))
    if is_main():
      exits.enter_context(workdir.told_if_deleted(folder))
    mesh = make_mesh(launch.parameter_shards)
    recipe = make_recipe(config, make_task_model(config, task), mesh)
    higher = HIGHER_IS_BETTER[config.train.metric]
    checkpoints = exits.enter_context(Checkpoints(folder / "checkpoints", higher_is_better=higher))
    run = _Run(config, folder, task, recipe, checkpoints, launch)
    run.go()
    params = _chosen_params(config, checkpoints, recipe)
    return make_translator(config, task, recipe.model, local_copy(params, mesh))


def load(
  folder: pathlib.Path,
  *,
  checkpoint: str | None = None,
  batch_size: int | None = None,
  search: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[base.Config, Translator]:
  """Returns the config of a run and the translator of one of its checkpoints.

  Args:
    folder: the workdir.
    checkpoint: "best" or "last"; None for the config's.
    batch_size: sentences translated at once; None for the config's.
    search: fields of `Search` that are to be others than the config's.

  Raises:
    WorkdirError: if there is none.
    CheckpointError: if it cannot be read.
  """
  config = read_config(folder)
  options: dict[str, Any] = {"checkpoint": checkpoint, "batch_size": batch_size}
  given = {name: value for name, value in options.items() if value is not None}
  config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, **given))
  task = make_task(config, read_languages(folder, config.data))
  provenance.check_same_words(folder, _words(task))
  recipe = make_recipe(config, make_task_model(config, task), make_mesh())
  higher = HIGHER_IS_BETTER[config.train.metric]
  with Checkpoints(folder / "checkpoints", higher_is_better=higher) as checkpoints:
    if checkpoints.latest_step() is None:
      raise workdir.WorkdirError(f"{folder} holds no checkpoint yet; train with --workdir={folder}")
    params = _chosen_params(config, checkpoints, recipe)
  return config, make_translator(config, task, recipe.model, local_copy(params, recipe.mesh), search)


class _Run:
  """A run on its way. `go` is the loop; the other methods are what it does at some of the steps."""

  def __init__(
    self,
    config: base.Config,
    folder: pathlib.Path,
    task: Task,
    recipe: Recipe,
    checkpoints: Checkpoints,
    launch: Launch,
  ):
    self._config, self._folder, self._task, self._recipe = config, folder, task, recipe
    self._checkpoints, self._launch = checkpoints, launch
    self._rngs = make_rngs(config.seed)
    self._batches = make_pipeline(task, config.train, own_rows(recipe.mesh, config.train.accumulation))
    restored = checkpoints.restore(abstract_state(recipe), repairs=True)
    checkpoints.delete_old()
    if restored is None:
      self.state, self.step = init_state(recipe, self._rngs.params), 0
    else:
      self.state, self.step = restored.state, restored.step
      self._batches.set_state(restored.position)
    self._earlier_tokens = float(self.state.sums.tokens)  # of steps that another process made
    self._validation = task.examples(task.watched, config.evaluation.validation_sentences)
    self._compiled: dict[Any, Any] = {}

  def go(self) -> None:
    """Trains until the last step, or until nothing gets better."""
    config, start = self._config.train, self.step
    say(_description(self._task, self.state))
    if start:
      say(f"continuing after step {start:,} of {config.steps:,}")
    with contextlib.ExitStack() as exits:
      if is_main():
        self._metrics = exits.enter_context(workdir.MetricsWriter(self._folder, start))
      self._progress = exits.enter_context(Progress(start, config.steps, is_shown=is_main()))
      steps = self._launch.profile if is_main() else None
      self._profile = exits.enter_context(Profile(self._folder / "profile", steps, self._progress.say))
      requested = exits.enter_context(stop_requests())
      before, has_stalled = None, self._has_stalled()
      while self.step < config.steps and not has_stalled:
        with self._progress.waiting():
          batch = next(self._batches)
        ticket = self._advance(batch)
        if before is not None:  # so a request to stop waits for two steps at most
          jax.block_until_ready(before)
        before = ticket
        if self._is_every(config.log_every):
          self._check_finite()
          self._record()
        if self._is_every(config.validate_every):
          self._check_finite()
          self._save(self._validate())  # last: a run killed before it measures again
          has_stalled = self._has_stalled()
        self._stop_if_asked(requested)
      if self.step > start:
        self._progress.say(self._progress.summary())

  def _advance(self, batch: Batch) -> jax.Array:
    """Makes a step, without waiting for it; returns something to wait for."""
    placed = place_batch(batch, self._recipe.mesh)
    key = tuple(array.shape for array in placed)
    if key not in self._compiled:
      (B, S), T = placed.sources.shape, placed.targets.shape[1]
      with self._progress.compiling(f"{B} pairs of {S} and {T} tokens"):
        lowered = train_step.lower(self.state, placed, self._rngs.dropout, recipe=self._recipe)
        self._compiled[key] = lowered.compile()
    self.step += 1
    with self._profile.of(self.step, lambda: self.state):
      self.state, ticket = self._compiled[key](self.state, placed, self._rngs.dropout)
    self._progress.advance(self.step)
    return ticket

  def _is_every(self, count: int) -> bool:
    """Returns whether this step is one of every `count`, or the last."""
    return self.step % count == 0 or self.step == self._config.train.steps

  def _stop_if_asked(self, requested: Callable[[], int]) -> None:
    """Raises Interrupted, with a checkpoint left, if a signal asks this process or another to stop."""
    # Several processes ask each other, which takes time: at some of the steps, the same for all.
    if jax.process_count() > 1 and not self._is_every(_ASK_EVERY):
      return
    stop = largest(requested())
    if stop:
      self._check_finite()
      self._save(None)
      raise Interrupted(f"stopped at step {self.step:,}; the same command continues from there", 128 + stop)

  def _check_finite(self) -> None:
    """Raises Diverged if training has left the finite numbers."""
    if math.isfinite(self.state.sums.loss) and is_finite(self.state.params):
      return
    last = self._checkpoints.latest_step()
    kept = "there is no checkpoint yet" if last is None else f"the last checkpoint is of step {last:,}"
    raise Diverged(
      f"the loss or a parameter is not finite at step {self.step:,}; {kept}; try a smaller "
      "config.train.learning_rate or config.train.clip_norm in another --workdir"
    )

  def _record(self) -> None:
    """Writes the loss since the last record."""
    self._check_there()  # what is written to a deleted file goes nowhere, and nothing says so
    tokens = float(self.state.sums.tokens)
    loss = float(self.state.sums.loss) / tokens
    reset = jax.jit(no_sums, out_shardings=everywhere(self._recipe.mesh))
    self.state = self.state._replace(sums=reset())
    speeds = self._progress.record(loss, tokens - self._earlier_tokens)
    self._earlier_tokens = 0.0
    if is_main():
      self._metrics.write(self.step, {"train/loss": loss}, speeds)

  def _validate(self) -> float:
    """Measures and writes how good the translations are; returns the metric that is watched."""
    config, name = self._config, self._task.watched
    params = local_copy(translating_params(self.state), self._recipe.mesh)
    # All processes do, though one writes: a wait of all others for one would end at JAX's time limits.
    with self._progress.aside():
      greedy = make_translator(config, self._task, self._recipe.model, params, {"beam_size": 1})
      values = greedy.evaluate(self._validation)
    if is_main():
      self._metrics.write(self.step, {f"{name}/{metric}": value for metric, value in values.items()})
    self._progress.say(f"step {self.step:,}, {name}: {summary(values)}")
    return of_main(values[config.train.metric])

  def _save(self, score: float | None) -> None:
    self._check_there()
    with self._progress.aside():
      self._checkpoints.save(self.step, self.state, self._batches.get_state(), score)

  def _check_there(self) -> None:
    if is_main():  # another may not yet see what this one has written
      workdir.check_there(self._folder)

  def _has_stalled(self) -> bool:
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
    self._progress.say(f"{name} has not become better for {since_best} validations: training ends here")
    return True


def make_task_model(config: base.Config, task: Task) -> attention.Seq2Seq:
  """Returns the config's model for the task's vocabularies."""
  return make_model(
    config.model,
    source_vocabulary_size=len(task.source.vocabulary),
    target_vocabulary_size=len(task.target.vocabulary),
  )


def make_translator(
  config: base.Config,
  task: Task,
  model: attention.Seq2Seq,
  params: Any,
  search: Mapping[str, Any] = MappingProxyType({}),
) -> Translator:
  """Returns a translator with the config's settings for evaluation, and some others of its `Search`."""
  settings = {
    "max_length": config.evaluation.max_target_length,
    "beam_size": config.evaluation.beam_size,
    "length_penalty": config.evaluation.length_penalty,
  }
  return Translator(
    task,
    model,
    cast(params, config.model.dtype),
    batch_size=config.evaluation.batch_size,
    search=Search(**{**settings, **search}),
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


@contextlib.contextmanager
def _opened(config: base.Config, folder: pathlib.Path, launch: Launch) -> Iterator[Task]:
  """Gives the task of a run; its folder is made, and locked, once every mistake that can be seen has been.

  If there are several processes, they begin together or not at all.
  """
  check_shares()  # first: where it fails, processes cannot even tell each other
  with contextlib.ExitStack() as exits:
    try:
      task, description = _checked(config, folder, launch)
      if is_main():
        exits.enter_context(workdir_lock(folder))
        check_same_config(folder, config)  # another trainer may have been faster
    except Exception as error:  # to be told here, when the others have been
      begin_together(None, error)
      raise
    begin_together(_shared_settings(config, folder, launch, task, description), None)
    if is_main():
      provenance.record_launch(folder, description)
      write_run(folder, config, (task.source, task.target))
    yield task


def _checked(config: base.Config, folder: pathlib.Path, launch: Launch) -> tuple[Task, dict[str, Any]]:
  """Returns the task and what describes this start, after all checks that need no lock."""
  check_config(config)
  make_mesh(launch.parameter_shards)
  check_same_config(folder, config)
  workdir.check_nothing_lost(folder)
  data = config.data
  description = provenance.describe_launch(provenance.digests([data.train, data.validation, data.test]))
  provenance.check_same_data(folder, description["data"])
  task = make_task(config, read_languages(folder, config.data))
  provenance.check_same_words(folder, _words(task))
  description["vocabularies"] = provenance.digest_of(_words(task))
  task.training_batch(0)
  for split in (task.watched, *task.splits):
    task.examples(split, 1)
  return task, description


def _shared_settings(
  config: base.Config, folder: pathlib.Path, launch: Launch, task: Task, description: dict[str, Any]
) -> list[Any]:
  """Returns what must be the same in all processes."""
  versions, digests = (description["versions"], description["commit"]), list(description["data"].values())
  place = str(folder.resolve())
  return [dataclasses.asdict(config), place, digests, _words(task), versions, launch.parameter_shards]


def _words(task: Task) -> list[tuple[str, ...]]:
  """Returns the words of both vocabularies."""
  return [language.vocabulary.words for language in (task.source, task.target)]


def _chosen_params(config: base.Config, checkpoints: Checkpoints, recipe: Recipe) -> Any:
  """Returns the parameters to translate with of the best or of the last checkpoint."""
  step = checkpoints.best_step() if config.evaluation.checkpoint == "best" else checkpoints.latest_step()
  restored = checkpoints.restore(abstract_state(recipe), step)
  if restored is None:
    raise workdir.WorkdirError("there is no checkpoint to translate with")
  return translating_params(restored.state)


def _description(task: Task, state: TrainState) -> str:
  devices = jax.devices()
  count = f"{len(devices)} x " if len(devices) > 1 else ""
  return (
    f"{task}; {len(task.source.vocabulary):,} source and {len(task.target.vocabulary):,} target words; "
    f"{count_parameters(state.params):,} parameters; on {count}{devices[0].device_kind}"
  )
