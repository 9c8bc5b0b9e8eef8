"""Position encodings and rotary embeddings. The biases of positions are in biases/positions.py."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import (
  as_floating,
  as_integers,
  as_real,
  check_number,
  check_numbers,
  check_rank,
  check_size,
)
from attention.arrays.dtypes import compute_dtype
from attention.arrays.shapes import broadcasts_to, is_known, with_rank
from attention.biases.positions import ALiBi as ALiBi
from attention.biases.positions import PositionBias as PositionBias
from attention.biases.positions import RelativePositionBias as RelativePositionBias
from attention.biases.positions import alibi_slopes as alibi_slopes
from attention.biases.positions import relative_position_bucket as relative_position_bucket
from attention.masks.patterns import document_ids


def sinusoidal(length: int, width: int) -> jnp.ndarray:
  """Returns sinusoidal position encodings for positions 0 to length - 1.

      encoding[t, 2i]     = sin(t / 10000^(2i / width))
      encoding[t, 2i + 1] = cos(t / 10000^(2i / width))

  Args:
    length: number of positions T. For a symbolic length, angles are computed in float32.
    width: D, even.

  Returns:
    Float32 in [-1, 1], [T D].

  Raises:
    ValueError: if the width is odd.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

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


def rotary(
  vectors: jax.Array,
  positions: jax.Array | None = None,
  *,
  base: float = 10_000.0,
  frequencies: jax.Array | None = None,
  scale: jax.Array | float = 1.0,
  interleaved: bool = False,
) -> jax.Array:
  """Applies rotary position embeddings to queries or keys.

  Scores then depend on the distance between query and key, not on their absolute positions:

      angle[t, i] = positions[t] frequencies[i]
      (x[t, i], x[t, i + width / 2]) is rotated by angle[t, i]

  Angles are computed in float32 (float64 for float64 inputs); at position 100,000 their error is up to 0.006.

  Args:
    vectors: queries or keys [... T H], where H is even.
    positions: integers, or floats of at least float32, [... T]. Default: 0 to T - 1. If the sequence is
      sharded over devices, each device must pass the positions of its shard.
    base: wavelengths range from 2 pi to 2 pi base. Not used with `frequencies`.
    frequencies: angle of each pair per position, [W / 2], from `rotary_frequencies`, `llama3_frequencies` or
      `yarn_frequencies`. The first W features are rotated. Default: `rotary_frequencies(H, base)`.
    scale: factor of the rotated features, such as `yarn_scale(factor)`.
    interleaved: whether neighbors are pairs, (x[2i], x[2i + 1]), as in the paper and in GPT-J, instead of
      halves, as in GPT-NeoX and Llama.

  Returns:
    [... T H] in the dtype of the vectors.

  Raises:
    ValueError: if the width is less than W, or odd without `frequencies`; if the vectors are not
      floating-point, or the positions are incompatible.

  References:
    Su et al. 2021, arXiv:2104.09864, section 3.2.

  >>> rotary(jnp.array([[1.0, 0.0], [1.0, 0.0]])).round(3).tolist()
  [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]
  """
  vectors = as_floating("vectors", vectors)
  check_rank("vectors", vectors, "[... T H]")
  check_number("scale", scale, "a finite number", np.isfinite)
  T, H = vectors.shape[-2:]
  dtype = compute_dtype(vectors.dtype)
  if frequencies is None:
    if H % 2:
      raise ValueError(f"the width of the vectors must be even, got shape {vectors.shape}")
    rates: Any = _rotary_rates(H, base)
  else:
    check_numbers("frequencies", frequencies, "finite", np.isfinite)
    rates = as_real("frequencies", frequencies)
    if rates.ndim != 1 or 2 * rates.shape[0] > H:
      raise ValueError(
        f"frequencies must have at most half as many entries as the vectors have features, H={H}, "
        f"got shape {rates.shape}"
      )
  positions = jnp.arange(T) if positions is None else _as_positions(positions)
  if jnp.issubdtype(positions.dtype, jnp.floating) and jnp.finfo(positions.dtype).bits < 32:
    raise ValueError(f"positions must be integers, or floats of at least float32, got {positions.dtype}")
  if positions.ndim == 0 or not broadcasts_to(positions.shape, vectors.shape[:-1]):
    raise ValueError(
      f"positions must be broadcastable to [... T] = {vectors.shape[:-1]}, got {positions.shape}"
    )
  rates = jnp.asarray(rates, dtype)
  angles = positions.astype(dtype)[..., None] * with_rank(rates, positions.ndim + 1)
  angles = with_rank(angles, vectors.ndim)
  width = 2 * rates.shape[0]
  rotating, others = vectors[..., :width].astype(dtype), vectors[..., width:]
  factor = jnp.asarray(scale, dtype)
  cos, sin = factor * jnp.cos(angles), factor * jnp.sin(angles)
  if interleaved:
    first, second = rotating[..., ::2], rotating[..., 1::2]
    rotated = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
    rotated = rotated.reshape(rotating.shape)
  else:
    first, second = jnp.split(rotating, 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
  rotated = rotated.astype(vectors.dtype)
  return jnp.concatenate([rotated, others], axis=-1) if width < H else rotated


def rotary_2d(vectors: jax.Array, positions: jax.Array, *, base: float = 10_000.0) -> jax.Array:
  """Applies rotary embeddings of rows to half of the features, and of columns to the other half.

  Args:
    vectors: queries or keys of an image, [... T H], where H is a multiple of 4.
    positions: row and column of each vector, [... T 2]; see `rotary`.
    base: as in `rotary`.

  Returns:
    [... T H] in the dtype of the vectors.

  Raises:
    ValueError: if H is not a multiple of 4; see also `rotary`.

  References:
    Heo et al. 2024, arXiv:2403.13298, section 3.1, "axial".
  """
  vectors, positions = as_floating("vectors", vectors), _as_positions(positions)
  check_rank("vectors", vectors, "[... T H]")
  if vectors.shape[-1] % 4:
    raise ValueError(f"the width of the vectors must be a multiple of 4, got shape {vectors.shape}")
  if positions.ndim < 2 or positions.shape[-1] != 2:
    raise ValueError(f"positions must have axes [... T 2], got shape {positions.shape}")
  row_half, column_half = jnp.split(vectors, 2, axis=-1)
  rotated = rotary(row_half, positions[..., 0], base=base), rotary(column_half, positions[..., 1], base=base)
  return jnp.concatenate(rotated, axis=-1)


def rotary_frequencies(width: int, *, base: float = 10_000.0) -> jax.Array:
  """Returns the angles per position of `rotary`: base^(-2i / width), float32 [width / 2].

  With a width of less than H, only the first features are rotated.

  >>> rotary_frequencies(4, base=100.0).round(3).tolist()
  [1.0, 0.10000000149011612]
  """
  return jnp.asarray(_rotary_rates(width, base), jnp.float32)


def llama3_frequencies(
  width: int,
  *,
  base: float = 500_000.0,
  factor: float = 8.0,
  low_freq_factor: float = 1.0,
  high_freq_factor: float = 4.0,
  original_length: int = 8192,
) -> jax.Array:
  """Returns frequencies for a context that is `factor` times longer than in training, as in Llama 3.1.

  Frequencies of more than `high_freq_factor` turns in the original length stay. Those of less than
  `low_freq_factor` turns are divided by the factor. Those between are interpolated.

  Args:
    width: number of features that are rotated, W.
    base: as in `rotary`.
    factor: by how much the context is longer, at least 1.
    low_freq_factor, high_freq_factor: numbers of turns, above 0.
    original_length: length of the context in training, in positions.

  Returns:
    Float32 [W / 2].

  Raises:
    ValueError: if the width is odd, or a number is out of range.

  References:
    Llama Team 2024, arXiv:2407.21783, and the authors' code.
  """
  rates = _rotary_rates(width, base)
  _check_longer(factor, original_length)
  _check_turns("low_freq_factor", low_freq_factor, "high_freq_factor", high_freq_factor)
  turns = original_length * rates / (2 * math.pi)
  share = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
  return jnp.asarray((1 - share) * rates / factor + share * rates, jnp.float32)


def yarn_frequencies(
  width: int,
  *,
  base: float = 10_000.0,
  factor: float,
  original_length: int,
  beta_fast: float = 32.0,
  beta_slow: float = 1.0,
  truncate: bool = True,
) -> jax.Array:
  """Returns frequencies for a context that is `factor` times longer than in training, by YaRN.

  Frequencies of more than `beta_fast` turns in the original length stay, those of less than `beta_slow` turns
  are divided by the factor, with a linear ramp over the pairs between. YaRN also multiplies the rotated
  features by 0.1 log(factor) + 1, see `yarn_scale`:

  >>> frequencies = yarn_frequencies(64, factor=8.0, original_length=1024)
  >>> rotary(jnp.ones((5, 64)), frequencies=frequencies, scale=yarn_scale(8.0)).shape
  (5, 64)

  Args:
    width: number of features that are rotated, W.
    base: as in `rotary`.
    factor: by how much the context is longer, at least 1.
    original_length: length of the context in training, in positions.
    beta_fast, beta_slow: numbers of turns, above 0.
    truncate: whether the ramp begins and ends at whole pairs. False for gpt-oss.

  Returns:
    Float32 [W / 2].

  Raises:
    ValueError: if the width is odd, or a number is out of range.

  References:
    Peng et al. 2023, arXiv:2309.00071, section 3.2, with the ramp of the authors' code.
  """
  rates = _rotary_rates(width, base)
  check_number("base", base, "above 1", lambda number: number > 1)
  _check_longer(factor, original_length)
  _check_turns("beta_slow", beta_slow, "beta_fast", beta_fast)
  low, high = (
    width * math.log(original_length / (2 * math.pi * turns)) / (2 * math.log(base))
    for turns in (beta_fast, beta_slow)
  )
  if truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, width - 1)
  share = np.clip((np.arange(width // 2) - low) / max(high - low, 1e-3), 0, 1)
  return jnp.asarray(share * rates / factor + (1 - share) * rates, jnp.float32)


def yarn_scale(factor: float) -> float:
  """Returns YaRN's factor of the rotated features, 0.1 log(factor) + 1, for `rotary(scale=...)`.

  Models of DeepSeek use other coefficients; see "mscale" in their config.

  Args:
    factor: by how much the context is longer, at least 1.

  Raises:
    ValueError: if the factor is out of range.

  References:
    Peng et al. 2023, arXiv:2309.00071, equation 22, the square root of 1 / t.

  >>> round(yarn_scale(8.0), 4)
  1.2079
  """
  _check_longer(factor)
  return 0.1 * math.log(factor) + 1


def _check_longer(factor: float, original_length: int = 1) -> None:
  """Raises ValueError unless a context can be `factor` times longer than the original length."""
  check_number("factor", factor, "at least 1 and finite", lambda number: 1 <= number < math.inf)
  check_size("original_length", original_length)


def _check_turns(low_name: str, low: float, high_name: str, high: float) -> None:
  """Raises ValueError unless two numbers of turns are positive, and the second is the larger."""
  check_number(low_name, low, "above 0 and finite", lambda number: 0 < number < math.inf)
  check_number(high_name, high, f"above {low_name}={low} and finite", lambda number: low < number < math.inf)


def _rotary_rates(width: int, base: float) -> np.ndarray:
  """Returns base^(-2i / width), float64 [width / 2]."""
  if check_size("width", width, least=0) % 2:
    raise ValueError(f"width must be even, got {width}")
  check_number("base", base, "at least 1 and finite", lambda number: 1 <= number < math.inf)
  return base ** (-np.arange(0, width, 2) / max(width, 1))


def _as_positions(positions: jax.Array) -> jax.Array:
  """Returns positions as an array, or raises ValueError unless they are real numbers."""
  is_list = isinstance(positions, (list, tuple))
  leaves = jax.tree.leaves(positions) if is_list else [positions]
  is_float = any(jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves)
  return as_real("positions", positions) if is_float else as_integers("positions", positions)


def segment_positions(segments: jax.Array) -> jax.Array:
  """Returns the position of each token within its segment, starting at 0.

  A segment is a run of equal integers, as for several sequences packed into one row (see `masks.segments`).
  Use the positions for `rotary`, and for masks that depend on the position in a document.

  Args:
    segments: segment of each position, integers [... T]. Rows must be whole, not sharded over devices.

  Returns:
    Integers [... T].

  Raises:
    ValueError: if the segments are not integers, or are a scalar.

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


def packed(lengths: jax.Array, total: int) -> jax.Array:
  """Returns the position of each token within its document; see `masks.packed`.

  Args:
    lengths: length of each document, integers [... D].
    total: number of positions, T.

  Returns:
    Integers [... T].

  >>> packed(jnp.array([2, 3]), 6).tolist()
  [0, 1, 0, 1, 2, 0]
  """
  return segment_positions(document_ids(lengths, total))
