"""Greedy search and sampling, one sequence per batch element."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import check_number, check_size, key_shape
from attention.arrays.dtypes import compute_dtype
from attention.decoding.hypotheses import Search, SearchResult, Step, prepare_search
from attention.decoding.top_k import top_k

# choose(i, logits [B V]) -> tokens [B]
Choose: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]


def greedy(
  step: Step,
  state: Any,
  *,
  batch_size: int,
  max_length: int,
  bos_id: int | jax.Array,
  eos_id: int,
  pad_id: int = 0,
) -> SearchResult:
  """Decodes by taking the most likely token at each step.

  Works under `jax.jit`: shapes are static, and the loop stops when all sequences are finished.

  Args:
    step: one step of a decoder: (state, tokens [B]) -> (state, logits [B V], weights [B S] or None).
    state: the initial state.
    batch_size: B.
    max_length: T, at which unfinished sequences are truncated. If the state has caches, it must not exceed
      their slots; logits beyond are NaN.
    bos_id: the first input of `step`: a start token, a token for each sequence [B], or rows of tokens [B P],
      such as prompts. Pad shorter rows at the end with -1. The results begin with the other tokens of the
      row, at probability 1; they count in max_length, and must not be end tokens. If the state has already
      read the prompts, as the cache of a Transformer can, pass the last token of each prompt, [B].
    eos_id: end token. Negative: sequences do not end.
    pad_id: token after the end.

  Returns:
    One hypothesis per sequence.

  Raises:
    ValueError: if a size or token is out of range, or the results of `step` have other shapes.
  """
  search = prepare_search(step, state, batch_size, max_length, bos_id, eos_id, pad_id)
  return _decode(search, lambda i, logits: _argmax(logits))


def sample(
  step: Step,
  state: Any,
  rng: jax.Array,
  *,
  batch_size: int,
  max_length: int,
  bos_id: int | jax.Array,
  eos_id: int,
  pad_id: int = 0,
  temperature: float | jax.Array = 1.0,
  top_k: int | None = None,
  top_p: float | jax.Array = 1.0,
) -> SearchResult:
  """Decodes by sampling each token from the model's distribution.

  The sample of a sequence depends on its key, or on `rng` and its index in the batch, but not on other
  sequences.

  Args:
    step: as in `greedy`, like the other arguments that are not listed.
    state: the initial state.
    rng: a PRNG key, or one per sequence, [B].
    batch_size: B.
    max_length: T.
    bos_id: start token, one token for each sequence, or rows of tokens.
    eos_id: end token.
    pad_id: token after the end.
    temperature: divides the logits; positive. Near 0, sampling equals greedy search.
    top_k: sample from the k most likely tokens only. Default: all.
    top_p: sample from the smallest set of most likely tokens whose total probability is at least top_p.
      Default: 1, all. Both limits apply to probabilities at the given temperature, top_k first.

  Returns:
    One hypothesis per sequence. Scores are log-probabilities at temperature 1.

  Raises:
    ValueError: if rng is not a key, or top_k, temperature or top_p is out of range; see also `greedy`.

  References:
    top_k: Fan et al. 2018, arXiv:1805.04833; top_p: Holtzman et al. 2020, arXiv:1904.09751.
  """
  search = prepare_search(step, state, batch_size, max_length, bos_id, eos_id, pad_id)
  largest = np.finfo(np.float32).max
  check_number("temperature", temperature, "a number above 0, and finite", lambda t: 0 < t <= largest)
  _check_top_p(top_p)
  is_all = not isinstance(top_p, jax.core.Tracer) and np.all(np.asarray(top_p) == 1)
  rngs = rng
  if key_shape(rng) == ():
    rngs = jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(batch_size))
  elif key_shape(rng) != (batch_size,):
    raise ValueError(f"rng must be a PRNG key, or {batch_size} keys, one per sequence, got {rng!r}")

  def choose(i: jax.Array, logits: jax.Array) -> jax.Array:
    logits = _below_largest(logits.astype(jnp.float32), temperature)
    logits = logits if top_k is None else mask_top_k(logits, top_k)
    logits = logits if is_all else mask_top_p(logits, top_p)
    return jax.vmap(jax.random.categorical)(jax.vmap(jax.random.fold_in, (0, None))(rngs, i), logits)

  return _decode(search, choose)


def _below_largest(logits: jax.Array, temperature: float | jax.Array = 1.0) -> jax.Array:
  """Returns (logits - maximum) / temperature, which is 0 at the maximum even if it is infinite."""
  largest = jnp.max(logits, axis=-1, keepdims=True)
  below = logits - largest
  # XLA may replace the division by a product with 1 / temperature, which is 0 for large temperatures.
  return jnp.where(logits == largest, 0, jnp.where(jnp.isneginf(below), -jnp.inf, below / temperature))


def _check_top_p(top_p: float | jax.Array) -> None:
  """Raises ValueError unless top_p is in (0, 1]."""
  check_number("top_p", top_p, "a number above 0 and at most 1", lambda p: 0 < p <= 1)


def mask_top_k(logits: jax.Array, k: int) -> jax.Array:
  """Sets all but the k largest logits [... V] to -inf. Of equal logits, the first are kept.

  Raises:
    ValueError: if k is less than 1.

  >>> mask_top_k(jnp.array([1.0, 3.0, 2.0]), 2).tolist()
  [-inf, 3.0, 2.0]
  """
  count = min(check_size("top_k", k), logits.shape[-1])
  return _keep(logits, top_k(logits, count)[1], True)


def mask_top_p(logits: jax.Array, p: float | jax.Array) -> jax.Array:
  """Sets logits [... V] to -inf, except the smallest set of the largest with total probability at least p.

  Of equal logits, the first are kept.

  Raises:
    ValueError: if p is known and not in (0, 1].

  >>> jnp.exp(mask_top_p(jnp.log(jnp.array([0.25, 0.5, 0.25])), 0.5)).tolist()
  [0.0, 0.5, 0.0]
  """
  _check_top_p(p)
  by_size = jnp.argsort(logits, axis=-1, descending=True)
  probabilities = jnp.take_along_axis(jax.nn.softmax(_below_largest(logits)), by_size, axis=-1)
  # A token is kept if the total probability of larger ones is below p. The first is always kept, even if p
  # is 0 in float32.
  is_large = (jnp.cumsum(probabilities, axis=-1) - probabilities < p).at[..., 0].set(True)
  return _keep(logits, by_size, is_large)


def _keep(logits: jax.Array, tokens: jax.Array, is_kept: jax.Array | bool) -> jax.Array:
  """Sets logits [... V] to -inf, except those of the tokens [... K] that are kept."""
  mask = jnp.put_along_axis(jnp.zeros(logits.shape, bool), tokens, is_kept, axis=-1, inplace=False)
  return jnp.where(mask, logits, -jnp.inf)


def _argmax(logits: jax.Array) -> jax.Array:
  """Returns `jnp.argmax` of logits [... V], faster on CPUs."""
  logits = logits.astype(compute_dtype(logits.dtype))
  is_nan = jnp.isnan(logits)  # the first NaN comes before infinity, as in `jnp.argmax`
  logits = jnp.where(jnp.any(is_nan, axis=-1, keepdims=True), jnp.where(is_nan, jnp.inf, -jnp.inf), logits)
  return jnp.squeeze(top_k(logits, 1)[1], axis=-1)


def _decode(search: Search, choose: Choose) -> SearchResult:
  """Decodes sequences whose tokens are chosen by `choose`."""
  (B,), T, weights = search.first.shape, search.max_length, search.weights
  result = SearchResult(
    tokens=jnp.full((B, T), search.pad_id),
    scores=jnp.zeros((B,), jnp.float32),
    weights=None if weights is None else jnp.zeros((B, T, weights.shape[-1]), weights.dtype),
  )

  def cond_fn(carry):
    i, _, _, finished, _ = carry
    return (i < T) & ~jnp.all(finished)

  def body_fn(carry):
    i, state, tokens, finished, result = carry
    state, logits, weights = search.step(state, tokens)
    chosen = choose(i, logits).astype(jnp.int32)
    logits = logits.astype(jnp.float32)
    # The maximum is subtracted first, as in `log_softmax`, so that large logits lose no digits.
    relative = logits - jnp.max(logits, axis=-1, keepdims=True)
    gained = jnp.take_along_axis(relative, chosen[:, None], axis=-1)[:, 0]
    gained -= jnp.log(jnp.sum(jnp.exp(relative), axis=-1))
    tokens = jnp.where(finished, search.pad_id, chosen)
    if weights is not None:
      weights = result.weights.at[:, i].set(jnp.where(finished[:, None], 0, weights))
    scores = result.scores + jnp.where(finished, 0.0, gained)
    result = SearchResult(result.tokens.at[:, i].set(tokens), scores, weights)
    return i + 1, state, tokens, finished | (chosen == search.eos_id), result

  carry = (jnp.int32(0), search.state, search.first, jnp.zeros((B,), bool), result)
  return jax.lax.while_loop(cond_fn, body_fn, carry)[-1]
