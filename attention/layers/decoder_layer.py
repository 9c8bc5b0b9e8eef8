"""The Transformer decoder layer, with self-attention and cross-attention."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from attention import masks
from attention.arrays.checks import as_array
from attention.biases.base import BiasLike
from attention.layers.cache import KVCache
from attention.layers.encoder_layer import TransformerLayer
from attention.layers.multi_head import MultiHeadAttention
from attention.layers.projections import is_deterministic
from attention.masks import Array, Mask


class DecoderLayer(TransformerLayer):
  """A Transformer decoder layer: causal self-attention, cross-attention, and a feed-forward network.

  Residual connections and norms, and all other attributes, are those of `EncoderLayer`.

  Attributes:
    features: D, the width of the inputs. Default: the width of the source.
    cross_attention_cls: constructor of the cross-attention, like `self_attention_cls`; also called with
      qkv_features.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, section 3.1.

  >>> import jax.numpy as jnp
  >>> layer = DecoderLayer(num_heads=2, mlp_dim=32)
  >>> targets, source = jnp.ones((3, 5, 8)), jnp.ones((3, 7, 8))
  >>> params = layer.init(jax.random.key(0), targets, source)
  >>> layer.apply(params, targets, source).shape
  (3, 5, 8)

  For decoding, compute keys and values of the source once, and cache those of the target (see
  `MultiHeadAttention`):

  >>> keys_values = layer.apply(params, source, method="project_kv")
  >>> cache = layer.apply(params, targets, 5, method="init_cache")
  >>> first, cache = layer.apply(
  ...   params, targets[:, :1], keys_values, cache=cache, method="attend_with_kv"
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
    self.cross_attention_norm = self.norm_cls(**dtypes)
    if self.norm_position == "both":
      self.cross_attention_out_norm = self.norm_cls(**dtypes)
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
    """Applies the layer.

    Args:
      inputs: [... T D]. Each position attends to itself and earlier positions.
      inputs_kv: the source, [... S E].
      mask: mask of the self-attention, broadcastable to [... N T T].
      source_mask: mask of the cross-attention, broadcastable to [... N T S].
      bias: bias of the self-attention, broadcastable to [... N T T].
      deterministic: whether dropout is off; otherwise it uses the rng "dropout". Default: that of the layer,
        or True.
      return_weights: also return the weights of the cross-attention.

    Returns:
      The output [... T D]. With `return_weights`, a tuple of the output and the weights [... N T S].
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
    """Returns projected keys and values [... N S H] of the source, which do not depend on the inputs."""
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
    """Computes `__call__` with keys and values from `project_kv`.

    With a cache from `init_cache` or an earlier call, the inputs are appended to its tokens, and the new
    cache is returned last: a tuple of the output, the weights if `return_weights`, and the cache.
    """
    inputs = as_array("inputs", inputs)
    deterministic = is_deterministic(self, deterministic)
    causal = masks.causal() if mask is None else masks.causal() & mask
    attend = functools.partial(self.attention, mask=causal, bias=bias, cache=cache)
    hidden, *caches = self._join("attention", attend, inputs, deterministic)
    attend = functools.partial(
      self.cross_attention.attend_with_kv,
      keys_values=keys_values,
      mask=source_mask,
      return_weights=return_weights,
    )
    hidden, *weights = self._join("cross_attention", attend, hidden, deterministic)
    (outputs,) = self._join("feed_forward", self.feed_forward, hidden, deterministic)
    extras = (*weights, *caches)
    return (outputs, *extras) if extras else outputs
