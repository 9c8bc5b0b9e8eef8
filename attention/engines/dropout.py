"""Dropout whose choice depends on the seed and on a pair's position, on nothing else.

`jax.random.bernoulli` draws for a whole array at once, so an engine that works block by block would draw
otherwise than one that does not. Here each pair's bits are a hash of (seed, row, column): any tile can
be computed alone, and every engine drops the same pairs for the same key.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.pytrees import NamedAxes, register_pytree
from attention.arrays.shapes import with_rank


def seeds(rng: jax.Array) -> jax.Array:
  """Returns the two words, uint32 [2], that `keep` hashes."""
  return jax.random.bits(rng, (2,), jnp.uint32)


@register_pytree
@dataclasses.dataclass(frozen=True)
class Dropout(NamedAxes):
  """Which weights of an attention are dropped, the same for every engine.

  Attributes:
    seeds: uint32 [2].
    rows: a number for the first query of each index of the leading axes, uint32 [...].
    rate: probability of dropping a weight, in [0, 1). An array, so that a program is compiled once for all.
  """

  axes = {"seeds": "X", "rows": "", "rate": ""}
  seeds: jax.Array
  rows: jax.Array
  rate: jax.Array

  @classmethod
  def of(cls, rng: jax.Array, rate: Any, leading: tuple[int, ...], T: int) -> "Dropout":
    """Returns the dropout of scores with these leading axes and T queries in all."""
    rows = jnp.arange(math.prod(leading), dtype=jnp.uint32).reshape(leading) * jnp.asarray(T).astype(
      jnp.uint32
    )
    return cls(seeds(rng), rows, jnp.asarray(rate))

  def drop(self, weights: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
    """Returns the weights [... T S] with a share of them set to zero, the others scaled to keep the mean.

    Args:
      weights: [... T S].
      t: positions of the queries, [T 1].
      s: positions of the keys, [1 S].
    """
    rows = self.rows[..., None, None]
    rows = rows + with_rank(t.astype(jnp.uint32), rows.ndim)
    columns = with_rank(s.astype(jnp.uint32), rows.ndim)
    is_kept = with_rank(keep(self.seeds, self.rate, rows, columns), weights.ndim)
    scale = 1 / jnp.where(self.rate < 1, 1 - self.rate, 1)  # a traced rate may be 1: finite gradients
    return jnp.where(is_kept, weights * scale.astype(weights.dtype), 0)


def keep(seeds: jax.Array, rate: jax.Array | float, rows: jax.Array, columns: jax.Array) -> jax.Array:
  """Returns which pairs are kept, each with probability 1 - rate.

  Args:
    seeds: uint32 [2], from `seeds`.
    rate: probability of dropping a pair, in [0, 1).
    rows: a number for each query, unique over leading axes too, uint32 [... T 1].
    columns: key positions, uint32 [1 S], of the same rank as `rows`.

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

  Source: the constants of "lowbias32", C. Wellons, Prospecting for Hash Functions, 2018.
  """
  x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
  x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
  return x ^ (x >> np.uint32(16))
