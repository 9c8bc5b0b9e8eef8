"""Flax: the layer of a Transformer encoder, and of a decoder that reads one sequence."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype

from attention.arrays.checks import as_array
from attention.engines.bias import BiasLike
from attention.layers.cache import KVCache
from attention.layers.multi_head import MultiHeadAttention
from attention.layers.projections import LayerNorm, Linear, is_deterministic, promote
from attention.masks import Array, Mask


class FeedForward(nn.Module):
  """The same two-layer network at every position: [... T D] -> [... T F] -> [... T D].

      result = relu(inputs W_1 + b_1) W_2 + b_2

  Source: Vaswani et al. 2017, arXiv:1706.03762, equation 2.

  Attributes:
    mlp_dim: F.
    dropout_rate: probability that a hidden unit is dropped.
    dtype: as in `MultiHeadAttention`.
    param_dtype: likewise.
    deterministic: likewise.
  """

  mlp_dim: int
  dropout_rate: float = 0.0
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  deterministic: bool | None = None

  @nn.compact
  def __call__(self, inputs: jax.Array, *, deterministic: bool | None = None) -> jax.Array:
    deterministic = is_deterministic(self, deterministic)
    hidden = nn.relu(Linear(self.mlp_dim, self.dtype, self.param_dtype, name="hidden")(inputs))
    hidden = nn.Dropout(self.dropout_rate)(hidden, deterministic=deterministic)
    return Linear(inputs.shape[-1], self.dtype, self.param_dtype, name="out")(hidden)


class TransformerLayer(nn.Module):
  """What the layers of encoder and decoder share; its attributes are told of in `EncoderLayer`."""

  num_heads: int
  mlp_dim: int
  dropout_rate: float = 0.0
  norm_position: str = "pre"
  implementation: str = "auto"
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  self_attention_cls: Callable[..., MultiHeadAttention] = MultiHeadAttention
  deterministic: bool | None = None

  def setup(self):
    if self.norm_position not in ("pre", "post"):
      raise ValueError(f"norm_position must be pre or post, got {self.norm_position!r}")
    dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
    self.attention = self.self_attention_cls(
      num_heads=self.num_heads, dropout_rate=self.dropout_rate, implementation=self.implementation, **dtypes
    )
    self.feed_forward = FeedForward(self.mlp_dim, self.dropout_rate, **dtypes)
    self.attention_norm = LayerNorm(**dtypes)
    self.feed_forward_norm = LayerNorm(**dtypes)
    # A layer draws from its name: with others, a seed would no longer give what it gave.
    self.attention_dropout = nn.Dropout(self.dropout_rate, name="Dropout_0")
    self.feed_forward_dropout = nn.Dropout(self.dropout_rate, name="Dropout_1")

  def init_cache(self, inputs: jax.Array, max_length: int) -> KVCache:
    """Returns a cache without tokens, with max_length slots, for inputs like these, [... S D]."""
    return self.attention.init_cache(inputs, max_length)

  def _join(
    self, sublayer: Callable, norm: LayerNorm, dropout: nn.Dropout, inputs: jax.Array, deterministic: bool
  ) -> tuple[Any, ...]:
    """Returns inputs [... S D] joined with what a sublayer makes of them, then what else it returns."""
    found = sublayer(norm(inputs) if self.norm_position == "pre" else inputs, deterministic=deterministic)
    changed, *others = found if isinstance(found, tuple) else (found,)
    changed = dropout(changed, deterministic=deterministic)
    inputs, changed = promote(inputs, changed, dtype=self.dtype)
    outputs = inputs + changed
    return (outputs if self.norm_position == "pre" else norm(outputs), *others)


class EncoderLayer(TransformerLayer):
  """One layer of the transformer's encoder: self-attention, then a feed-forward network.

      post-norm:  x = norm(x + sublayer(x))
      pre-norm:   x = x + sublayer(norm(x))

  With a causal mask and a cache it is the layer of a language model.

  Padding must be finite: the attention lets nothing through that is masked, but a NaN there reaches the
  gradients of the norms and the network, which work on every position.

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1; pre-norm: Xiong et al. 2020,
  arXiv:2002.04745.

  Attributes:
    num_heads: N.
    mlp_dim: F.
    dropout_rate: probability of dropping an attention weight, a hidden unit, or a sublayer's output unit.
    norm_position: "pre" or "post".
    implementation: as in `attend`.
    dtype: as in `MultiHeadAttention`; of the result too.
    param_dtype: likewise.
    self_attention_cls: `MultiHeadAttention` or a `functools.partial` of it with further options. It is called
      with num_heads, dropout_rate, implementation, dtype and param_dtype.
    deterministic: as in `MultiHeadAttention`.

  Raises:
    ValueError: if `norm_position` is neither.

  >>> import functools
  >>> from attention import positions
  >>> rotary_attention = functools.partial(MultiHeadAttention, position_fn=positions.rotary)
  >>> layer = EncoderLayer(num_heads=2, mlp_dim=32, self_attention_cls=rotary_attention)
  >>> layer.init_with_output(jax.random.key(0), jnp.ones((3, 5, 8)))[0].shape
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
    """Returns the layer's output [... S D] for inputs [... S D]; mask and bias as [... N S S].

    As `MultiHeadAttention` does, it returns a tuple of the output, then, if asked for, the weights
    [... N S S], then, with a cache from `init_cache` or an earlier call, the new cache.
    """
    inputs = as_array("inputs", inputs)
    deterministic = is_deterministic(self, deterministic)
    attend = functools.partial(
      self.attention, mask=mask, bias=bias, cache=cache, return_weights=return_weights
    )
    middle, *others = self._join(attend, self.attention_norm, self.attention_dropout, inputs, deterministic)
    (outputs,) = self._join(
      self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout, middle, deterministic
    )
    return (outputs, *others) if others else outputs
