"""The scores that a normalizer gets: `ScoreTile`, of some keys, and `ScoreRows`, of all keys.

Masked and non-finite pairs cannot affect a normalizer: their score is 0, they are left out of sums, and the
engines set their weights to 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.arrays.masking import is_minus_infinity, is_valid_row, mask_value, masked_scores, softmax_shift
from attention.arrays.shapes import with_rank


class ScoreTile(NamedTuple):
  """The scores of some queries and some keys.

  Attributes:
    scores: [... T S]; 0 for invalid pairs.
    valid: which pairs are valid, booleans broadcastable to [... T S]. Masked and non-finite pairs are not.
    t: query positions, [T 1].
    s: key positions, [1 S].
  """

  scores: jax.Array
  valid: jax.Array
  t: jax.Array
  s: jax.Array

  def shifted(self, row_max: jax.Array) -> jax.Array:
    """Returns the scores minus `row_max`, [... T S]; the lowest finite number for invalid pairs."""
    return jnp.where(self.valid, self.scores - row_max, mask_value(self.scores.dtype))


@dataclasses.dataclass(frozen=True)
class ScoreRows:
  """The scores of some queries and all keys, which are computed one tile after another.

  Attributes:
    operands: a pytree of arrays from which tiles are computed.
    fold: takes operands, a function of a carry and a tile that returns the next carry, and the first carry;
      returns the last carry.
    like: shapes and dtypes of a tile.
    row_max: the largest valid score of each query, if it is known.
  """

  operands: Any
  fold: Callable[[Any, Callable[[Any, ScoreTile], Any], Any], Any]
  like: Any
  row_max: jax.Array | None = None

  def max(self) -> jax.Array:
    """Returns the largest valid score of each query, [... T 1], or 0 if there is none; has no derivatives."""
    if self.row_max is not None:
      return self.row_max

    def update(row_max: jax.Array, tile: ScoreTile) -> jax.Array:
      scores = jnp.where(tile.valid, tile.scores, mask_value(tile.scores.dtype))
      return jnp.maximum(row_max, jnp.max(scores, axis=-1, keepdims=True))

    scores = self.like.scores
    initial = jnp.full((*scores.shape[:-1], 1), mask_value(scores.dtype))
    return softmax_shift(self.fold(jax.lax.stop_gradient(self.operands), update, initial))

  def sum(self, function: Callable[[ScoreTile], Any]) -> Any:
    """Returns the sums over the valid keys, [... T 1].

    Args:
      function: takes a tile, returns a pytree of arrays that broadcast to [... T S]. For invalid pairs it
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
  nonfinite: jax.Array | None,
  positions: tuple[jax.Array, jax.Array],
  *,
  all_keys: bool = False,
) -> tuple[ScoreTile, jax.Array]:
  """Returns a tile, and the largest score of each row after masking, [... T 1].

  Args:
    scores: [... T S].
    allowed, nonfinite: see `masked_scores`.
    positions: of the queries [T 1] and keys [1 S].
    all_keys: whether the tile has all keys, so that all pairs of a non-finite row are invalid.
  """
  allowed = None if allowed is None else with_rank(allowed, scores.ndim)
  masked = masked_scores(jax.lax.stop_gradient(scores), allowed, nonfinite)
  row_max = jnp.max(masked, axis=-1, keepdims=True, initial=mask_value(scores.dtype))
  valid = is_valid_row(row_max) if all_keys else jnp.isfinite(masked)
  valid = valid if allowed is None else valid & allowed
  scores = jnp.where(is_minus_infinity(scores), mask_value(scores.dtype), scores)
  scores = jnp.where(valid, scores, 0)
  # The values are those of the masked scores, and the derivatives those of the scores.
  clamped = jax.lax.stop_gradient(jnp.where(valid, masked, 0) - scores)
  return ScoreTile(scores + clamped, valid, *positions), row_max


def one_tile(
  scores: jax.Array,
  allowed: jax.Array | None,
  nonfinite: jax.Array | None,
  positions: tuple[jax.Array, jax.Array],
) -> tuple[ScoreTile, ScoreRows, jax.Array]:
  """Returns all scores as a tile and as rows, and the row maxima; see `score_tile`."""
  tile, row_max = score_tile(scores, allowed, nonfinite, positions, all_keys=True)
  like = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), tile)
  rows = ScoreRows(tile, lambda tile, update, initial: update(initial, tile), like, softmax_shift(row_max))
  return tile, rows, row_max
