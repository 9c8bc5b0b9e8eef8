"""Checks of the custom components of a config, before training."""

import functools
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax.core import Scope
from flax.linen.module import InterceptorContext

import attention
from attention.layers.stateful_attention import AttentionStep
from configs import base
from experiments.cli import components
from experiments.cli.config_fields import ConfigError
from experiments.cli.errors import UserError
from experiments.data.batches import Batch
from experiments.data.task import SIDES, Example, Task
from experiments.data.tasks import make_task
from experiments.devices.sharding import local_rows, place_batch
from experiments.evaluation.evaluate import evaluate, load_custom_metrics
from experiments.inference.translator import make_translator
from experiments.learning.step import TrainSpec, abstract_state, make_rngs, train_step
from experiments.runs.record import language_digest, read_languages, write_languages

# Sizes of the batch whose shapes are checked: sentences, source words, target words.
_B, _S, _T = 2, 5, 3
# Results of methods, by the class of the parent, the name of the module and the method: type, description and
# shapes, where * is any value, and ? an array or None.
_RESULTS: dict[tuple[str, str | None, str], tuple[type[tuple[Any, ...]], str, str]] = {
  ("Seq2Seq", "encoder", "__call__"): (
    attention.Encoded,
    "attention.Encoded(memory [B S D], final_state [B D])",
    "BSD BD",
  ),
  ("RecurrentDecoder", "attention", "attend_with_kv"): (
    tuple,
    "contexts [B T D] and weights [B T S]",
    "BTD BTS",
  ),
  ("RecurrentDecoder", "attention", "step"): (
    AttentionStep,
    "attention.AttentionStep(context [B D], weights [B S], state)",
    "BD BS *",
  ),
  ("Seq2Seq", "decoder", "prepare"): (tuple, "the initial state and the memory", "* *"),
  ("Seq2Seq", "decoder", "step"): (tuple, "the state, logits [B V] and weights [B S] or None", "* BV BS?"),
  ("Seq2Seq", "decoder", "__call__"): (tuple, "logits [B T V] and weights [B T S] or None", "BTV BTS?"),
  ("Seq2Seq", "decoder", "output_features"): (
    tuple,
    "features [B T H] and weights [B T S] or None",
    "BTH BTS?",
  ),
  ("Seq2Seq", "decoder", "output_projection"): (tuple, "kernel [H V] and bias [V]", "HV V"),
}


def check_custom_components(config: base.Config, task: Task, spec: TrainSpec) -> None:
  """Raises ConfigError if custom components cannot be trained, evaluated or compiled."""
  custom = components.custom_components(config)
  try:
    batch = task.training_batch(0)
    if not isinstance(batch, Batch):
      raise TypeError(f"training_batch must return a Batch (see `make_batch`), got {_describe(batch)}")
    if config.train.alignment_loss_weight and batch.links is None:
      raise ConfigError(
        "config.train.alignment_loss_weight must be 0 if the batches of the task have no links "
        f"(`make_batch(..., alignments=...)`), got {config.train.alignment_loss_weight}"
      )
    if base.is_custom(config.data.task):
      _check_languages(config, task)
    examples = [_examples(task, split) for split in dict.fromkeys((task.validation_split, *task.splits))]
    model, rngs = spec.model, make_rngs(config.seed)
    hash(model)  # the model is a static argument of compiled functions
    _check_shapes(model, len(task.target.vocabulary))
    words = np.ones((1, 2), np.int32)
    params = jax.jit(model.init)(rngs.params, words, words[:, 0], words)["params"]
    _check_independence(model, params, task, batch.sources.shape[1])
    translator = make_translator(config, task, model, params, {"beam_size": 1})
    for split_examples in examples:
      evaluate(translator, split_examples, load_custom_metrics(config.evaluation))
    step = functools.partial(train_step, spec=spec)
    rows = local_rows(batch, spec.mesh.size * config.train.grad_accumulation_steps)
    jax.eval_shape(step, abstract_state(spec), place_batch(rows, spec.mesh), rngs.dropout)
  except UserError:
    raise
  except (Exception, SystemExit) as error:  # custom code may raise anything
    fields = ", ".join(f"config.{field}={name}" for field, name in custom)
    text = components.format_error(error, *(name for _, name in custom))
    raise ConfigError(f"{fields}: {text}") from error


def _check_languages(config: base.Config, task: Task) -> None:
  """Raises ValueError if a task has other languages when its run is resumed."""
  languages = task.source, task.target
  with tempfile.TemporaryDirectory() as name:
    write_languages(pathlib.Path(name), languages)
    resumed = make_task(config, read_languages(pathlib.Path(name), config.data))
  if language_digest((resumed.source, resumed.target)) != language_digest(languages):
    raise ValueError(
      "source and target must be the same for a resumed run, which passes `languages` with the tokenizer of "
      f"config.data.tokenization={config.data.tokenization} and config.data.lowercase={config.data.lowercase}"
    )


def _examples(task: Task, split: str) -> list[Example]:
  """Returns two examples of a split. Raises TypeError if they are not examples."""
  examples = task.examples(split, 2)
  if not (isinstance(examples, list) and examples and all(isinstance(item, Example) for item in examples)):
    raise TypeError(f"examples({split!r}, 2) must return a list of Example, got {examples!r:.200}")
  for name, tokens in [(side, getattr(example, side)) for example in examples for side in SIDES]:
    if isinstance(tokens, str):
      raise TypeError(f"{name} of an Example must be a tuple of tokens, got {tokens!r:.80}")
  return examples


