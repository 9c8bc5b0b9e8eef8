"""What a normalizer receives: `ScoreTile`, the scores of some keys, and `ScoreRows`, those of all keys.

Masked and non-finite pairs cannot affect a normalizer: their score is 0, they are left out of sums, and the
engines set their weights to 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.masking import levels, masked_scores, row_maxima


class ScoreTile(NamedTuple):
  """The scores of some queries and some keys.

  Attributes:
    scores: [T S]; 0 for invalid pairs.
    valid: which pairs are valid, booleans [T S]. Masked and non-finite pairs are not.
    t: query positions, [T 1].
    s: key positions, [1 S].
  """

  scores: jax.Array
  valid: jax.Array
  t: jax.Array
  s: jax.Array

  def shifted(self, row_max: jax.Array) -> jax.Array:
    """Returns the scores minus `row_max`, [T S]; the lowest finite number for invalid pairs."""
    return jnp.where(self.valid, self.scores - row_max, levels(self.scores.dtype).masked)


@dataclasses.dataclass(frozen=True)
class ScoreRows:
  """The scores of some queries and all keys, which are computed one tile after another.

  Attributes:
    operands: a pytree of arrays from which tiles are computed.
    fold: takes operands, a function of a carry and a tile that returns the next carry, and the first carry;
      returns the last carry.
    like: shapes and dtypes of a tile.
  """

  operands: Any
  fold: Callable[[Any, Callable[[Any, ScoreTile], Any], Any], Any]
  like: Any

  def max(self) -> jax.Array:
    """Returns the largest valid score of each query, [T 1], or 0 if there is none; has no derivatives."""

    def update(row_max: jax.Array, tile: ScoreTile) -> jax.Array:
      scores = jnp.where(tile.valid, tile.scores, levels(tile.scores.dtype).masked)
      return jnp.maximum(row_max, jnp.max(scores, axis=-1, keepdims=True))

    scores = self.like.scores
    initial = jnp.full((*scores.shape[:-1], 1), levels(scores.dtype).masked)
    row_max = self.fold(jax.lax.stop_gradient(self.operands), update, initial)
    return jnp.where(row_max == levels(row_max.dtype).masked, 0, row_max)

  def sum(self, function: Callable[[ScoreTile], Any]) -> Any:
    """Returns the sums over the valid keys, [T 1].

    Args:
      function: takes a tile, returns a pytree of arrays that broadcast to [T S]. For invalid pairs it
        must be finite, with finite derivatives.
    """

    def sums(tile: ScoreTile) -> Any:
      def sum_of(terms: Any) -> jax.Array:
        terms = jnp.broadcast_to(jnp.asarray(terms, tile.scores.dtype), tile.scores.shape)
        return jnp.sum(jnp.where(tile.valid, terms, 0), axis=-1, keepdims=True)

      return jax.tree.map(sum_of, function(tile))

    initial = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(sums, self.like))
    return self.fold(self.operands, lambda totals, tile: jax.tree.map(jnp.add, totals, sums(tile)), initial)

  def without_gradient(self) -> "ScoreRows":
    """Returns the same rows as constants, for searches that need no derivatives."""
    return dataclasses.replace(self, operands=jax.lax.stop_gradient(self.operands))


def score_tile(
  scores: jax.Array,
  allowed: jax.Array | None,
  nonfinite_keys: jax.Array,
  positions: tuple[jax.Array, jax.Array],
) -> tuple[ScoreTile, jax.Array]:
  """Returns a tile, and the largest score of each row after masking, [T 1].

  Args:
    scores: [T S].
    allowed, nonfinite_keys: see `masked_scores`.
    positions: of the queries [T] and keys [S].
  """
  scores = masked_scores(scores, allowed, nonfinite_keys)
  valid = (scores > levels(scores.dtype).masked) & (scores < levels(scores.dtype).nonfinite)
  t, s = positions
  return ScoreTile(jnp.where(valid, scores, 0), valid, t[:, None], s[None, :]), row_maxima(scores)


def one_tile(tile: ScoreTile) -> ScoreRows:
  """Returns a tile of all keys as rows."""
  like = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), tile)
  return ScoreRows(tile, lambda tile, update, initial: update(initial, tile), like)
