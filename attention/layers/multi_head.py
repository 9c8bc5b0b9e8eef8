"""Flax layer for multi-head attention."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype, Initializer

from attention.arrays.checks import as_floating, check_size
from attention.biases.base import BiasLike
from attention.grouped_heads import attend_heads
from attention.layers import cache as caches
from attention.layers.cache import KVCache
from attention.layers.projections import (
  HeadLinear,
  LayerNorm,
  check_unused,
  is_deterministic,
  kernel_init,
  promote,
)
from attention.linear import project
from attention.masks import Array, Mask
from attention.normalizers.base import Normalizer
from attention.normalizers.softmax import Softmax
from attention.scores.base import Score


class MultiHeadAttention(nn.Module):
  """Multi-head attention: `multi_head_attention` with parameters.

  It has the parameters and initializers of `flax.linen.MultiHeadDotProductAttention` (kernels query, key and
  value [D N H], out [N H D]; scales query_ln and key_ln [H]), so that either can use the parameters of the
  other. Most arguments have the same names; pass attributes by keyword. Differences: `cache` replaces
  `decode`, `return_weights` replaces `sow_weights`, `score` replaces `attention_fn`, and dropout is off
  unless `deterministic=False` is given. `broadcast_dropout` and `precision` are not supported.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. `normalize_qk`: Henry et al. 2020, arXiv:2010.04245,
    and in this form Dehghani et al. 2023, arXiv:2302.05442, section 2.1. `use_sinks`: OpenAI 2025,
    arXiv:2508.10925. `use_gate`: Qiu et al. 2025, arXiv:2505.06708, elementwise, after the attention.

  Attributes:
    num_heads: number of heads, N.
    qkv_features: total width of all heads, N H; a multiple of num_heads. Default: the width of `inputs_q`.
    num_key_value_heads: a divisor of num_heads, for grouped-query attention. Default: num_heads.
    use_bias: whether the projections have biases.
    dropout_rate: probability of dropping an attention weight.
    implementation, normalizer: see `attend`.
    out_features: width of the output, D. Default: the width of `inputs_q`.
    score: a `Score`, or a function (such as a Flax module, for trained parameters) that takes the projected
      queries [... N T H] and keys [... N S H] and returns a `Score`. Default: `ScaledDotProduct()`.
    position_fn: a function of vectors [... N T H] and of their positions (integers that broadcast to
      [... N T]), such as `positions.rotary`. It is applied to projected queries and keys.
    normalize_qk: whether the projected queries and keys of each head are normalized, before `position_fn`.
    qk_norm_cls: normalizes queries and keys with `RMSNorm`, or another constructor of a Flax module, which is
      called with dtype and param_dtype, instead of the `LayerNorm` without bias of `normalize_qk`.
    use_sinks: whether each head has a trained attention sink (parameter "sinks" [N], see `Softmax`).
    use_gate: whether the context of each head is multiplied by sigmoid(inputs_q W + b), with a projection
      "gate" like "query".
    dtype: dtype of the computation. Default: that to which inputs and parameters are promoted, so bfloat16
      inputs with float32 parameters give float32.
    param_dtype: dtype of the parameters.
    kernel_init: initializer of the kernels, which it receives as matrices, [D (N H)].
    bias_init: initializer of the biases.
    out_kernel_init: initializer of the output kernel, as a matrix [(N H) D]. Default: kernel_init.
    out_bias_init: initializer of the output bias. Default: bias_init.
    deterministic: whether dropout is off, unless given in a call. Default: True. Set it here under `nn.remat`
      and `nn.scan`, which trace the arguments of a call.

  Raises:
    ValueError: if num_heads does not divide qkv_features, or num_key_value_heads does not divide num_heads;
      if `use_sinks` is combined with a normalizer; or if a cache does not fit.

  A cache of keys and values is used for decoding. The first call reads the prompt, each later call one or
  more tokens. All calls take the mask of the whole sequence:

  >>> from attention import masks, positions
  >>> layer = MultiHeadAttention(num_heads=4, num_key_value_heads=2, position_fn=positions.rotary)
  >>> inputs = jax.random.normal(jax.random.key(0), (3, 7, 16))  # batch, positions, features
  >>> params = layer.init(jax.random.key(1), inputs)
  >>> mask = masks.causal() & masks.sliding_window(before=4, after=0)
  >>> whole = layer.apply(params, inputs, mask=mask)
  >>> cache = layer.apply(params, inputs, 11, method="init_cache")  # with room for 11 tokens
  >>> prompt, cache = layer.apply(params, inputs[:, :5], mask=mask, cache=cache)
  >>> sixth, cache = layer.apply(params, inputs[:, 5:6], mask=mask, cache=cache)
  >>> seventh, cache = layer.apply(params, inputs[:, 6:], mask=mask, cache=cache)
  >>> bool(jnp.allclose(jnp.concatenate([prompt, sixth, seventh], axis=1), whole, atol=1e-5))
  True
  >>> cache.length.tolist()
  [7, 7, 7]
  """

  num_heads: int
  qkv_features: int | None = None
  num_key_value_heads: int | None = None
  use_bias: bool = True
  dropout_rate: float = 0.0
  implementation: str = "auto"
  normalizer: Normalizer | None = None
  out_features: int | None = None
  score: Score | Callable[[jax.Array, jax.Array], Score] | None = None
  position_fn: Callable[[jax.Array, jax.Array], jax.Array] | None = None
  normalize_qk: bool = False
  qk_norm_cls: Callable[..., nn.Module] | None = None
  use_sinks: bool = False
  use_gate: bool = False
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  kernel_init: Initializer = kernel_init
  bias_init: Initializer = nn.initializers.zeros
  out_kernel_init: Initializer | None = None
  out_bias_init: Initializer | None = None
  deterministic: bool | None = None

  def setup(self):
    check_size("num_heads", self.num_heads)
    dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
    self.query, self.key, self.value = (
      HeadLinear(self.use_bias, self.kernel_init, self.bias_init, **dtypes) for _ in range(3)
    )
    self.out = HeadLinear(
      self.use_bias, self.out_kernel_init or self.kernel_init, self.out_bias_init or self.bias_init, **dtypes
    )
    if self.use_sinks:
      if self.normalizer is not None:
        raise ValueError(f"normalizer must be None with use_sinks, got {self.normalizer!r}")
      self.sinks = self.param("sinks", nn.initializers.zeros, (self.num_heads,), self.param_dtype)
    if self.use_gate:
      self.gate = HeadLinear(self.use_bias, self.kernel_init, self.bias_init, **dtypes)
    default: Any = functools.partial(LayerNorm, use_bias=False) if self.normalize_qk else None
    norm_cls = self.qk_norm_cls or default
    normalizes = norm_cls is not None
    check_unused(self, sinks=self.use_sinks, gate=self.use_gate, query_ln=normalizes, key_ln=normalizes)
    self.query_ln, self.key_ln = (norm_cls and norm_cls(**dtypes) for _ in range(2))

  def __call__(
    self,
    inputs_q: jax.Array,
    inputs_k: jax.Array | None = None,
    inputs_v: jax.Array | None = None,
    *,
    inputs_kv: jax.Array | None = None,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    cache: KVCache | None = None,
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Attends from `inputs_q` to `inputs_k` and `inputs_v`; with `inputs_q` alone it is self-attention.

    With a cache, the queries also attend to the tokens of earlier calls. Masks and biases that are functions
    of positions, such as `masks.causal()`, count positions from the first token in the cache, so they are the
    same in every call. Arrays must broadcast to [... N T S], where S is the number of slots. Attention is not
    causal by itself: without a mask, tokens of one call attend to each other.

    If the cache is full, the call raises an error outside `jax.jit`, and returns NaN for that sequence
    inside.

    Args:
      inputs_q: [... T D].
      inputs_k: [... S E], projected to keys. Default: inputs_q.
      inputs_v: [... S F], projected to values. Default: inputs_k.
      inputs_kv: the same as giving inputs_k alone, as in Flax.
      mask: broadcastable to [... N T S]; for lengths [B], pass `masks.lengths(source=lengths[:, None])`.
      bias: broadcastable to [... N T S].
      cache: from `init_cache` or an earlier call; inputs_q are appended to it. It cannot be combined with
        inputs_k, inputs_v or inputs_kv.
      deterministic: whether dropout is off; otherwise it uses the rng "dropout". Default: that of the layer,
        or True.
      return_weights: also return the weights [... N T S].

    Returns:
      The output [... T D]; or a tuple of it, the weights if `return_weights`, and the new cache if there is
      one.
    """
    if inputs_kv is not None:
      if inputs_k is not None or inputs_v is not None:
        raise ValueError(
          f"inputs_kv must be None if inputs_k or inputs_v is given, got shape {jnp.shape(inputs_kv)}"
        )
      inputs_k = inputs_kv
    inputs_q = as_floating("inputs_q", inputs_q)
    options: dict[str, Any] = {"deterministic": deterministic, "return_weights": return_weights}
    if cache is None:
      inputs_k = inputs_q if inputs_k is None else inputs_k
      keys_values = self.project_kv(inputs_k, inputs_v, qkv_features=inputs_q.shape[-1])
      return self.attend_with_kv(inputs_q, keys_values, mask=mask, bias=bias, **options)
    if inputs_k is not None or inputs_v is not None:
      raise ValueError(
        "inputs_k, inputs_v and inputs_kv must be None with a cache; to attend to other inputs, use "
        "project_kv and attend_with_kv"
      )
    cache = KVCache(*map(jnp.asarray, cache))
    positions = caches.next_positions(cache, inputs_q)
    new_cache = caches.write(cache, *self.project_kv(inputs_q, positions=positions), positions)
    shape = *inputs_q.shape[:-2], self.num_heads, inputs_q.shape[-2], new_cache.keys.shape[-2]
    outputs = self.attend_with_kv(
      inputs_q,
      (new_cache.keys, new_cache.values),
      positions=positions,
      mask=caches.mask_after(cache, new_cache, mask, shape),
      bias=caches.bias_from(bias, cache.length, shape),
      **options,
    )
    outputs = outputs if return_weights else (outputs,)
    return (*(caches.nan_on_overflow(new_cache, output) for output in outputs), new_cache)

  def init_cache(self, inputs: jax.Array, max_length: int) -> KVCache:
    """Returns an empty cache with `max_length` slots for inputs like these, [... T D]."""
    return caches.empty_cache(*self.project_kv(inputs[..., :1, :]), max_length)

  def project_kv(
    self,
    inputs_k: jax.Array,
    inputs_v: jax.Array | None = None,
    *,
    positions: jax.Array | None = None,
    qkv_features: int | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Returns projected keys and values, [... N S H] each, which do not depend on the queries.

    Args:
      inputs_k: [... S E].
      inputs_v: [... S F]. Default: inputs_k.
      positions: positions of the keys for `position_fn`, integers [... S]. Default: 0 to S - 1.
      qkv_features: total width of all heads, if the layer's `qkv_features` is None. Default: E. For
        cross-attention, pass the width of `inputs_q`.
    """
    inputs_k = as_floating("inputs_k", inputs_k)
    inputs_v = inputs_k if inputs_v is None else as_floating("inputs_v", inputs_v)
    sizes = self.qkv_features, qkv_features, inputs_k.shape[-1]
    features = next(size for size in sizes if size is not None)
    N, K = self.num_heads, self.num_heads if self.num_key_value_heads is None else self.num_key_value_heads
    if check_size("qkv_features", features) % N or N % check_size("num_key_value_heads", K):
      raise ValueError(
        "num_heads must divide qkv_features and be a multiple of num_key_value_heads, "
        f"got qkv_features={features}, num_heads={N}, num_key_value_heads={K}"
      )
    H = features // N
    keys, values = self.key.project(inputs_k, K, H), self.value.project(inputs_v, K, H)
    return self._normalize_and_position(keys, self.key_ln, positions), values

  def attend_with_kv(
    self,
    inputs_q: jax.Array,
    keys_values: tuple[jax.Array, jax.Array],
    *,
    positions: jax.Array | None = None,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Computes `__call__` with keys and values from `project_kv`.

    Args:
      inputs_q: [... T D].
      keys_values: from `project_kv`.
      positions: positions of the queries for `position_fn`, integers [... T]. Default: 0 to T - 1.
      mask, bias, deterministic, return_weights: see `__call__`.
    """
    keys, values = keys_values
    inputs_q = as_floating("inputs_q", inputs_q)
    queries = self.query.project(inputs_q, self.num_heads, keys.shape[-1])
    queries = self._normalize_and_position(queries, self.query_ln, positions)
    queries, keys, values = promote(queries, keys, values, dtype=self.dtype)
    score: Any = self.score
    if callable(score) and not isinstance(score, (Score, type)):
      score = score(queries, keys)
    rate = 0.0 if is_deterministic(self, deterministic) else self.dropout_rate
    output: Any = attend_heads(
      queries,
      keys,
      values,
      score=score,
      mask=mask,
      bias=bias,
      dropout_rate=rate,
      dropout_rng=self.make_rng("dropout") if rate else None,
      normalizer=Softmax(self.sinks) if self.use_sinks else self.normalizer,
      return_weights=return_weights,
      implementation=self.implementation,
    )
    context = output.context if return_weights else output
    if self.use_gate:
      gate = self.gate.project(inputs_q, self.num_heads, context.shape[-1])
      gate = jnp.where(jnp.isnan(gate), 0, gate)  # the context of NaN queries is NaN, or 0 for empty rows
      context = context * jax.nn.sigmoid(gate).astype(context.dtype)
    out_features = inputs_q.shape[-1] if self.out_features is None else self.out_features
    outputs = self.out.merge(context, check_size("out_features", out_features))
    return (outputs, output.weights) if return_weights else outputs

  def _normalize_and_position(
    self, vectors: jax.Array, norm: nn.Module | None, positions: jax.Array | None
  ) -> jax.Array:
    """Returns projected queries or keys [... N T H] after `normalize_qk` and `position_fn`."""
    if norm is not None:
      vectors = project(norm, vectors)  # keeps NaN in padding from the gradient of the norm's scale
    if self.position_fn is None:
      return vectors
    positions = jnp.arange(vectors.shape[-2]) if positions is None else positions
    return self.position_fn(vectors, positions[..., None, :])
