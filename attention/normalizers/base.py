"""The base class of normalizers, which map scores to weights.

A normalizer is a function of one tile of scores, at one index of the leading axes. Masked pairs cannot affect
its weights, and the engines handle empty and non-finite rows, so a custom normalizer is short:

>>> import dataclasses
>>> from attention import attend, register_pytree, ScaledDotProduct
>>> @register_pytree
... @dataclasses.dataclass(frozen=True)
... class SquaredRelu(Normalizer):
...   def weights(self, tile, state):
...     return jax.nn.relu(tile.scores) ** 2
>>> queries, keys = jnp.array([[2.0]]), jnp.array([[1.0], [-1.0]])
>>> attend(ScaledDotProduct(), queries, keys, keys, normalizer=SquaredRelu()).tolist()
[[4.0]]
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from attention.arrays.named_axes import NamedAxes
from attention.arrays.shapes import broadcasts_to
from attention.normalizers.rows import ScoreRows, ScoreTile


class Normalizer(NamedAxes):
  """Maps scores to weights, one tile of keys after another.

  Subclasses are frozen dataclasses with `register_pytree` that define `weights`. Weights that depend on other
  keys of the row also need a state: a pytree of arrays [T 1], from `row_state`.

  A normalizer may hold arrays, and names their axes as a `Score` does. These must be finite: a NaN would
  reach the gradients of other queries.

  Attributes:
    reverse: whether tiles are read from the last key to the first.
    whole_rows: whether `weights` needs all keys in one tile. Attention is then always "dense".
  """

  reverse: ClassVar[bool] = False
  whole_rows: ClassVar[bool] = False

  def row_state(self, rows: ScoreRows) -> Any:
    """Returns the state of each query before the first tile, from `rows.max()` and `rows.sum(function)`.

    Each call of `max` or `sum` computes all scores once.
    """
    return ()

  def weights(self, tile: ScoreTile, state: Any) -> jax.Array:
    """Returns the weights [T S] of a tile. Those of invalid pairs (see `ScoreTile`) are set to 0.

    For invalid pairs, weights and their derivatives must be finite.
    """
    raise NotImplementedError(f"{type(self).__name__} must define weights(tile, state)")

  def next_state(self, tile: ScoreTile, state: Any) -> Any:
    """Returns the state after a tile. Default: unchanged."""
    return state


def pair_weights(normalizer: Normalizer, tile: ScoreTile, state: Any) -> jax.Array:
  """Returns the weights of a tile, 0 for invalid pairs.

  Raises:
    ValueError: if the normalizer returns a state or weights of another shape.
  """
  rows, pairs = (tile.scores.shape[0], 1), tile.scores.shape
  for array in jax.tree.leaves(state):
    if jnp.shape(array) != rows:
      name = type(normalizer).__name__
      raise ValueError(f"the state of {name} must be arrays [T 1] = {rows}, got shape {jnp.shape(array)}")
  # Empty rows may have a state of 0, by which weights must not be divided.
  is_valid = jnp.any(tile.valid, axis=-1, keepdims=True)
  state = jax.tree.map(lambda array: jnp.where(is_valid, array, jnp.ones_like(array)), state)
  weights = normalizer.weights(tile, state)
  if weights is None or not broadcasts_to(jnp.shape(weights), pairs):
    got = "None" if weights is None else f"shape {jnp.shape(weights)}"
    raise ValueError(f"{type(normalizer).__name__}.weights must return weights [T S] = {pairs}, got {got}")
  # Most masked weights are 0 already. `where` also sets their gradient to 0, which may otherwise overflow.
  return jnp.where(tile.valid, weights, 0).astype(tile.scores.dtype)
