"""Beam search."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.checks import check_number, check_size
from attention.decoding.hypotheses import SearchResult, Step, prepare_search
from attention.decoding.top_k import top_k


class Alive(NamedTuple):
  """The K unfinished hypotheses of each sequence.

  Attributes:
    state: state of the step function, leaves [B K ...].
    tokens: last token of each, [B K].
    scores: log-probabilities, [B K]; -inf for missing hypotheses.
  """

  state: Any
  tokens: jax.Array
  scores: jax.Array


class Finished(NamedTuple):
  """The K best finished hypotheses of each sequence, best first.

  Attributes:
    scores: log-probabilities divided by the length penalty, [B K]; -inf for missing hypotheses.
    last: step of the last token, [B K].
    parent: index of the alive hypothesis that it extends, [B K].
    token: last token, [B K].
  """

  scores: jax.Array
  last: jax.Array
  parent: jax.Array
  token: jax.Array


class BackPointers(NamedTuple):
  """The history of T steps, from which hypotheses are reconstructed backwards.

  Attributes:
    tokens: tokens of the hypotheses after each step, [T B K].
    parents: index of the hypothesis before the step that each extends, [T B K].
    weights: attention weights of the hypotheses before each step, [T B K S]; None without attention.
  """

  tokens: jax.Array
  parents: jax.Array
  weights: jax.Array | None


def beam_search(
  step: Step,
  state: Any,
  *,
  batch_size: int,
  max_length: int,
  beam_size: int,
  bos_id: int | jax.Array,
  eos_id: int,
  pad_id: int = 0,
  length_penalty: float = 0.0,
  n_best: int = 1,
) -> SearchResult:
  """Decodes by beam search, extending the `beam_size` most likely prefixes at each step.

      score = log-probability / ((5 + length) / 6) ** length_penalty

  A hypothesis may finish if fewer than `beam_size` continuations are more likely. Finished hypotheses do not
  occupy the beam. The search stops when no alive hypothesis can enter the `n_best`: log-probabilities only
  decrease, so its score is at most its log-probability divided by the penalty of `max_length`.

  Until a prefix is pruned, every hypothesis may finish. If `beam_size` is at least the number of prefixes,
  the search is exhaustive. Otherwise, with `beam_size` 1 and no penalty, the result equals that of `greedy`,
  except for ties, and for truncated sequences: at `max_length`, finished hypotheses rank before truncated
  ones.

  Works under `jax.jit`, with static shapes. The result of a sequence does not depend on others in the batch.

  References:
    Sutskever et al. 2014, arXiv:1409.3215, section 3.2; the penalty: Wu et al. 2016, arXiv:1609.08144,
    equation 14.

  Args:
    step: one step of a decoder: (state, tokens [B]) -> (state, logits [B V], weights [B S] or None). It is
      called under `jax.vmap` over beams, so arrays that it closes over are not copied.
    state: the initial state, leaves [B ...].
    batch_size: B.
    max_length: T, at which unfinished sequences are truncated. If the state has caches, it must not exceed
      their slots; logits beyond are NaN.
    beam_size: K, the number of alive hypotheses per sequence.
    bos_id: as in `greedy`.
    eos_id: end token. Negative: sequences do not end.
    pad_id: token after the end.
    length_penalty: at least 0; larger values prefer longer hypotheses. The divisor for max_length must be
      finite in float32.
    n_best: number of hypotheses to return, at most beam_size.

  Returns:
    A `SearchResult` with tokens [B n_best T], scores [B n_best] and weights [B n_best T S], best first.
    Finished hypotheses precede truncated ones. Missing hypotheses have score -inf and only padding.

  Raises:
    ValueError: if an argument is out of range, or the results of `step` have other shapes.
  """
  search = prepare_search(step, state, batch_size, max_length, bos_id, eos_id, pad_id, reorders=True)
  (B,), T, V, eos = search.first.shape, search.max_length, search.num_tokens, search.eos_id
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

  step = jax.vmap(search.step, in_axes=1, out_axes=1)
  alive = Alive(
    state=jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[:, None], K, axis=1), search.state),
    tokens=jnp.repeat(search.first[:, None], K, axis=1),
    scores=jnp.full((B, K), -jnp.inf).at[:, 0].set(0.0),  # K copies of one hypothesis: only one counts
  )
  zeros = jnp.zeros((B, K), jnp.int32)
  finished = Finished(jnp.full((B, K), -jnp.inf), zeros, zeros, zeros)
  weights = search.weights
  back_pointers = BackPointers(
    jnp.zeros((T, B, K), jnp.int32),
    jnp.zeros((T, B, K), jnp.int32),
    None if weights is None else jnp.zeros((T, B, K, weights.shape[-1]), weights.dtype),
  )

  def penalized(scores: jax.Array, length: jax.Array | int) -> jax.Array:
    return scores / ((5.0 + jnp.float32(length)) / 6.0) ** jnp.float32(length_penalty)

  def cond_fn(carry) -> jax.Array:
    i, alive, finished, *_ = carry
    # Log-probabilities are negative, so the largest penalty bounds the score of alive hypotheses.
    best_possible = penalized(jnp.max(alive.scores, axis=1), T)
    return (i < T) & ~jnp.all(finished.scores[:, n_best - 1] >= best_possible)

  def body_fn(carry):
    i, alive, finished, is_exhaustive, back_pointers = carry
    state, logits, weights = step(alive.state, alive.tokens)
    logits = logits.astype(jnp.float32)
    end = jnp.where(eos < 0, V, eos)  # a symbol outside the vocabulary is never generated
    end_logits = jnp.take(logits, end, axis=-1, mode="fill", fill_value=-jnp.inf)
    # The best continuations of each hypothesis are found among its logits, since an array of all
    # log-probabilities would take as long as the model's step. With one more than K, the number of
    # continuations shows whether a prefix is pruned.
    best_logits, best_tokens = top_k(logits.at[..., end].set(-jnp.inf, mode="drop"), min(K + 1, V))
    # The maximum is subtracted first, as in `log_softmax`, so that large logits lose no digits. Slicing the
    # result of `lax.top_k`, as best_logits[..., 0], would make XLA sort all logits on CPUs.
    largest = jnp.maximum(jnp.max(best_logits, axis=-1), end_logits)
    log_normalizer = jnp.log(jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1))
    end_scores = alive.scores + (end_logits - largest - log_normalizer)
    gained = best_logits - largest[..., None] - log_normalizer[..., None]
    continuations = (alive.scores[..., None] + gained).reshape(B, -1)
    scores, indices = jax.lax.top_k(continuations, K)
    # Whether no prefix has been pruned; pruning at the last step has no effect.
    is_exhaustive &= (i == T - 1) | (jnp.sum(continuations > -jnp.inf, axis=1) <= K)
    parents = (indices // best_tokens.shape[-1]).astype(jnp.int32)
    tokens = jnp.take_along_axis(best_tokens.reshape(B, -1).astype(jnp.int32), indices, axis=1)

    # Not scores[:, -1:]: slicing the result of `lax.top_k` makes XLA sort all continuations on CPUs.
    can_end = is_exhaustive[:, None] | (end_scores >= jnp.min(scores, axis=1, keepdims=True))
    ends = Finished(
      scores=jnp.where(can_end, penalized(end_scores, i + 1), -jnp.inf),
      last=jnp.full_like(tokens, i),
      parent=jnp.broadcast_to(jnp.arange(K, dtype=jnp.int32), (B, K)),
      token=jnp.full_like(tokens, eos),
    )
    both = _concatenate(finished, ends)
    finished = _gather(both, jax.lax.top_k(both.scores, K)[1])
    back_pointers = BackPointers(
      back_pointers.tokens.at[i].set(tokens),
      back_pointers.parents.at[i].set(parents),
      None if weights is None else back_pointers.weights.at[i].set(weights),
    )
    return i + 1, Alive(_gather(state, parents), tokens, scores), finished, is_exhaustive, back_pointers

  initial_carry = jnp.int32(0), alive, finished, jnp.ones(B, bool), back_pointers
  _, alive, finished, _, back_pointers = jax.lax.while_loop(cond_fn, body_fn, initial_carry)
  return _backtrack(
    _with_truncated(finished, alive, back_pointers, penalized(alive.scores, T)),
    back_pointers,
    n_best,
    search.pad_id,
  )


def _with_truncated(
  finished: Finished, alive: Alive, back_pointers: BackPointers, scores: jax.Array
) -> Finished:
  """Returns the finished hypotheses, then those truncated at the last step, then missing ones."""
  last = back_pointers.tokens.shape[0] - 1
  truncated = Finished(
    scores, jnp.full_like(alive.tokens, last), back_pointers.parents[last], back_pointers.tokens[last]
  )
  both = _concatenate(finished, truncated)
  is_truncated = (jnp.arange(both.scores.shape[1]) >= finished.scores.shape[1])[None].astype(jnp.int32)
  group = jnp.where(jnp.isfinite(both.scores), is_truncated, 2)
  return _gather(both, jnp.lexsort((-both.scores, group), axis=-1))


def _backtrack(result: Finished, back_pointers: BackPointers, n_best: int, pad_id: jax.Array) -> SearchResult:
  """Returns the first `n_best` hypotheses, reconstructed from their last token to their first."""
  result = jax.tree.map(lambda array: array[:, :n_best], result)
  exists = jnp.isfinite(result.scores)

  def step_back(alive_after, at_step):
    t, (tokens, parents, weights) = at_step
    is_last, is_beyond = t == result.last, (t > result.last) | ~exists
    before = jnp.where(is_last, result.parent, _gather(parents, alive_after))
    token = jnp.where(is_last, result.token, _gather(tokens, alive_after))
    row = None if weights is None else jnp.where(is_beyond[..., None], 0, _gather(weights, before))
    return jnp.where(is_beyond, alive_after, before), (jnp.where(is_beyond, pad_id, token), row)

  steps = jnp.arange(back_pointers.tokens.shape[0])
  _, (tokens, weights) = jax.lax.scan(step_back, result.parent, (steps, back_pointers), reverse=True)
  tokens, weights = jax.tree.map(lambda array: jnp.moveaxis(array, 0, 2), (tokens, weights))
  return SearchResult(tokens, result.scores, weights)


def _concatenate(first: Finished, second: Finished) -> Finished:
  """Concatenates hypotheses, [B 2K]."""
  return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), first, second)


def _gather(tree: Any, indices: jax.Array) -> Any:
  """Gathers leaves [B K ...] at the indices [B M] of their second axis, [B M ...]."""
  return jax.tree.map(lambda leaf: jax.vmap(lambda row, index: row[index])(leaf, indices), tree)
