"""Flax: the layer of a Transformer decoder that reads a target and attends to its source."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from attention import masks
from attention.arrays.checks import as_array
from attention.engines.bias import BiasLike
from attention.layers.cache import KVCache
from attention.layers.encoder_layer import TransformerLayer
from attention.layers.multi_head import MultiHeadAttention
from attention.layers.projections import LayerNorm, is_deterministic
from attention.masks import Array, Mask


class DecoderLayer(TransformerLayer):
  """One layer of the transformer's decoder: causal self-attention, attention to a source, a network.

  The three are joined as in `EncoderLayer`, whose attributes it has.

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.

  Attributes:
    features: D, of the inputs; None for that of the source.
    cross_attention_cls: makes the attention to the source, as `self_attention_cls` makes that of the inputs
      to themselves; it is also called with qkv_features.

  >>> import jax.numpy as jnp
  >>> layer = DecoderLayer(num_heads=2, mlp_dim=32)
  >>> targets, source = jnp.ones((3, 5, 8)), jnp.ones((3, 7, 8))
  >>> parameters = layer.init(jax.random.key(0), targets, source)
  >>> layer.apply(parameters, targets, source).shape
  (3, 5, 8)

  Decoding computes keys and values of the source once, and keeps those of the target (see
  `MultiHeadAttention`):

  >>> keys_values = layer.apply(parameters, source, method="project_kv")
  >>> cache = layer.apply(parameters, targets, 5, method="init_cache")
  >>> first, cache = layer.apply(
  ...   parameters, targets[:, :1], keys_values, cache=cache, method="attend_with_kv"
  ... )
  """

  features: int | None = None
  cross_attention_cls: Callable[..., MultiHeadAttention] = MultiHeadAttention

  def setup(self):
    super().setup()
    dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
    options: dict[str, Any] = {"num_heads": self.num_heads, "qkv_features": self.features, **dtypes}
    self.cross_attention = self.cross_attention_cls(
      dropout_rate=self.dropout_rate, implementation=self.implementation, **options
    )
    self.cross_attention_norm = LayerNorm(**dtypes)
    self.cross_attention_dropout = nn.Dropout(self.dropout_rate)

  def __call__(
    self,
    inputs: jax.Array,
    inputs_kv: jax.Array,
    *,
    mask: Mask | Array | None = None,
    source_mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Returns the layer's output [... T D].

    Args:
      inputs: [... T D]; a position sees itself and those before it.
      inputs_kv: [... S E].
      mask: which of these it may see, broadcastable to [... N T T].
      source_mask: which of the sources, broadcastable to [... N T S].
      bias: of the scores among the inputs, broadcastable to [... N T T].
      deterministic: whether to leave the dropout out; otherwise it draws from the rng "dropout". None for the
        layer's own.
      return_weights: whether to return a tuple of the output and the weights of the sources [... N T S].
    """
    return self.attend_with_kv(
      inputs,
      self.project_kv(inputs_kv),
      mask=mask,
      source_mask=source_mask,
      bias=bias,
      deterministic=deterministic,
      return_weights=return_weights,
    )

  def project_kv(self, inputs_kv: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns keys and values [... N S H] of the sources: what does not depend on the inputs."""
    return self.cross_attention.project_kv(inputs_kv)

  def attend_with_kv(
    self,
    inputs: jax.Array,
    keys_values: tuple[jax.Array, jax.Array],
    *,
    mask: Mask | Array | None = None,
    source_mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    cache: KVCache | None = None,
    deterministic: bool | None = None,
    return_weights: bool = False,
  ) -> Any:
    """Is `__call__` with the keys and values that `project_kv` returned.

    With a cache from `init_cache` or an earlier call, the inputs come after its tokens, and it returns a
    tuple of the output, then, if asked for, the weights, then the new cache.
    """
    inputs = as_array("inputs", inputs)
    deterministic = is_deterministic(self, deterministic)
    causal = masks.causal() if mask is None else masks.causal() & mask
    attend = functools.partial(self.attention, mask=causal, bias=bias, cache=cache)
    middle, *caches = self._join(attend, self.attention_norm, self.attention_dropout, inputs, deterministic)
    attend = functools.partial(
      self.cross_attention.attend_with_kv,
      keys_values=keys_values,
      mask=source_mask,
      return_weights=return_weights,
    )
    middle, *weights = self._join(
      attend, self.cross_attention_norm, self.cross_attention_dropout, middle, deterministic
    )
    (outputs,) = self._join(
      self.feed_forward, self.feed_forward_norm, self.feed_forward_dropout, middle, deterministic
    )
    others = (*weights, *caches)
    return (outputs, *others) if others else outputs
