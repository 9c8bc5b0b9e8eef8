"""The arguments and results of decoding."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_integers, check_size, check_token

# step(state, tokens [B]) -> (state, logits [B V], weights [B S] or None)
Step: TypeAlias = Callable[[Any, jax.Array], tuple[Any, jax.Array, jax.Array | None]]


class SearchResult(NamedTuple):
  """The result of decoding.

  Attributes:
    tokens: [B T], including the end symbol, then padding; for beam search [B n_best T], best first.
    scores: log-probability of each sequence in nats, including the end symbol, float32 [B]; for beam search
      [B n_best], divided by the length penalty.
    weights: attention weights of each token, [B T S] or [B n_best T S], zero after the end; None if the step
      function returns none.
  """

  tokens: jax.Array
  scores: jax.Array
  weights: jax.Array | None


class Search(NamedTuple):
  """The validated arguments of a search.

  Attributes:
    step: the step function; after it, tokens of a prompt have all probability.
    state: its initial state.
    first: the first input of `step`, int32 [B].
    max_length: T.
    eos_id: end token, int32; negative if there is none.
    pad_id: token after the end, int32.
    num_tokens: V, the number of logits.
    weights: shape and dtype of the attention weights [B S], or None.
  """

  step: Step
  state: Any
  first: jax.Array
  max_length: int
  eos_id: jax.Array
  pad_id: jax.Array
  num_tokens: int
  weights: jax.ShapeDtypeStruct | None


def prepare_search(
  step: Step,
  state: Any,
  batch_size: int,
  max_length: int,
  bos_id: int | jax.Array,
  eos_id: int,
  pad_id: int,
  *,
  reorders: bool = False,
) -> Search:
  """Checks the arguments of a search, and returns what its loop needs; see `greedy`.

  Args:
    reorders: whether the search reorders the arrays of the state, which must then have axes [B ...].
  """
  B, T = check_size("batch_size", batch_size, least=0), check_size("max_length", max_length)
  eos, pad = check_token("eos_id", eos_id), check_token("pad_id", pad_id)
  prompt = as_integers("bos_id", bos_id).astype(jnp.int32)
  if prompt.ndim == 0:
    prompt = jnp.full((B,), check_token("bos_id", bos_id))
  if prompt.ndim > 2 or prompt.shape[0] != B or 0 in prompt.shape[1:]:
    raise ValueError(
      f"bos_id must be a token, tokens [B] or rows of tokens [B P], with B={B}, got shape {prompt.shape}"
    )
  for leaf in jax.tree.leaves(state):
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, bool)):
      raise ValueError(f"state must be a pytree of arrays, got a leaf {leaf!r}")
    if reorders and np.shape(leaf)[:1] != (B,):
      raise ValueError(f"arrays of state must have axes [B ...] with B={B}, got shape {np.shape(leaf)}")
  rows = prompt[:, None] if prompt.ndim == 1 else prompt
  V, weights = _check_step(step, state, rows[:, 0])
  _check_known_below("bos_id", bos_id, V)
  _check_known_below("eos_id", eos_id, V)
  _check_prompts(bos_id, T, eos_id)
  if rows.shape[1] > 1:
    step, state = _with_prompt(step, rows), (jnp.zeros(B, jnp.int32), state)
  return Search(step, state, rows[:, 0], T, eos, pad, V, weights)


def _check_step(step: Step, state: Any, tokens: jax.Array) -> tuple[int, jax.ShapeDtypeStruct | None]:
  """Returns V and the weights of a step function, or raises ValueError if its results are invalid."""
  results = jax.eval_shape(step, state, tokens)
  if not isinstance(results, (tuple, list)) or len(results) != 3:
    count = f"{len(results)} results" if isinstance(results, (tuple, list)) else type(results).__name__
    raise ValueError(f"step must return (state, logits [B V], weights [B S] or None), got {count}")
  after, logits, weights = results
  before = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, state))
  structures: Any = jax.tree.structure(before), jax.tree.structure(after)
  if structures[0] != structures[1]:
    raise ValueError(
      f"step must return a state with the structure of its argument, {structures[0]}, got {structures[1]}"
    )
  leaves = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
  for (path, old), new in leaves:
    if (old.shape, old.dtype) != (new.shape, new.dtype):
      raise ValueError(
        f"step must return a state with the shapes of its argument, got state{jax.tree_util.keystr(path)} "
        f"{new.dtype} {new.shape} for {old.dtype} {old.shape}"
      )
  _check_rows("logits [B V]", logits, tokens.shape[0])
  if weights is not None:
    _check_rows("weights [B S] or None", weights, tokens.shape[0])
  return logits.shape[1], weights


def _check_rows(name: str, array: Any, B: int) -> None:
  """Raises ValueError unless a result of a step function is a floating-point array [B X]."""
  if not hasattr(array, "shape") or len(array.shape) != 2 or array.shape[0] != B:
    got = f"shape {array.shape}" if hasattr(array, "shape") else repr(array)
    raise ValueError(f"step must return {name}, with B={B}, got {got}")
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise ValueError(f"step must return floating-point {name}, got {array.dtype}")


def _check_known_below(name: str, tokens: Any, V: int) -> None:
  """Raises ValueError if a known token is not among the V tokens of the logits. Negative tokens pass."""
  if _is_known(tokens) and np.max(np.asarray(tokens).astype(np.int64), initial=-1) >= V:
    raise ValueError(f"{name} must be below {V}, the number of logits, got {tokens}")


def _check_prompts(prompts: Any, T: int, eos_id: Any) -> None:
  """Raises ValueError unless known prompts fit into T steps, and have no end token and no gaps."""
  if not _is_known(prompts):
    return
  rows = np.atleast_1d(np.asarray(prompts).astype(np.int64))
  rows = rows[:, None] if rows.ndim == 1 else rows
  is_token = rows >= 0
  if not is_token[:, 0].all() or (is_token[:, 1:] > is_token[:, :-1]).any():
    raise ValueError(f"bos_id must have tokens of at least 0, and -1 only after them, got {prompts}")
  longest = np.max(np.sum(is_token, axis=1), initial=1)
  if longest - 1 > T:
    raise ValueError(f"max_length must be at least {longest - 1} for prompts of {longest} tokens, got {T}")
  if _is_known(eos_id) and (is_token[:, 1:] & (rows[:, 1:] == eos_id)).any():
    raise ValueError(f"bos_id must have eos_id={eos_id} only as first token, got {prompts}")


def _is_known(tokens: Any) -> bool:
  return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tokens))


def _with_prompt(step: Step, rows: jax.Array) -> Step:
  """Returns a step function after which the next token of a prompt, rows [B P], has all probability.

  Its state also counts the steps, [B]. Negative tokens are padding after a shorter prompt.
  """

  def step_in_prompt(state: Any, tokens: jax.Array) -> tuple[Any, jax.Array, jax.Array | None]:
    count, state = state
    state, logits, weights = step(state, tokens)
    following = jnp.take_along_axis(rows, count[:, None] + 1, axis=1, mode="fill", fill_value=-1)
    certain = jnp.where(jnp.arange(logits.shape[-1])[None] == following, 0, -jnp.inf).astype(logits.dtype)
    return (count + 1, state), jnp.where(following >= 0, certain, logits), weights

  return step_in_prompt
