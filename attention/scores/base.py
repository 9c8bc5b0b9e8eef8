"""The base class of score functions.

A score computes *features* of each query and each key once, and the scores of a tile of query features and
key features, for one index of the leading axes, such as one head. The engines do everything else (batches,
heads, masks, bias, softmax, dropout, the weighted sum, memory) in the same way for every score, so a custom
score is short:

>>> import dataclasses
>>> from attention import register_pytree
>>> import jax.numpy as jnp
>>> @register_pytree
... @dataclasses.dataclass(frozen=True)
... class NegativeDistance(Score):
...   sharpness: jax.Array
...
...   def scores(self, query_features, key_features):
...     difference = query_features[:, None, :] - key_features[None, :, :]
...     return -self.sharpness * jnp.sum(difference**2, axis=-1)
>>> NegativeDistance(2.0).scores(jnp.ones((2, 3)), jnp.zeros((5, 3))).shape
(2, 5)
"""

from typing import Any

import jax

from attention.arrays.named_axes import NamedAxes


class Score(NamedAxes):
  """A score function. Subclasses are frozen dataclasses with `register_pytree` that define `scores`.

  The engines call `query_features` and `key_features` once, and `scores` on blocks of their results. All are
  differentiated, so array fields can be trained.

  `axes` names the axes of array fields, one letter each: `axes = {"matrix": "HK", "scale": ""}`. Any axes
  before these are leading axes that broadcast, such as heads. The methods see the array of one head: a matrix
  [H K], and a single scale. Fields without names are the same for all heads. A field that is neither an array
  nor a number must be static: `dataclasses.field(metadata={"static": True})`.

  Masked positions never affect results or gradients, with one exception. If the score of a masked pair, or
  its derivative, is not finite (1e25 squared overflows; the square root of 0 has an infinite derivative),
  gradients become NaN. As with `jnp.where`, replace such values first:
  `jnp.sqrt(jnp.where(squares > 0, squares, 1))`.
  """

  def query_features(self, queries: jax.Array) -> Any:
    """Returns features that are computed once for each query.

    Args:
      queries: [T H], at least float32.

    Returns:
      An array [T X], or a pytree of such arrays.
    """
    return queries

  def key_features(self, keys: jax.Array) -> Any:
    """Returns features that are computed once for each key; `query_features` for keys [S H]."""
    return keys

  def score_mod(self, scores: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
    """Modifies the scores of a tile after the bias is added, before the softmax. Default: unchanged.

    The result may depend on positions. In `ring_attention`, positions count from the start of the whole
    sequence.

    Args:
      scores: scores of the tile including the bias, [T S].
      t: query positions, consecutive integers [T 1]; the last tile repeats the last position.
      s: key positions, [1 S], like t.
    """
    return scores

  def scores(self, query_features: Any, key_features: Any) -> jax.Array:
    """Returns the scores [T S] of a tile of query features [T X] and key features [S X]."""
    raise NotImplementedError(f"{type(self).__name__} must define scores(queries, keys)")
