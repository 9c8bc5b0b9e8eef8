"""Attention over sequences that are spread over several devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.arrays.pytrees import leaf_axes
from attention.arrays.sharding import matmul_precision, varying
from attention.engines.attention_inputs import prepare
from attention.engines.bias import BiasLike
from attention.engines.blockwise import blockwise
from attention.masks import Array, Mask
from attention.scores.score import Score
from attention.validation import check_options, check_vectors


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
  """Returns `attend` for sequences of which each device along an axis of the mesh holds one part.

  It is called inside `jax.shard_map`. Queries stay where they are, and meet the keys and values of one
  device after the other. These are not kept for the gradients: derivatives fetch them again. On a CPU, tiles
  that are masked are skipped. With a causal mask the first devices then have less to do than the last, unless
  each holds two parts, one from the front and one from the back: `zigzag`.

  Source: Liu et al. 2023, arXiv:2310.01889.

  Args:
    score: as in `attend`; the same on all devices.
    queries: this device's part of the queries, [... T H]: positions i T to (i + 1) T - 1 on device i.
    keys: this device's part of the keys, [... S H], likewise.
    values: this device's part of the values, [... S D].
    axis_name: the axis of the mesh along which the sequences are spread.
    mask: as in `attend`. Positions, lengths and offsets count from the start of the whole sequence; the
      segments of queries and keys are this device's part of them. Of arrays, [... 1 S] and [... T 1] are
      this device's part; there is no place for [... T S].
    bias: as in `attend`; the same holds for arrays, and a function gets positions in the whole sequence.
    dropout_rate: as in `attend`; what is dropped is the same as on one device.
    dropout_rng: the same on all devices.
    return_logsumexp: as in `attend`.
    block_sizes: as in `attend`.
    zigzag: whether the sequences are in the order of `zigzag_layout`: device i of n has the parts i and
      2 n - 1 - i of 2 n.

  Returns:
    This device's part of the context, [... T D]; or an `AttentionOutput` with it and the logsumexp, [... T].

  Raises:
    ValueError: as `attend`; if there is no such axis; or if mask or bias hold an array [... T S].

  >>> from attention import ScaledDotProduct, masks
  >>> P = jax.sharding.PartitionSpec("sequence")
  >>> mesh = jax.make_mesh((1,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
  >>> def attend_in_ring(x):
  ...   return ring_attention(ScaledDotProduct(), x, x, x, axis_name="sequence", mask=masks.causal())
  >>> jax.shard_map(attend_in_ring, mesh=mesh, in_specs=P, out_specs=P)(jnp.ones((8, 2))).shape
  (8, 2)
  """
  queries, keys, values = check_vectors(queries, keys, values)
  options = check_options(
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
      f"axis_name must be an axis of the mesh of the jax.shard_map that calls this, got {axis_name!r}"
    ) from None
  T, S = queries.shape[-2], keys.shape[-2]
  if zigzag and (T % 2 or S % 2):
    raise ValueError(f"with zigzag a device must have an even number of queries and keys, got {T} and {S}")
  _check_no_pairs("mask", options.mask, axis_name, T * S)
  _check_no_pairs("bias", options.bias, axis_name, T * S)
  with jax.default_matmul_precision(matmul_precision()):
    positions = _positions(axis_name, T, zigzag), _positions(axis_name, S, zigzag)
    length = jax.lax.axis_size(axis_name) * T
    inputs, shape = prepare(queries, keys, values, options, positions, length)
    attended = blockwise(
      inputs,
      shape,
      block_sizes=options.block_sizes,
      ring=axis_name,
      num_segments=1 + zigzag,
      return_logsumexp=return_logsumexp,
    )
  return options.returned(attended._replace(context=attended.context.astype(queries.dtype)))


def zigzag_layout(length: int, num_devices: int) -> np.ndarray:
  """Returns the order of positions in which causal attention gives all devices as much to do, [length].

  Of 2 n parts of a sequence, device i of n gets the parts i and 2 n - 1 - i. `vectors[..., order, :]` puts
  vectors [... T H] in that order before they are spread, and `numpy.argsort(order)` puts results back.

  Args:
    length: of the whole sequence, a multiple of 2 n.
    num_devices: n.

  Raises:
    ValueError: if the length is no such multiple.

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
  """Returns the positions in the whole sequence of this device's, which are so many."""
  index, count = jax.lax.axis_index(axis_name), jax.lax.axis_size(axis_name)
  if not zigzag:
    return index * length + jnp.arange(length)
  half = length // 2
  return jnp.concatenate([part * half + jnp.arange(half) for part in (index, 2 * count - 1 - index)])


def _check_no_pairs(name: str, rule: Any, axis_name: str, num_pairs: int) -> None:
  """Raises ValueError if a mask or bias holds an array [... T S], T and S more than 1.

  Or an array that could belong to either this device's queries or its keys.
  """
  for array, own in zip(jax.tree.leaves(rule), leaf_axes(rule), strict=True):
    sizes = dict(zip(reversed(own or ""), reversed(jnp.shape(array)), strict=False))
    if num_pairs == 1 and own == "TS" and axis_name in varying(jnp.asarray(array)):
      raise ValueError(
        "where a device has one query and one key, a mask or bias [... 1 1] may belong to either: "
        "use one that knows, such as `masks.lengths`, or give each device more of them"
      )
    if sizes.get("T", 1) > 1 and sizes.get("S", 1) > 1:
      raise ValueError(
        f"{name} must not be an array [... T S] in ring_attention, since each device has but its own part "
        f"of the keys, got shape {jnp.shape(array)}; give it as a mask of positions or a function of them"
      )
