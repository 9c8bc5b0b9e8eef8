"""Attention over sequences that are sharded over devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.checks import check_vectors
from attention.arrays.dtypes import matmul_precision
from attention.arrays.named_axes import leaf_axes
from attention.arrays.sharding import varying
from attention.biases.base import BiasLike
from attention.engines.blockwise import blockwise
from attention.engines.inputs import prepare
from attention.masks import Array, Mask
from attention.scores.base import Score
from attention.validation import check_options


def ring_attention(
  score: Score,
  queries: jax.Array,
  keys: jax.Array,
  values: jax.Array,
  *,
  axis_name: str,
  mask: Mask | Array | None = None,
  bias: BiasLike | None = None,
  dropout_rate: jax.Array | float = 0.0,
  dropout_rng: jax.Array | None = None,
  return_logsumexp: bool = False,
  block_sizes: tuple[int, int] | None = None,
  zigzag: bool = False,
) -> Any:
  """Computes `attend` for sequences that are sharded along an axis of a device mesh.

  Call it inside `jax.shard_map`. Queries stay on their device and attend to the keys and values of one device
  after another. Keys and values are not stored for the gradients, but fetched again. On CPUs, masked tiles
  are skipped. With a causal mask, the first devices then have less work than the last; use `zigzag` to
  balance it.

  Args:
    score: as in `attend`; the same on all devices.
    queries: this device's queries, [... T H]. Device i holds positions i T to (i + 1) T - 1.
    keys: this device's keys, [... S H].
    values: this device's values, [... S D].
    axis_name: the axis of the mesh along which sequences are sharded.
    mask: as in `attend`. Positions, lengths and offsets refer to the whole sequence. Arrays [... 1 S] and
      [... T 1], and the segments of `masks.segments`, are this device's shards. Arrays [... T S] are not
      supported.
    bias: as in `attend`, with the same rules for arrays. A function gets positions in the whole sequence.
    dropout_rate: as in `attend`. The same weights are dropped as on one device.
    dropout_rng: PRNG key; the same on all devices.
    return_logsumexp: as in `attend`.
    block_sizes: as in `attend`.
    zigzag: if True, sequences are in the order of `zigzag_layout`: of 2 n parts, device i of n holds the
      parts i and 2 n - 1 - i.

  Returns:
    This device's context, [... T D]. With `return_logsumexp`, an `AttentionOutput` of it and the logsumexp,
    [... T].

  Raises:
    ValueError: if there is no such axis, or a mask or bias contains an array [... T S]; see also `attend`.

  References:
    Liu et al. 2023, arXiv:2310.01889.

  >>> from attention import ScaledDotProduct, masks
  >>> P = jax.sharding.PartitionSpec("sequence")
  >>> mesh = jax.make_mesh((1,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
  >>> def attend_in_ring(x):
  ...   return ring_attention(ScaledDotProduct(), x, x, x, axis_name="sequence", mask=masks.causal())
  >>> jax.shard_map(attend_in_ring, mesh=mesh, in_specs=P, out_specs=P)(jnp.ones((8, 2))).shape
  (8, 2)
  """
  queries, keys, values = check_vectors(queries=queries, keys=keys, values=values)
  options, settings = check_options(
    score,
    mask=mask,
    bias=bias,
    dropout_rate=dropout_rate,
    dropout_rng=dropout_rng,
    return_logsumexp=return_logsumexp,
    implementation="blockwise",
    block_sizes=block_sizes,
  )
  try:
    jax.lax.axis_size(axis_name)
  except (NameError, TypeError, ValueError):
    raise ValueError(
      f"axis_name must be an axis of the mesh of the enclosing jax.shard_map, got {axis_name!r}"
    ) from None
  T, S = queries.shape[-2], keys.shape[-2]
  if zigzag and (T % 2 or S % 2):
    raise ValueError(
      f"zigzag requires an even number of queries and keys per device, got {T} queries and {S} keys"
    )
  _check_no_pairs("mask", options.mask, axis_name, T * S)
  _check_no_pairs("bias", options.bias, axis_name, T * S)
  with jax.default_matmul_precision(matmul_precision()):
    positions = _positions(axis_name, T, zigzag), _positions(axis_name, S, zigzag)
    length = jax.lax.axis_size(axis_name) * T
    inputs, shape = prepare(queries, keys, values, options, positions, length)
    output = blockwise(
      inputs,
      shape,
      block_sizes=settings.block_sizes,
      axis_name=axis_name,
      num_parts=1 + zigzag,
    )
  return settings.select_output(output._replace(context=output.context.astype(queries.dtype)))


def zigzag_layout(length: int, num_devices: int) -> np.ndarray:
  """Returns the order of positions that balances causal attention over devices, [length].

  Of 2 n parts of a sequence, device i of n holds the parts i and 2 n - 1 - i. `vectors[..., order, :]` puts
  vectors [... T H] into this order before sharding, and `numpy.argsort(order)` restores the original order of
  results.

  Args:
    length: of the whole sequence, a multiple of 2 n.
    num_devices: n.

  Raises:
    ValueError: if the length is not a multiple of 2 n.

  >>> zigzag_layout(8, 2).tolist()
  [0, 1, 6, 7, 2, 3, 4, 5]
  """
  if num_devices < 1 or length % (2 * num_devices):
    raise ValueError(
      "length must be a multiple of twice the number of devices, "
      f"got length={length}, num_devices={num_devices}"
    )
  parts = np.arange(length).reshape(2 * num_devices, -1)
  return np.concatenate([parts[:num_devices], parts[num_devices:][::-1]], axis=1).reshape(length)


def _positions(axis_name: str, length: int, zigzag: bool) -> jax.Array:
  """Returns the positions in the whole sequence of this device's `length` queries or keys."""
  index, count = jax.lax.axis_index(axis_name), jax.lax.axis_size(axis_name)
  if not zigzag:
    return index * length + jnp.arange(length)
  half = length // 2
  return jnp.concatenate([part * half + jnp.arange(half) for part in (index, 2 * count - 1 - index)])


def _check_no_pairs(name: str, rule: Any, axis_name: str, num_pairs: int) -> None:
  """Raises ValueError if a mask or bias contains an array [... T S], or one that may be either [T] or [S]."""
  for array, letters in zip(jax.tree.leaves(rule), leaf_axes(rule), strict=True):
    sizes = dict(zip(reversed(letters), reversed(jnp.shape(array)), strict=False))
    if num_pairs == 1 and letters == "TS" and axis_name in varying(jnp.asarray(array)):
      raise ValueError(
        "with one query and one key per device, an array [... 1 1] is ambiguous: use a mask of positions, "
        "such as `masks.lengths`, or more positions per device"
      )
    if sizes.get("T", 1) > 1 and sizes.get("S", 1) > 1:
      raise ValueError(
        f"{name} must be a function of positions, or an array [... T 1] or [... 1 S], in ring_attention, "
        f"got an array of shape {jnp.shape(array)}"
      )
