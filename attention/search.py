"""Search for a likely sequence under any step function."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

# step(state, tokens [B]) -> (state, logits [B V], weights [B S] or None)
Step: TypeAlias = Callable[[Any, jax.Array], tuple[Any, jax.Array, jax.Array | None]]


class Hypotheses(NamedTuple):
  """What a search has found.

  Attributes:
    tokens: [B T], the end symbol included, padding after it.
    scores: log-probability of each sequence, in nats, the end symbol included, float32 [B].
    weights: the attention with which each token was chosen, [B T S], zero after the end; None if the
      step function gives none.
  """

  tokens: jax.Array
  scores: jax.Array
  weights: jax.Array | None


def greedy(
  step: Step,
  state: Any,
  *,
  batch_size: int,
  max_length: int,
  start: int,
  end: int,
  pad: int = 0,
) -> Hypotheses:
  """Takes the likeliest token at every step, until all sequences have ended.

  Works under `jax.jit`: shapes are fixed, and the loop stops at the last end symbol.

  Args:
    step: one step of a decoder: (state, tokens [B]) -> (state, logits [B V], weights [B S] or None).
    state: before the first step.
    batch_size: B.
    max_length: T, at which a sequence is cut if it has not ended.
    start: the token that is read first.
    end: the token that ends a sequence.
    pad: what stands after the end.

  Returns:
    The hypotheses, one for each sequence of the batch.

  Raises:
    ValueError: if max_length is less than 1.
  """
  if max_length < 1:
    raise ValueError(f"max_length must be at least 1, got {max_length}")
  first = jnp.full((batch_size,), start, jnp.int32)
  weights = jax.eval_shape(step, state, first)[2]
  found = Hypotheses(
    tokens=jnp.full((batch_size, max_length), pad, jnp.int32),
    scores=jnp.zeros((batch_size,), jnp.float32),
    weights=None
    if weights is None
    else jnp.zeros((batch_size, max_length, weights.shape[-1]), weights.dtype),
  )

  def goes_on(carry):
    i, _, _, ended, _ = carry
    return (i < max_length) & ~jnp.all(ended)

  def advance(carry):
    i, state, tokens, ended, found = carry
    state, logits, weights = step(state, tokens)
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    tokens = jnp.where(ended, pad, best)
    gained = jnp.where(ended, 0.0, jnp.max(log_probabilities, axis=-1))
    if weights is not None:
      weights = jnp.where(ended[:, None], 0, weights)
      weights = found.weights.at[:, i].set(weights)
    found = Hypotheses(found.tokens.at[:, i].set(tokens), found.scores + gained, weights)
    return i + 1, state, tokens, ended | (best == end), found

  carry = (jnp.int32(0), state, first, jnp.zeros((batch_size,), bool), found)
  *_, found = jax.lax.while_loop(goes_on, advance, carry)
  return found
