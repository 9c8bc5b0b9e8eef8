"""`jax.nn.dot_product_attention` with the contract of this library.

The file is called after the module whose function it stands in for: where a model imports this from `jax.nn`,
one import line changes.
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention import masks
from attention.arrays.checks import as_array, as_integers, as_real
from attention.engines.bias import BiasLike
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
  """Returns `attend_heads` for the arguments, and in the layout [B T N H], of `jax.nn.dot_product_attention`.

      result = softmax(scale query key^T + bias, over the keys that all masks allow) value

  It differs from that of JAX 0.10.1 in this:

  * A query that may attend to nothing gets zeros, and zero gradients; there the mean of the values.
  * NaN and infinity in a key or value that is masked change nothing; there results or gradients become NaN.
  * Softmax and weighted sums of half precision are in float32, those of float64 in float64. There the weights
    are rounded to the dtype of the keys, and the softmax of float64 is in float32.
  * The residual is differentiable, -inf where a query may attend to nothing, and never below float32. There
    it is a constant, in the dtype of the keys.
  * Memory for long sequences grows with T + S, in every derivative.
  * A bias must be of a floating type. It may be a function, and the mask one of `attention.masks`.
  * The implementation "cudnn", which gives the mean of the values to a query that may attend to nothing, is
    an error.

  Args:
    query: [B T N H], or [T N H].
    key: [B S K H], or [S K H]; N is a multiple of K. Query head n attends to head n // (N / K).
    value: of the shape of the key.
    bias: added to the scores; broadcastable to [B N T S].
    mask: booleans that broadcast to [B N T S], True = may attend.
    scale: factor of the scores; None for 1 / sqrt(H).
    is_causal: whether the query at t may attend to the keys s <= t alone.
    query_seq_lengths: the number of real queries, integers [B]; the others may attend to nothing.
    key_value_seq_lengths: the number of real keys, integers [B]; the others may not be attended to.
    local_window_size: how many keys before and after its own position a query may attend to, two integers,
      or one for both.
    implementation: "auto", "dense" or "blockwise", as in `attend`; None and "xla" are "auto".
    return_residual: whether to return the logsumexp too.

  Returns:
    The context, of the shape and dtype of the query; or a tuple of it and the logsumexp, [B T N] or [T N].

  Raises:
    ValueError: if shapes or dtypes do not fit, the mask is not boolean, or an option is not allowed.

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
  rules = [] if mask is None else [masks.as_mask(mask)]
  if is_causal:
    rules.append(masks.causal())
  if query_seq_lengths is not None:
    rules.append(masks.lengths(target=_over_heads("query_seq_lengths", query_seq_lengths, B)))
  if key_value_seq_lengths is not None:
    rules.append(masks.lengths(source=_over_heads("key_value_seq_lengths", key_value_seq_lengths, B)))
  if local_window_size is not None:
    window: Any = local_window_size
    window = (window, window) if np.ndim(window) == 0 else window
    if len(window) != 2:
      raise ValueError(f"local_window_size must be an integer or two, (before, after), got {window!r}")
    rules.append(masks.sliding_window(*window))
  heads = (jnp.swapaxes(array, -3, -2) for array in (query, key, value))
  found = attend_heads(
    *(array if array.ndim == 4 else array[None] for array in heads),
    score=ScaledDotProduct(None if scale is None else as_real("scale", scale)),
    mask=functools.reduce(operator.and_, rules) if rules else None,
    bias=bias,
    return_logsumexp=return_residual,
    implementation="auto" if implementation in (None, "xla") else implementation,
  )
  context = jnp.swapaxes(found.context if return_residual else found, -3, -2).reshape(query.shape)
  if not return_residual:
    return context
  return context, jnp.swapaxes(found.logsumexp, -2, -1).reshape(query.shape[:-1])


def _over_heads(name: str, lengths: Array, B: int) -> jax.Array:
  """Returns lengths [B] as [B 1], or raises ValueError."""
  lengths = as_integers(name, lengths)
  if lengths.shape != (B,):
    raise ValueError(f"{name} must be integers [B] with B={B}, got shape {lengths.shape}")
  return lengths[:, None]
