"""Dropout of attention weights by position.

`jax.random.bernoulli` draws a whole array at once, so an engine that works on tiles would drop other weights
than the dense engine. Here, whether a pair is dropped is a hash of (seed, row, column), so any tile can be
computed alone, and all engines drop the same pairs.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.named_axes import NamedAxes, register_pytree


def seeds(rng: jax.Array) -> jax.Array:
  """Returns two random words, uint32 [2], for `keep`."""
  return jax.random.bits(rng, (2,), jnp.uint32)


@register_pytree
@dataclasses.dataclass(frozen=True)
class Dropout(NamedAxes):
  """Dropout of attention weights, the same for all engines.

  Attributes:
    rate: probability of dropping a weight, in [0, 1). An array, so that a new rate does not recompile.
    rng: PRNG key; None once there are seeds.
    seeds: uint32 [2], drawn with the key.
    rows: number of the first query of each index of the leading axes, uint32 [...].
    is_shared: whether the same pairs are dropped at all indices of the leading axes.
  """

  axes = {"rate": "", "seeds": "X", "rows": ""}  # `rng` has no axes to cut
  rate: Any
  rng: Any
  seeds: Any = None
  rows: Any = None
  is_shared: bool = dataclasses.field(default=False, metadata={"static": True})

  def of_rows(self, leading: tuple[int, ...], T: int) -> "Dropout":
    """Returns the dropout of scores with the given leading axes and T queries in total."""
    rows = jnp.arange(math.prod(leading), dtype=jnp.uint32).reshape(leading)
    rows = jnp.zeros_like(rows) if self.is_shared else rows * jnp.asarray(T).astype(jnp.uint32)
    return Dropout(jnp.asarray(self.rate), None, seeds(self.rng), rows)

  def drop(self, weights: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
    """Sets a random subset of the weights to zero, and scales the others to preserve the mean.

    Args:
      weights: of one index of the leading axes, [T S].
      t: query positions, [T 1].
      s: key positions, [1 S].
    """
    rows = self.rows + t.astype(jnp.uint32)
    is_kept = keep(self.seeds, self.rate, rows, s.astype(jnp.uint32))
    scale = 1 / jnp.where(self.rate < 1, 1 - self.rate, 1)  # a traced rate may be 1: finite gradients
    return jnp.where(is_kept, weights * scale.astype(weights.dtype), 0)


def keep(seeds: jax.Array, rate: jax.Array | float, rows: jax.Array, columns: jax.Array) -> jax.Array:
  """Returns which pairs are kept, each with probability 1 - rate.

  Args:
    seeds: uint32 [2], from `seeds`.
    rate: probability of dropping a pair, in [0, 1).
    rows: a number for each query that is unique over leading axes too, uint32 [... T 1].
    columns: key positions, uint32 [1 S], with the rank of `rows`.

  Returns:
    Booleans [... T S].

  >>> row, column = jnp.zeros((1, 1), jnp.uint32), jnp.arange(100_000, dtype=jnp.uint32)[None]
  >>> round(float(jnp.mean(keep(seeds(jax.random.key(0)), 0.25, row, column))), 2)
  0.75
  """
  row_seed, column_seed = seeds
  bits = mix_bits(mix_bits(rows ^ row_seed) + mix_bits(columns ^ column_seed))
  return bits >= (jnp.asarray(rate) * 2.0**32).astype(jnp.uint32)


def mix_bits(x: jax.Array) -> jax.Array:
  """Mixes 32 bits so that each bit of the result depends on each bit of x.

  References:
    Constants of "lowbias32", C. Wellons, Prospecting for Hash Functions, 2018.
  """
  x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
  x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
  return x ^ (x >> np.uint32(16))