def _check_shapes(model: attention.Seq2Seq, vocabulary_size: int) -> None:
  """Raises ValueError if a module of the model returns what its interface does not allow."""
  sources, targets = np.ones((_B, _S), np.int32), np.ones((_B, _T), np.int32)
  lengths, rng = np.full(_B, _S, np.int32), jax.eval_shape(jax.random.key, 0)

  def step(variables: Any) -> Any:
    state, memory = model.apply(variables, sources, lengths, _T, method="encode")
    return model.apply(variables, state, targets[:, 0], memory, method="step")

  def features(variables: Any) -> Any:
    return model.apply(variables, sources, lengths, targets, method="output_features")

  with nn.intercept_methods(functools.partial(_check_result, vocabulary_size)):
    variables = jax.eval_shape(lambda rng: model.init(rng, sources, lengths, targets), rng)
    jax.eval_shape(features, variables)
    jax.eval_shape(step, variables)


def _check_result(
  vocabulary_size: int, function: Callable[..., Any], args: Any, kwargs: Any, context: InterceptorContext
) -> Any:
  """Calls a method of a module and returns its result. Raises ValueError if it has other shapes."""
  result, module = function(*args, **kwargs), context.module
  parent = "RecurrentDecoder" if isinstance(module.parent, Scope) else type(module.parent).__name__
  key = parent, module.name, context.method_name  # in a loop over steps, the parent is the scope of the loop
  if key not in _RESULTS or isinstance(module, attention.MultiHeadAttention):
    return result
  sizes = {"B": _B, "T": args[0].shape[1] if key[1] == "attention" else _T, "S": _S, "V": vocabulary_size}
  result_type, text, shapes = _RESULTS[key]
  if not (isinstance(result, result_type) and _fits(result, shapes.split(), sizes)):
    name = f"{type(module).__name__}.{context.method_name}"
    listed = ", ".join(f"{letter}={size}" for letter, size in sizes.items())
    raise ValueError(f"{name} must return {text} for {listed}, got {_describe(result)}")
  return result


def _fits(results: Sequence[Any], shapes: Sequence[str], sizes: Mapping[str, int]) -> bool:
  """Returns whether each result has its shape, where other letters than those of `sizes` are any size."""
  if len(results) != len(shapes):
    return False
  for result, shape in zip(results, shapes, strict=True):
    actual, is_optional = getattr(result, "shape", ()), shape.endswith("?")
    letters = shape.removesuffix("?")
    if letters == "*" or (is_optional and result is None):
      continue
    if len(actual) != len(letters) or any(
      sizes.get(letter, size) != size for letter, size in zip(letters, actual, strict=True)
    ):
      return False
  return True


def _describe(value: Any) -> str:
  """Returns the type of a value, or the shapes of arrays.

  >>> _describe((np.ones((2, 3)), None))
  'tuple([2 3], None)'
  """
  if isinstance(value, (tuple, list)):
    return f"{type(value).__name__}({', '.join(map(_describe, value))})"
  if hasattr(value, "shape"):
    return f"[{' '.join(map(str, value.shape))}]"
  return "None" if value is None else type(value).__name__


def _check_independence(model: attention.Seq2Seq, params: Any, task: Task, source_length: int) -> None:
  """Raises ValueError if the output of a sentence depends on padding or on other sentences of its batch."""
  rng, lengths = np.random.default_rng(0), np.array([*[3] * 8, 0], np.int32)  # the last row is padding

  def first_row(sources: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logits, weights = apply({"params": params}, sources, lengths, targets)
    if not np.isfinite(logits).all():
      raise ValueError("logits must be finite, also for padding rows with source length 0")
    if weights is None:
      return np.asarray(logits)[0], np.zeros(1)
    if not np.isfinite(weights[:-1]).all():
      raise ValueError("attention weights must be finite")
    return np.asarray(logits)[0], np.asarray(weights)[0, :, :3]

  apply = jax.jit(model.apply)
  for _ in range(3):
    sources, targets = (
      rng.integers(len(language.vocabulary), size=(len(lengths), 3), dtype=np.int32)
      for language in (task.source, task.target)
    )
    expected = first_row(sources, targets)
    same = [np.repeat(side[:1], len(side), axis=0) for side in (sources, targets)]
    _check_same("other sentences of the batch", expected, first_row(*same), 1e-5)
  padded = np.pad(sources, ((0, 0), (0, max(source_length - 3, 1))))
  _check_same("source padding", expected, first_row(padded, targets), 1e-3)


def _check_same(cause: str, expected: Any, actual: Any, tolerance: float) -> None:
  """Raises ValueError if logits or weights depend on a cause."""
  for name, array, other in zip(("logits", "attention weights"), expected, actual, strict=True):
    difference = np.max(np.abs(array.astype(np.float64) - other.astype(np.float64)))
    if difference > tolerance:
      raise ValueError(
        f"{name} must not depend on {cause}, got a difference of up to {difference:.2g}; check masks and "
        "lengths"
      )
