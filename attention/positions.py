"""Position encodings: what tells attention, which sees a set, where each vector stands."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import as_array, as_integers, as_real, check_number, check_rank, check_size
from attention.arrays.pytrees import NamedAxes, register_pytree
from attention.arrays.shapes import broadcasts_to, is_known, with_rank
from attention.arrays.sharding import compute_dtype


def sinusoidal(length: int, width: int) -> jnp.ndarray:
  """Returns the fixed encodings of positions 0 ... length - 1.

      encoding[t, 2i]     = sin(t / 10000^(2i / width))
      encoding[t, 2i + 1] = cos(t / 10000^(2i / width))

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

  Args:
    length: number of positions T; angles of a symbolic one are in float32.
    width: D, even.

  Returns:
    Float32 in [-1, 1], [T D].

  Raises:
    ValueError: if the width is odd.

  >>> sinusoidal(2, 2).round(3).tolist()
  [[0.0, 1.0], [0.8410000205039978, 0.5400000214576721]]
  """
  check_size("length", length, least=0)
  check_size("width", width, least=0)
  if width % 2:
    raise ValueError(f"width must be even, got {width}")
  xp = np if is_known(length) else jnp
  rates = xp.asarray(10_000.0 ** (-np.arange(0, width, 2) / width), float)
  angles = xp.arange(length, dtype=float)[:, None] * rates[None, :]
  pairs = xp.stack([xp.sin(angles), xp.cos(angles)], axis=-1)
  return jnp.asarray(pairs.reshape(length, width), jnp.float32)


def rotary(vectors: jax.Array, positions: jax.Array | None = None, *, base: float = 10_000.0) -> jax.Array:
  """Returns queries or keys turned by angles that grow with their position.

  The product of a query and a key then depends on how far apart they are, not on where:

      angle[t, i] = positions[t] base^(-2i / width)
      (x[t, i], x[t, i + width / 2]) is turned by angle[t, i]

  Angles are in float32 (float64 for float64): at position 100,000 they are off by up to 0.006.

  Source: Su et al. 2021, arXiv:2104.09864, section 3.2; paired are halves, not neighbours, as in GPT-NeoX.

  Args:
    vectors: queries or keys [... T H], H even.
    positions: integers, or numbers of at least float32, [... T]; None for 0 ... T - 1. Where a sequence is
      spread over devices, each must give those of its own part.
    base: how slow the slowest turn is.

  Returns:
    [... T H] in the dtype of the vectors.

  Raises:
    ValueError: if the width is odd, the vectors are not of a floating type, or the positions do not fit.

  >>> rotary(jnp.array([[1.0, 0.0], [1.0, 0.0]])).round(3).tolist()
  [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]
  """
  vectors = jnp.asarray(vectors)
  check_rank("vectors", vectors, "[... T H]")
  if not jnp.issubdtype(vectors.dtype, jnp.floating):
    raise ValueError(f"vectors must be of a floating type, got {vectors.dtype}")
  T, H = vectors.shape[-2:]
  if H % 2:
    raise ValueError(f"the width of the vectors must be even, got shape {vectors.shape}")
  check_number("base", base, "above 0", lambda number: number > 0)
  dtype = compute_dtype(vectors.dtype)
  positions = jnp.arange(T) if positions is None else _as_positions(positions)
  if jnp.issubdtype(positions.dtype, jnp.floating) and jnp.finfo(positions.dtype).bits < 32:
    raise ValueError(f"positions must be integers, or numbers of at least float32, got {positions.dtype}")
  if positions.ndim == 0 or not broadcasts_to(positions.shape, vectors.shape[:-1]):
    raise ValueError(
      f"positions must be broadcastable to [... T] = {vectors.shape[:-1]}, got {positions.shape}"
    )
  rates = jnp.asarray(base ** (-np.arange(0, H, 2) / H), dtype)
  angles = positions.astype(dtype)[..., None] * with_rank(rates, positions.ndim + 1)
  angles = with_rank(angles, vectors.ndim)
  first, second = jnp.split(vectors.astype(dtype), 2, axis=-1)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
  return turned.astype(vectors.dtype)


def _as_positions(given: jax.Array) -> jax.Array:
  """Returns positions as an array, or raises ValueError unless they are real numbers that JAX can hold."""
  is_float = jnp.issubdtype(jnp.result_type(given), jnp.floating)
  return as_real("positions", given) if is_float else as_integers("positions", given)


def segment_positions(segments: jax.Array) -> jax.Array:
  """Returns the position of each token within its own segment, counted from 0.

  A segment is a run of equal numbers. Several sequences are packed in one row this way (see
  `masks.segments`). The positions are those for `rotary`, and for masks that differ from the start of a
  document to its end.

  Args:
    segments: the segment of each position, integers [... T]; of whole rows, not of one device's part.

  Returns:
    Integers [... T].

  Raises:
    ValueError: if the segments are not of an integer type, or have no axis.

  >>> segment_positions(jnp.array([7, 7, 7, 2, 2, 5])).tolist()
  [0, 1, 2, 0, 1, 0]
  """
  segments = as_integers("segments", segments)
  check_rank("segments", segments, "[... T]")
  positions = jnp.broadcast_to(jnp.arange(segments.shape[-1]), segments.shape)
  is_first = jnp.concatenate(
    [jnp.ones_like(segments[..., :1], bool), segments[..., 1:] != segments[..., :-1]], axis=-1
  )
  return positions - jax.lax.cummax(jnp.where(is_first, positions, 0), axis=segments.ndim - 1)


class PositionBias(NamedAxes):
  """A term of the scores that depends on positions. Subclasses are dataclasses, registered as pytrees.

  Any function of two index tiles is a bias for `attend`. One that is a PositionBias and names the axes of its
  arrays in `axes` is also cut with the rest, head by head.
  """

  def __call__(self, t: jax.Array, s: jax.Array) -> jax.Array:
    """Returns the terms [... T S] of a tile of consecutive query positions [T 1] and key positions [1 S].

    The last tile may reach beyond the end: it repeats the last position there.
    """
    raise NotImplementedError(f"{type(self).__name__} must define __call__(t, s)")


@register_pytree
@dataclasses.dataclass(frozen=True)
class ALiBi(PositionBias):
  """Takes from a score in proportion to the distance: -slope |t - s|.

  Source: Press et al. 2022, arXiv:2108.12409, section 3; `alibi_slopes` are theirs.

  Attributes:
    slopes: [...], one for each head.

  Raises:
    ValueError: if the slopes are integers, such as a number of heads.
  """

  axes = {"slopes": ""}
  slopes: jax.Array

  def validate(self):
    slopes = as_array("slopes", self.slopes)
    if not jnp.issubdtype(slopes.dtype, jnp.floating):
      raise ValueError(f"slopes must be floating, such as alibi_slopes(8) for 8 heads, got {self.slopes!r}")

  def __call__(self, t, s):
    slopes = jnp.asarray(self.slopes)[..., None, None]
    slopes = slopes.astype(compute_dtype(slopes.dtype))  # a distance is not one of half precision
    distance = jnp.abs(t - s).astype(slopes.dtype)
    return -slopes * with_rank(distance, slopes.ndim)


def alibi_slopes(num_heads: int) -> jax.Array:
  """Returns the slopes of ALiBi, a geometric series that ends with 2^-8, [N].

  If N is no power of two, the series is that of the power of two below it, and the other slopes are every
  second one of the series twice as long.

  Source: Press et al. 2022, arXiv:2108.12409, section 3, and the authors' code.

  Raises:
    ValueError: if there is no head.

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
  """A trained term for each distance; distances that are large share one with their like.

  Half of the buckets are for keys ahead of the query, if there may be such. Of the others the first half
  are for one distance each, the rest for distances on a logarithmic scale up to the largest.

  Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1.

  Attributes:
    table: the terms, [... R], a row of R buckets for each head; R is at least 4, or 2 if not bidirectional.
    max_distance: from here on all distances are alike; more than have buckets of their own.
    bidirectional: whether keys ahead of the query have buckets of their own; else they share that of 0.
  """

  axes = {"table": "R"}
  table: jax.Array
  max_distance: int = dataclasses.field(default=128, metadata={"static": True})
  bidirectional: bool = dataclasses.field(default=True, metadata={"static": True})

  def __call__(self, t, s):
    # All pairs of a diagonal have one term, so one for each distance is looked up. The T + S of them, written
    # one after the other and read in rows of T + S - 1, are the tile: each row begins one term earlier.
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
    ValueError: if there are too few buckets, or the largest distance is too small.
  """
  check_size("max_distance", max_distance)
  check_size("the number of buckets", count)
  least = 4 if bidirectional else 2
  if count < least:
    raise ValueError(f"relative positions need at least {least} buckets, got {count}")
  if max_distance <= count // least:
    raise ValueError(
      f"max_distance must be more than {count // least} with {count} buckets, got {max_distance}"
    )
  ahead = jnp.zeros_like(distances)
  if bidirectional:
    count //= 2
    ahead = jnp.where(distances > 0, count, 0)
    distances = jnp.abs(distances)
  else:
    distances = jnp.maximum(-distances, 0)
  exact = count // 2
  share = jnp.log(jnp.maximum(distances, 1) / exact) / math.log(max_distance / exact)
  far = jnp.minimum(exact + (share * (count - exact)).astype(distances.dtype), count - 1)
  return ahead + jnp.where(distances < exact, distances, far)
