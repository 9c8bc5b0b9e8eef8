"""Biases that depend on positions."""

import bisect
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import (
  as_array,
  check_numbers,
  check_size,
)
from attention.arrays.dtypes import compute_dtype
from attention.arrays.named_axes import NamedAxes, register_pytree
from attention.arrays.shapes import with_rank


class PositionBias(NamedAxes):
  """A bias that depends on positions. Subclasses are dataclasses, registered as pytrees.

  Any function of query and key positions can be the bias of `attend`. A PositionBias can also name the axes
  of its arrays in `axes`: it is then called with those of one head.
  """

  def __call__(self, t: jax.Array, s: jax.Array) -> jax.Array:
    """Returns the bias [... T S] of query positions t [T 1] and key positions s [1 S].

    Positions are consecutive integers; the last tile repeats the last position.
    """
    raise NotImplementedError(f"{type(self).__name__} must define __call__(t, s)")


@register_pytree
@dataclasses.dataclass(frozen=True)
class ALiBi(PositionBias):
  """Attention with linear biases: -slope |t - s|.

  Attributes:
    slopes: [...], one per head.

  Raises:
    ValueError: if the slopes are integers, such as a number of heads.

  References:
    Press et al. 2022, arXiv:2108.12409, section 3; `alibi_slopes` returns their slopes.
  """

  axes = {"slopes": ""}
  slopes: jax.Array

  def validate(self):
    slopes = as_array("slopes", self.slopes)
    if not jnp.issubdtype(slopes.dtype, jnp.floating):
      raise ValueError(
        f"slopes must be floating-point, such as alibi_slopes(8) for 8 heads, got {self.slopes!r}"
      )
    check_numbers("slopes", self.slopes, "finite", np.isfinite)

  def __call__(self, t, s):
    slopes = jnp.asarray(self.slopes)[..., None, None]
    slopes = slopes.astype(compute_dtype(slopes.dtype))  # half precision cannot represent large distances
    distance = jnp.abs(t - s).astype(slopes.dtype)
    return -slopes * with_rank(distance, slopes.ndim)


def alibi_slopes(num_heads: int) -> jax.Array:
  """Returns the slopes of ALiBi, a geometric series that ends at 2^-8, [N].

  If N is not a power of two, the slopes are the series of the largest power of two below N, followed by every
  second slope of the series twice as long.

  Raises:
    ValueError: if num_heads is less than 1.

  References:
    Press et al. 2022, arXiv:2108.12409, section 3, and the authors' code.

  >>> alibi_slopes(4).tolist()
  [0.25, 0.0625, 0.015625, 0.00390625]
  >>> alibi_slopes(3).tolist()
  [0.0625, 0.00390625, 0.25]
  """
  check_size("num_heads", num_heads)
  power = 2 ** int(math.log2(num_heads))
  series, longer = (2.0 ** (-8 * np.arange(1, count + 1) / count) for count in (power, 2 * power))
  return jnp.asarray(np.concatenate([series, longer[::2]])[:num_heads], jnp.float32)


@register_pytree
@dataclasses.dataclass(frozen=True)
class RelativePositionBias(PositionBias):
  """A trained bias for each bucket of relative positions.

  If bidirectional, half of the buckets are for keys after the query. Of the remaining buckets, half hold one
  distance each, and the others hold distances on a logarithmic scale up to max_distance.

  Attributes:
    table: biases [... R], one row of R buckets per head. R is at least 4 if bidirectional, else at least 2.
    max_distance: distances from here on share a bucket. Must exceed the number of single-distance buckets.
    bidirectional: if False, keys after the query share the bucket of distance 0.

  References:
    Raffel et al. 2020, arXiv:1910.10683, section 2.1.
  """

  axes = {"table": "R"}
  table: jax.Array
  max_distance: int = dataclasses.field(default=128, metadata={"static": True})
  bidirectional: bool = dataclasses.field(default=True, metadata={"static": True})

  def __call__(self, t, s):
    # All pairs on a diagonal have the same bias, so it is looked up once per distance. Repeating these T + S
    # biases and reading them in rows of T + S - 1 gives the tile: each row starts one distance earlier.
    T, S = t.shape[0], s.shape[1]
    table = jnp.asarray(self.table)
    if 0 in (T, S):
      return jnp.zeros((*table.shape[:-1], T, S), table.dtype)
    distances = s[0, 0] - t[0, 0] - (T - 1) + jnp.arange(T + S)
    buckets = relative_position_bucket(distances, table.shape[-1], self.max_distance, self.bidirectional)
    terms = jnp.tile(jnp.take(table, buckets, axis=-1), T)[..., T - 1 : T - 1 + T * (T + S - 1)]
    return terms.reshape(*table.shape[:-1], T, T + S - 1)[..., :S]


def relative_position_bucket(
  distances: jax.Array, count: int, max_distance: int, bidirectional: bool
) -> jax.Array:
  """Returns the bucket of each distance s - t, integers in [0, count).

  Raises:
    ValueError: if count or max_distance is too small.
  """
  # Python integers, since powers of NumPy's would overflow.
  max_distance, count = check_size("max_distance", max_distance), check_size("number of buckets", count)
  if max_distance > np.iinfo(np.int32).max:
    raise ValueError(f"max_distance must be a 32-bit integer, got {max_distance}")
  least = 4 if bidirectional else 2
  if count < least:
    raise ValueError(f"number of buckets must be at least {least}, got {count}")
  if max_distance <= count // least:
    raise ValueError(
      f"max_distance must be more than {count // least} with {count} buckets, got {max_distance}"
    )
  if distances.dtype.itemsize < 4:
    distances = distances.astype(jnp.int32)
  ahead = jnp.zeros_like(distances)
  if bidirectional:
    count //= 2
    ahead = jnp.where(distances > 0, count, 0)
    distances = jnp.abs(distances)
  else:
    distances = jnp.maximum(-distances, 0)
  exact = count // 2
  starts = [_bucket_start(bucket, exact, count, max_distance) for bucket in range(exact, count)]
  far = (
    exact
    - 1
    + jnp.searchsorted(jnp.asarray(starts, distances.dtype), distances, side="right", method="compare_all")
  )
  return ahead + jnp.where(distances < exact, distances, far)


def _bucket_start(bucket: int, exact: int, count: int, max_distance: int) -> int:
  """Returns the least distance d of a bucket: log(d / exact) / log(max_distance / exact) >= steps / power.

  The powers are exact. The logarithms would round some shares to the bucket below.
  """
  power, steps = count - exact, bucket - exact
  least = max_distance**steps * exact ** (power - steps)
  return bisect.bisect_left(range(max_distance), least, key=lambda distance: distance**power)
