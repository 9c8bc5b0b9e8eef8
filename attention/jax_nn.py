"""A drop-in replacement for `jax.nn.dot_product_attention`: only the import changes."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention import masks
from attention.arrays.checks import as_array, as_integers, as_real
from attention.biases.base import BiasLike
from attention.grouped_heads import attend_heads
from attention.masks import Array, Mask
from attention.scores.dot_product import ScaledDotProduct


def dot_product_attention(
  query: Array,
  key: Array,
  value: Array,
  bias: BiasLike | None = None,
  mask: Mask | Array | None = None,
  *,
  scale: jax.Array | float | None = None,
  is_causal: bool = False,
  query_seq_lengths: Array | None = None,
  key_value_seq_lengths: Array | None = None,
  local_window_size: int | tuple[int, int] | None = None,
  implementation: str | None = None,
  return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
  """Computes dot-product attention with the arguments and layout of `jax.nn.dot_product_attention`.

      result = softmax(scale query key^T + bias) value

  Differences from JAX 0.10.1:

  * Fully masked rows return zeros with zero gradients. JAX returns the mean of the values.
  * NaN and infinity in masked keys or values have no effect. In JAX, results or gradients become NaN.
  * Softmax and weighted sums of half-precision inputs are computed in float32, those of float64 in float64.
    JAX rounds the weights to the dtype of the keys, and computes the softmax of float64 in float32.
  * The residual is differentiable, -inf for fully masked rows, and at least float32. In JAX it is a constant
    in the dtype of the keys.
  * Memory is linear in T + S for long sequences, in all derivatives.
  * A bias must be floating-point. It may be a function, and the mask may come from `attention.masks`.
  * The implementation "cudnn" is not supported, since it returns the mean of the values for fully masked
    rows.

  Args:
    query: [B T N H], or [T N H].
    key: [B S K H], or [S K H], where K divides N. Query head n attends to key head n // (N / K).
    value: same shape as the key.
    bias: added to the scores, broadcastable to [B N T S].
    mask: boolean, broadcastable to [B N T S]. True means "may attend".
    scale: factor of the scores. Default: 1 / sqrt(H).
    is_causal: if True, the query at t attends only to keys s <= t.
    query_seq_lengths: number of valid queries, integers [B]. Other rows are fully masked.
    key_value_seq_lengths: number of valid keys, integers [B]. Other keys are masked.
    local_window_size: number of keys before and after its position that a query attends to: a pair of
      integers, or one integer for both.
    implementation: "auto", "dense" or "blockwise", as in `attend`. None and "xla" mean "auto".
    return_residual: also return the logsumexp.

  Returns:
    The context, with the shape and dtype of the query. With `return_residual`, a tuple of the context and the
    logsumexp, [B T N] or [T N].

  Raises:
    ValueError: if shapes or dtypes are incompatible, the mask is not boolean, or an option is invalid.

  >>> query, key = jnp.ones((2, 3, 4, 8)), jnp.ones((2, 5, 2, 8))
  >>> dot_product_attention(query, key, key, is_causal=True).shape
  (2, 3, 4, 8)
  """
  query, key, value = map(as_array, ("query", "key", "value"), (query, key, value))
  allowed = (*query.shape[:-3], *key.shape[-3:-1], *query.shape[-1:])
  if query.ndim not in (3, 4) or key.shape != allowed or value.shape != allowed:
    raise ValueError(
      "query must have axes [B T N H], or [T N H], and key and value [B S K H], or [S K H], with the same B, "
      f"S, K and H, got query {query.shape}, key {key.shape}, value {value.shape}"
    )
  B = query.shape[0] if query.ndim == 4 else 1
  all_masks = [] if mask is None else [masks.as_mask(mask)]
  if is_causal:
    all_masks.append(masks.causal())
  if query_seq_lengths is not None:
    all_masks.append(masks.lengths(target=_over_heads("query_seq_lengths", query_seq_lengths, B)))
  if key_value_seq_lengths is not None:
    all_masks.append(masks.lengths(source=_over_heads("key_value_seq_lengths", key_value_seq_lengths, B)))
  if local_window_size is not None:
    window: Any = local_window_size
    window = (window, window) if np.ndim(window) == 0 else window
    if len(window) != 2:
      raise ValueError(
        f"local_window_size must be an integer or a pair of integers, (before, after), got {window!r}"
      )
    all_masks.append(masks.sliding_window(*window))
  heads = (jnp.swapaxes(array, -3, -2) for array in (query, key, value))
  output = attend_heads(
    *(array if array.ndim == 4 else array[None] for array in heads),
    score=ScaledDotProduct(None if scale is None else as_real("scale", scale)),
    mask=functools.reduce(operator.and_, all_masks) if all_masks else None,
    bias=bias,
    return_logsumexp=return_residual,
    implementation="auto" if implementation in (None, "xla") else implementation,
  )
  context = jnp.swapaxes(output.context if return_residual else output, -3, -2).reshape(query.shape)
  if not return_residual:
    return context
  return context, jnp.swapaxes(output.logsumexp, -2, -1).reshape(query.shape[:-1])


def _over_heads(name: str, lengths: Array, B: int) -> jax.Array:
  """Returns lengths [B] as [B 1], to broadcast over heads, or raises ValueError."""
  lengths = as_integers(name, lengths)
  if lengths.shape != (B,):
    raise ValueError(f"{name} must be integers [B] with B={B}, got shape {lengths.shape}")
  return lengths[:, None]
