"""The attention of this package as the `attention_fn` of Flax's layers."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype

from attention import masks
from attention.arrays.checks import as_array
from attention.arrays.dtypes import compute_dtype, matmul_precision
from attention.arrays.shapes import with_rank
from attention.biases.base import BiasLike, BiasSum, as_bias
from attention.grouped_heads import attend_heads_checked
from attention.layers.cache import bias_from, mask_from
from attention.layers.projections import promote
from attention.masks import Array, Mask, as_mask
from attention.normalizers.base import Normalizer
from attention.scores.base import Score
from attention.scores.dot_product import ScaledDotProduct
from attention.validation import check_options


def flax_attention_fn(
  *,
  score: Score | None = None,
  mask: Mask | Array | None = None,
  bias: BiasLike | None = None,
  normalizer: Normalizer | None = None,
  implementation: str = "auto",
  decode: bool | None = None,
) -> Callable[..., jax.Array]:
  """Returns a function for the `attention_fn` of Flax's attention layers.

  Pass it to `nn.MultiHeadDotProductAttention` or `nnx.MultiHeadAttention`. It has the arguments of
  `nn.dot_product_attention` and `nnx.dot_product_attention`, except `promote_dtype`. The mask of a call may
  also be one of `attention.masks`. It is combined with `mask`, and a bias of a call is added to `bias`.
  Results differ from those of Flax as described in `attention.jax_nn`. Dropout uses other random numbers.

  Args:
    score: the score function of queries [B N T H] and keys [B N S H]. Default: `ScaledDotProduct()`.
    mask: broadcastable to [B N T S]. True means "may attend".
    bias: broadcastable to [B N T S], or a function of positions, as in `attend`.
    normalizer, implementation: as in `attend`.
    decode: whether the layer has `decode=True`. Then a single query is at the last slot of the cache that
      the layer's mask allows, and functions of positions and `is_causal` count from there. Flax does not pass
      the position itself, so a mask of the call must allow the query to attend to itself. Default: raise an
      error in calls that depend on it.

  Returns:
    A function of query [B... T N H], key [B... S K H] and value [B... S K D], where K divides N. It returns
    the context [B... T N D]. It raises ValueError if the options are invalid or the shapes incompatible, and
    for einsums of Flax's quantized training.

  >>> layer = nn.MultiHeadDotProductAttention(4, attention_fn=flax_attention_fn(mask=masks.causal()))
  >>> inputs = jnp.ones((2, 5, 12))
  >>> layer.apply(layer.init(jax.random.key(0), inputs), inputs).shape
  (2, 5, 12)
  """
  own_score = ScaledDotProduct() if score is None else score
  own_mask, own_bias = None if mask is None else as_mask(mask), bias
  check_options(own_score, mask=mask, bias=bias, normalizer=normalizer, implementation=implementation)

  def attention_fn(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: BiasLike | None = None,
    mask: Mask | Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Dtype | None = None,
    precision: Any = None,
    module: Any = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Callable | None = None,
    qk_attn_weights_einsum: Callable | None = None,
    attn_weights_value_einsum: Callable | None = None,
    is_causal: bool = False,
  ) -> jax.Array:
    if any((einsum_dot_general, qk_attn_weights_einsum, attn_weights_value_einsum)):
      raise ValueError(
        "einsum_dot_general and other einsums must be None in flax_attention_fn, got a function"
      )
    query, key, value = promote(query, key, value, dtype=dtype)
    out_dtype = query.dtype
    if module is not None and force_fp32_for_softmax:  # weights are in float32, as in Flax
      query, key, value = (array.astype(compute_dtype(out_dtype)) for array in (query, key, value))
    queries, keys, values = (jnp.swapaxes(array, -3, -2) for array in (query, key, value))
    shape = *queries.shape[:-1], keys.shape[-2]
    fixed_mask, fixed_bias = _joined(masks.And, own_mask, masks.causal() if is_causal else None), own_bias
    if shape[-2] == 1 != shape[-1] and not (fixed_mask is None and fixed_bias is None):
      start = _query_position(mask, decode, shape[-1])
      if start is not None:
        start = jnp.broadcast_to(start, shape[:-3])
        fixed_mask = None if fixed_mask is None else mask_from(fixed_mask, start, shape)
        fixed_bias = bias_from(fixed_bias, start, shape)
    if mask is not None and not isinstance(mask, Mask):
      mask = as_mask(as_array("mask", mask).astype(bool))
    options, settings = check_options(
      own_score,
      mask=_joined(masks.And, fixed_mask, mask),
      bias=_joined(BiasSum, as_bias(fixed_bias), as_bias(bias)),
      dropout_rate=0.0 if deterministic else dropout_rate,
      dropout_rng=dropout_rng,
      normalizer=normalizer,
      return_weights=module is not None,
      implementation=implementation,
    )
    if options.dropout is not None and broadcast_dropout:
      options = dataclasses.replace(options, dropout=dataclasses.replace(options.dropout, is_shared=True))
    with _precision(precision):
      output = attend_heads_checked(queries, keys, values, options, settings=settings)
    if module is not None:
      # A module of NNX has imported flax.nnx, which takes 0.3 s.
      collection = "intermediates" if isinstance(module, nn.Module) else flax.nnx.Intermediate  # type: ignore
      module.sow(collection, "attention_weights", output.weights)
    return jnp.swapaxes(output.context, -3, -2).astype(out_dtype)

  return attention_fn


def _precision(precision: Any) -> Any:
  """Returns a context with the precision of products that a layer asks for, if any."""
  name = str(precision).lower()
  if name not in ("none", "default", "high", "highest"):
    raise ValueError(f"precision must be None, default, high or highest, got {precision!r}")
  return jax.default_matmul_precision(matmul_precision() if precision is None else name)


def _query_position(mask: Mask | Array | None, decode: bool | None, S: int) -> jax.Array | None:
  """Returns the position [...] of a single query in a cache of Flax with S slots; None without a cache.

  Flax allows the slots in use, so that the query is at the last one that the mask of the call allows.
  """
  is_array = mask is not None and not isinstance(mask, Mask)
  if not (is_array if decode is None else decode):
    return None
  if decode is None or not is_array:
    raise ValueError(
      "decode of flax_attention_fn must be True if the layer has a cache (decode=True), otherwise False, and "
      "with True the mask of the call must be an array, which shows the position of the query, got "
      f"decode={decode}, mask={mask!r}"
    )
  allowed = with_rank(jnp.asarray(mask).astype(bool), 3).any((-3, -2))
  return S - 1 - jnp.argmax(allowed[..., ::-1], axis=-1)


def _joined(join: Callable, *parts: Any) -> Any:
  """Returns the parts that are not None, joined by a function of two; None if all are None."""
  given = [part for part in parts if part is not None]
  return functools.reduce(join, given) if given else None
