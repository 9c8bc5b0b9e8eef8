"""How well a key fits a query.

A score knows two things: what to compute once for each query and once for each key (its *features*), and
the scores of one tile of query features against one tile of key features. Everything else (masks, bias,
softmax, dropout, the weighted sum, memory) belongs to the engines, which treat every score alike. So your
own score is a few lines:

>>> import dataclasses
>>> from attention import register_pytree
>>> import jax.numpy as jnp
>>> @register_pytree
... @dataclasses.dataclass(frozen=True)
... class NegativeDistance(Score):
...   sharpness: jax.Array
...
...   def scores(self, query_features, key_features):
...     difference = query_features[..., :, None, :] - key_features[..., None, :, :]
...     return -self.sharpness * jnp.sum(difference**2, axis=-1)
>>> NegativeDistance(2.0).scores(jnp.ones((2, 3)), jnp.zeros((5, 3))).shape
(2, 5)
"""

from typing import Any

import jax

from attention.arrays.pytrees import NamedAxes


class Score(NamedAxes):
  """A score function. Subclasses are frozen dataclasses with `register_pytree` that define `scores`.

  The engines call `query_features` and `key_features` once, and `scores` on blocks of what they return.
  All of it is differentiated, so a score's fields are trained like any other parameters.

  A score names the axes of its arrays, one letter each: `axes = {"matrix": "HK", "scale": ""}`. Axes before
  these are leading axes that broadcast, such as heads; `scores` puts them before T and S:
  `self.scale[..., None, None]`. Then "blockwise" computes one index of the leading axes at a time, and heads
  of keys that several heads of queries share are not copied. Without names the results are the same, but each
  tile has all leading axes. A field that is neither an array nor a number must be static:
  `dataclasses.field(metadata={"static": True})`.

  Nothing that is masked reaches a result or a gradient, with one exception, which is up to `scores`: a pair
  whose score is not finite, or has no finite derivative (the square of 1e25, which overflows; the root of 0),
  makes gradients NaN, masked or not. As with `jnp.where`, replace such numbers first:
  `jnp.sqrt(jnp.where(squares > 0, squares, 1))`.
  """

  def query_features(self, queries: jax.Array) -> Any:
    """Returns what is computed once for each query.

    Args:
      queries: [... T H], at least float32.

    Returns:
      An array, or a pytree of arrays, whose axis -2 is the query position.
    """
    return queries

  def key_features(self, keys: jax.Array) -> Any:
    """Returns what is computed once for each key, like `query_features` for keys [... S H]."""
    return keys

  def score_mod(self, scores: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
    """Returns the scores of a tile as the softmax takes them, after the bias; here they stay as they are.

    They may depend on positions, on their distance, say. In `ring_attention`, where sequences are spread over
    devices, positions count from the start of the whole sequence.

    Args:
      scores: the tile's, with the bias, [... T S].
      t: positions of the queries, consecutive integers [T 1]; a last tile repeats the last.
      s: positions of the keys, likewise, [1 S].
    """
    return scores

  def scores(self, query_features: Any, key_features: Any) -> jax.Array:
    """Returns the scores [... T S] of a tile of query features against a tile of key features."""
    raise NotImplementedError(f"{type(self).__name__} must define scores(query_features, key_features)")
