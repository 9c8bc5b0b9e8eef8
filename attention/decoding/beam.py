"""Beam search: several hypotheses of each sequence, the best of them kept at every step."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.checks import check_number, check_size
from attention.decoding.hypotheses import SearchResult, Step, check_search


class Alive(NamedTuple):
  """The K hypotheses of each sequence that have not ended.

  Attributes:
    state: of the step function, leaves [B K ...].
    tokens: the last of each, [B K].
    scores: log-probabilities, [B K]; -inf where there is none.
  """

  state: Any
  tokens: jax.Array
  scores: jax.Array


class Finished(NamedTuple):
  """The K best hypotheses of each sequence that have ended, the best first.

  Attributes:
    scores: divided by the length penalty, [B K]; -inf where there is none.
    last: at which step each got its last token, [B K].
    parent: which of the alive hypotheses it was until then, [B K].
    token: its last token, [B K].
  """

  scores: jax.Array
  last: jax.Array
  parent: jax.Array
  token: jax.Array


class BackPointers(NamedTuple):
  """What happened at each of T steps, from which the hypotheses are read backwards.

  Attributes:
    tokens: of those alive after it, [T B K].
    parents: which of those alive before it they were, [T B K].
    weights: the attention of those alive before it, [T B K S]; None without.
  """

  tokens: jax.Array
  parents: jax.Array
  weights: jax.Array | None


def beam(
  step: Step,
  state: Any,
  *,
  batch_size: int,
  max_length: int,
  beam_size: int,
  bos_id: int,
  eos_id: int,
  pad_id: int = 0,
  length_penalty: float = 0.0,
  n_best: int = 1,
) -> SearchResult:
  """Returns the best sequences found by extending the `beam_size` likeliest prefixes at every step.

      score = log-probability / ((5 + length) / 6) ** length_penalty

  A hypothesis may end where fewer than `beam_size` continuations are likelier. Ended hypotheses take no place
  in the beam. The search stops when no alive hypothesis can still be among the `n_best`: log-probabilities
  only decrease, so its score is at most its log-probability divided by the penalty of `max_length`.

  While no prefix has been pruned every hypothesis may end, so a beam as wide as the number of prefixes finds
  the best of all sequences that end. A narrower beam of one without a penalty is `greedy`, but for ties, and
  where `greedy` is cut: at `max_length` a hypothesis that ends comes before one that is cut.

  Works under `jax.jit`: shapes are fixed, and the loop stops when all sequences are done. The result for a
  sequence does not depend on the others in its batch.

  References:
    Sutskever et al. 2014, arXiv:1409.3215, section 3.2; the penalty: Wu et al. 2016, arXiv:1609.08144,
    equation 14.

  Args:
    step: one step of a decoder: (state, tokens [B]) -> (state, logits [B V], weights [B S] or None). It is
      called under `jax.vmap`, once for all beams: what it closes over is not copied for them.
    state: before the first step, leaves [B ...].
    batch_size: B.
    max_length: T, at which a sequence is cut if it has not ended; at most as many steps as the state has room
      for, if it holds caches: beyond that logits are NaN.
    beam_size: K, how many hypotheses go on.
    bos_id: the token that is read first.
    eos_id: the token that ends a sequence.
    pad_id: what stands after the end.
    length_penalty: 0 or above; above 0 longer hypotheses are preferred. The largest divisor, that of
      max_length, must be finite in float32.
    n_best: how many hypotheses to return, at most beam_size.

  Returns:
    SearchResult with an axis for the best N, the best first. Those that have ended come before those that
    were cut. If there are fewer, the others have the score -inf and nothing but padding.

  Raises:
    ValueError: if an argument is out of its range.
  """
  B, T, first, last, padding = check_search(batch_size, max_length, bos_id, eos_id, pad_id)
  K, n_best = check_size("beam_size", beam_size), check_size("n_best", n_best)
  if n_best > K:
    raise ValueError(f"n_best must be at most beam_size={K}, got {n_best}")
  most = math.log(jnp.finfo(jnp.float32).max)
  check_number(
    "length_penalty",
    length_penalty,
    "0 or above, with ((5 + max_length) / 6) ** length_penalty finite in float32",
    lambda penalty: penalty >= 0 and penalty * math.log((5 + T) / 6) < most,
  )

  step = jax.vmap(step, in_axes=1, out_axes=1)
  alive = Alive(
    state=jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[:, None], K, axis=1), state),
    tokens=jnp.full((B, K), first),
    scores=jnp.full((B, K), -jnp.inf).at[:, 0].set(0.0),  # all are alike: only one counts
  )
  zeros = jnp.zeros((B, K), jnp.int32)
  finished = Finished(jnp.full((B, K), -jnp.inf), zeros, zeros, zeros)
  weights = jax.eval_shape(step, alive.state, alive.tokens)[2]
  back_pointers = BackPointers(
    jnp.zeros((T, B, K), jnp.int32),
    jnp.zeros((T, B, K), jnp.int32),
    None if weights is None else jnp.zeros((T, *weights.shape), weights.dtype),
  )

  def normalised(scores: jax.Array, length: jax.Array | int) -> jax.Array:
    return scores / ((5.0 + jnp.float32(length)) / 6.0) ** jnp.float32(length_penalty)

  def cond_fn(carry) -> jax.Array:
    i, alive, finished, *_ = carry
    # Scores are negative, so the largest penalty gives the best score that an alive hypothesis can reach.
    best_possible = normalised(jnp.max(alive.scores, axis=1), T)
    return (i < T) & ~jnp.all(finished.scores[:, n_best - 1] >= best_possible)

  def body_fn(carry):
    i, alive, finished, is_exhaustive, back_pointers = carry
    state, logits, weights = step(alive.state, alive.tokens)
    log_probabilities = alive.scores[:, :, None] + jax.nn.log_softmax(logits.astype(jnp.float32))
    V = logits.shape[-1]
    is_end = jnp.arange(V) == last
    end_scores = jnp.max(jnp.where(is_end, log_probabilities, -jnp.inf), axis=-1)
    continuations = jnp.where(is_end, -jnp.inf, log_probabilities).reshape(B, K * V)
    scores, indices = jax.lax.top_k(continuations, K)
    is_exhaustive &= (i == T - 1) | (jnp.sum(continuations > -jnp.inf, axis=1) <= K)
    parents, tokens = (indices // V).astype(jnp.int32), (indices % V).astype(jnp.int32)

    # Not scores[:, -1:]: a slice of what `top_k` returns makes XLA sort all continuations on CPUs.
    can_end = is_exhaustive[:, None] | (end_scores >= jnp.min(scores, axis=1, keepdims=True))
    ends = Finished(
      scores=jnp.where(can_end, normalised(end_scores, i + 1), -jnp.inf),
      last=jnp.full_like(tokens, i),
      parent=jnp.broadcast_to(jnp.arange(K, dtype=jnp.int32), (B, K)),
      token=jnp.full_like(tokens, last),
    )
    both = _concatenated(finished, ends)
    finished = _chosen(both, jax.lax.top_k(both.scores, K)[1])
    back_pointers = BackPointers(
      back_pointers.tokens.at[i].set(tokens),
      back_pointers.parents.at[i].set(parents),
      None if weights is None else back_pointers.weights.at[i].set(weights),
    )
    return i + 1, Alive(_chosen(state, parents), tokens, scores), finished, is_exhaustive, back_pointers

  start_carry = jnp.int32(0), alive, finished, jnp.ones(B, bool), back_pointers
  _, alive, finished, _, back_pointers = jax.lax.while_loop(cond_fn, body_fn, start_carry)
  return _backtrack(
    _with_truncated(finished, alive, back_pointers, normalised(alive.scores, T)),
    back_pointers,
    n_best,
    padding,
  )


def _with_truncated(
  finished: Finished, alive: Alive, back_pointers: BackPointers, scores: jax.Array
) -> Finished:
  """Returns the ended hypotheses, after them those that were cut at the last step, after them nothing."""
  last = back_pointers.tokens.shape[0] - 1
  truncated = Finished(
    scores, jnp.full_like(alive.tokens, last), back_pointers.parents[last], back_pointers.tokens[last]
  )
  both = _concatenated(finished, truncated)
  is_truncated = (jnp.arange(both.scores.shape[1]) >= finished.scores.shape[1])[None].astype(jnp.int32)
  group = jnp.where(jnp.isfinite(both.scores), is_truncated, 2)
  return _chosen(both, jnp.lexsort((-both.scores, group), axis=-1))


def _backtrack(result: Finished, back_pointers: BackPointers, n_best: int, pad_id: jax.Array) -> SearchResult:
  """Returns the first hypotheses, each followed from its last token to its first."""
  result = jax.tree.map(lambda array: array[:, :n_best], result)
  is_there = jnp.isfinite(result.scores)

  def step_back(alive_after, at_step):
    t, (tokens, parents, weights) = at_step
    is_last, is_beyond = t == result.last, (t > result.last) | ~is_there
    before = jnp.where(is_last, result.parent, _chosen(parents, alive_after))
    token = jnp.where(is_last, result.token, _chosen(tokens, alive_after))
    row = None if weights is None else jnp.where(is_beyond[..., None], 0, _chosen(weights, before))
    return jnp.where(is_beyond, alive_after, before), (jnp.where(is_beyond, pad_id, token), row)

  steps = jnp.arange(back_pointers.tokens.shape[0])
  _, (tokens, weights) = jax.lax.scan(step_back, result.parent, (steps, back_pointers), reverse=True)
  tokens, weights = jax.tree.map(lambda array: jnp.moveaxis(array, 0, 2), (tokens, weights))
  return SearchResult(tokens, result.scores, weights)


def _concatenated(first: Finished, second: Finished) -> Finished:
  """Returns the hypotheses of both, [B 2K]."""
  return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), first, second)


def _chosen(tree: Any, indices: jax.Array) -> Any:
  """Returns leaves [B K ...] at the indices [B N] of their second axis, [B N ...]."""
  return jax.tree.map(lambda leaf: jax.vmap(lambda row, index: row[index])(leaf, indices), tree)
