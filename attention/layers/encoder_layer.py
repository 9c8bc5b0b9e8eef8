"""The Transformer encoder layer, which is also the layer of a decoder-only model."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype

from attention.arrays.checks import as_array
from attention.biases.base import BiasLike
from attention.layers.cache import KVCache
from attention.layers.multi_head import MultiHeadAttention
from attention.layers.projections import LayerNorm, Linear, check_unused, is_deterministic, promote, relu
from attention.masks import Array, Mask


class FeedForward(nn.Module):
  """A two-layer network that is applied at every position, [... T D] to [... T F] to [... T D].

      result = activation(inputs W_1 + b_1) W_2 + b_2
      gated:   (activation(inputs W_g + b_g) (inputs W_1 + b_1)) W_2 + b_2

  Attributes:
    mlp_dim: F.
    dropout_rate: probability of dropping a hidden unit.
    dtype, param_dtype, deterministic: as in `MultiHeadAttention`.
    activation: a function of arrays. With `use_gate`, `nn.silu` is SwiGLU and `nn.gelu` is GEGLU.
    use_gate: whether hidden units are multiplied by a gate.
    use_bias: whether the projections have biases.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, equation 2; `use_gate`: Shazeer 2020, arXiv:2002.05202.
  """

  mlp_dim: int
  dropout_rate: float = 0.0
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  deterministic: bool | None = None
  activation: Callable[[jax.Array], jax.Array] = relu
  use_gate: bool = False
  use_bias: bool = True

  @nn.compact
  def __call__(self, inputs: jax.Array, *, deterministic: bool | None = None) -> jax.Array:
    deterministic = is_deterministic(self, deterministic)
    check_unused(self, gate=self.use_gate)
    linear = functools.partial(Linear, dtype=self.dtype, param_dtype=self.param_dtype, use_bias=self.use_bias)
    hidden = linear(self.mlp_dim, name="hidden")(inputs)
    if self.use_gate:
      hidden *= self.activation(linear(self.mlp_dim, name="gate")(inputs))
    else:
      hidden = self.activation(hidden)
    hidden = nn.Dropout(self.dropout_rate)(hidden, deterministic=deterministic)
    return linear(inputs.shape[-1], name="out")(hidden)


class TransformerLayer(nn.Module):
  """Base class of `EncoderLayer` and `DecoderLayer`; see `EncoderLayer` for the attributes."""

  num_heads: int
  mlp_dim: int
  dropout_rate: float = 0.0
  norm_position: str = "pre"
  implementation: str = "auto"
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  self_attention_cls: Callable[..., MultiHeadAttention] = MultiHeadAttention
  deterministic: bool | None = None
  feed_forward_cls: Callable[..., FeedForward] = FeedForward
  norm_cls: Callable[..., nn.Module] = LayerNorm

  def setup(self):
    if self.norm_position not in ("pre", "post", "both"):
      raise ValueError(f"norm_position must be pre, post or both, got {self.norm_position!r}")
    dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
    self.attention = self.self_attention_cls(
      num_heads=self.num_heads, dropout_rate=self.dropout_rate, implementation=self.implementation, **dtypes
    )
    self.feed_forward = self.feed_forward_cls(self.mlp_dim, self.dropout_rate, **dtypes)
    self.attention_norm = self.norm_cls(**dtypes)
    self.feed_forward_norm = self.norm_cls(**dtypes)
    if self.norm_position == "both":
      self.attention_out_norm, self.feed_forward_out_norm = (self.norm_cls(**dtypes) for _ in range(2))
    # Explicit names, because random numbers depend on them.
    self.attention_dropout = nn.Dropout(self.dropout_rate, name="Dropout_0")
    self.feed_forward_dropout = nn.Dropout(self.dropout_rate, name="Dropout_1")

  def init_cache(self, inputs: jax.Array, max_length: int) -> KVCache:
    """Returns an empty cache with `max_length` slots for inputs with these shapes, [... S D]."""
    return self.attention.init_cache(inputs, max_length)

  def _join(self, name: str, sublayer: Callable, inputs: jax.Array, deterministic: bool) -> tuple[Any, ...]:
    """Applies a sublayer with dropout, a residual connection and norms; returns its other results too.

    Args:
      name: of the sublayer, by which its norms and its dropout are found.
      sublayer: a function of the normalized inputs.
      inputs: [... T D].
      deterministic: whether dropout is off.
    """
    norm, dropout = getattr(self, f"{name}_norm"), getattr(self, f"{name}_dropout")
    results = sublayer(inputs if self.norm_position == "post" else norm(inputs), deterministic=deterministic)
    update, *extras = results if isinstance(results, tuple) else (results,)
    if self.norm_position == "both":
      update = getattr(self, f"{name}_out_norm")(update)
    update = dropout(update, deterministic=deterministic)
    inputs, update = promote(inputs, update, dtype=self.dtype)
    outputs = inputs + update
    return (norm(outputs) if self.norm_position == "post" else outputs, *extras)


class EncoderLayer(TransformerLayer):
  """A Transformer encoder layer: self-attention and a feed-forward network.

      post-norm:  x = norm(x + sublayer(x))
      pre-norm:   x = x + sublayer(norm(x))
      both:       x = x + out_norm(sublayer(norm(x)))

  With a causal mask and a cache, it is the layer of a decoder-only language model.

  Padding must be finite: attention ignores masked positions, but norms and the network process every
  position, so a NaN in padding would reach the gradients of their parameters.

  Attributes:
    num_heads: N.
    mlp_dim: F.
    dropout_rate: probability of dropping an attention weight, a hidden unit, or an output unit of a sublayer.
    norm_position: "pre", "post" or "both" (Gemma 2).
    implementation: as in `attend`.
    dtype: as in `MultiHeadAttention`; also the dtype of the output.
    param_dtype: as in `MultiHeadAttention`.
    self_attention_cls: `MultiHeadAttention`, or a `functools.partial` of it with further options. It is
      called with num_heads, dropout_rate, implementation, dtype and param_dtype.
    deterministic: as in `MultiHeadAttention`.
    feed_forward_cls: `FeedForward`, or a `functools.partial` of it with further options. It is called with
      mlp_dim, dropout_rate, dtype and param_dtype.
    norm_cls: `LayerNorm`, `RMSNorm`, or another constructor of a Flax module, which is called with dtype and
      param_dtype.

  Raises:
    ValueError: if `norm_position` is invalid.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, section 3.1; pre-norm: Xiong et al. 2020, arXiv:2002.04745.

  >>> import functools
  >>> from attention import positions
  >>> rotary_attention = functools.partial(MultiHeadAttention, position_fn=positions.rotary)
  >>> layer = EncoderLayer(num_heads=2, mlp_dim=32, self_attention_cls=rotary_attention)
  >>> layer.init_with_output(jax.random.key(0), jnp.ones((3, 5, 8)))[0].shape
  (3, 5, 8)

  The layer of Llama:

  >>> from attention import RMSNorm
  >>> llama_layer = EncoderLayer(
  ...   num_heads=4,
  ...   mlp_dim=32,
  ...   self_attention_cls=functools.partial(
  ...     MultiHeadAttention, num_key_value_heads=2, use_bias=False, position_fn=positions.rotary
  ...   ),
  ...   feed_forward_cls=functools.partial(FeedForward, activation=nn.silu, use_gate=True, use_bias=False),
  ...   norm_cls=RMSNorm,
  ... )
  >>> llama_layer.init_with_output(jax.random.key(0), jnp.ones((3, 5, 8)))[0].shape
  (3, 5, 8)
  """

  def __call__(
    self,
    inputs: jax.Array,
    *,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    cache: KVCache | None = None,
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Applies the layer to inputs [... S D]. Mask and bias broadcast to [... N S S].

    Args:
      inputs: [... S D].
      mask: broadcastable to [... N S S].
      bias: broadcastable to [... N S S].
      cache: from `init_cache` or an earlier call, as in `MultiHeadAttention`.
      deterministic: whether dropout is off; otherwise it uses the rng "dropout". Default: that of the layer,
        or True.
      return_weights: also return the attention weights.

    Returns:
      The output [... S D]; or a tuple of the output, the weights [... N S S] if `return_weights`, and the new
      cache if there is one.
    """
    inputs = as_array("inputs", inputs)
    deterministic = is_deterministic(self, deterministic)
    attend = functools.partial(
      self.attention, mask=mask, bias=bias, cache=cache, return_weights=return_weights
    )
    hidden, *extras = self._join("attention", attend, inputs, deterministic)
    (outputs,) = self._join("feed_forward", self.feed_forward, hidden, deterministic)
    return (outputs, *extras) if extras else outputs
