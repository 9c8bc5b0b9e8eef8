"""Flax: the layer of a Transformer encoder."""

import jax
from flax import linen as nn

from attention.engines.inputs import BiasLike
from attention.layers.attention import MultiHeadAttention
from attention.layers.parameters import LayerNorm, Linear
from attention.masks import Array, Mask


class FeedForward(nn.Module):
  """The same two-layer network at every position: [... T D] -> [... T F] -> [... T D].

      result = relu(inputs W_1 + b_1) W_2 + b_2

  Source: Vaswani et al. 2017, arXiv:1706.03762, equation 2.

  Attributes:
    hidden_width: F.
    dropout_rate: probability that a hidden unit is dropped.
  """

  hidden_width: int
  dropout_rate: float = 0.0

  @nn.compact
  def __call__(self, inputs: jax.Array, *, deterministic: bool = True) -> jax.Array:
    hidden = nn.relu(Linear(self.hidden_width, name="hidden")(inputs))
    hidden = nn.Dropout(self.dropout_rate)(hidden, deterministic=deterministic)
    return Linear(inputs.shape[-1], name="out")(hidden)


class EncoderLayer(nn.Module):
  """One layer of the transformer's encoder: self-attention, then a feed-forward network.

      post-norm:  x = norm(x + sublayer(x))
      pre-norm:   x = x + sublayer(norm(x))

  Padding must be finite: the attention lets nothing through that is masked, but a NaN there reaches the
  gradients of the norms and the network, which work on every position.

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1; pre-norm: Xiong et al. 2020,
  arXiv:2002.04745.

  Attributes:
    num_heads: N.
    feed_forward_width: F.
    dropout_rate: probability of dropping an attention weight, a hidden unit, or a sublayer's output unit.
    norm: "pre" or "post".
    implementation: as in `attend`.

  Raises:
    ValueError: if `norm` is neither.
  """

  num_heads: int
  feed_forward_width: int
  dropout_rate: float = 0.0
  norm: str = "pre"
  implementation: str = "auto"

  @nn.compact
  def __call__(
    self,
    inputs: jax.Array,
    *,
    mask: Mask | Array | None = None,
    bias: BiasLike | None = None,
    deterministic: bool = True,
  ) -> jax.Array:
    """Returns the layer's output [... S D] for inputs [... S D]; mask and bias as [... N S S]."""
    if self.norm not in ("pre", "post"):
      raise ValueError(f"norm must be pre or post, got {self.norm!r}")
    attention = MultiHeadAttention(
      self.num_heads,
      inputs.shape[-1],
      dropout_rate=self.dropout_rate,
      implementation=self.implementation,
      name="attention",
    )
    feed_forward = FeedForward(self.feed_forward_width, self.dropout_rate, name="feed_forward")
    sublayers = {
      "attention_norm": lambda x: attention(x, mask=mask, bias=bias, deterministic=deterministic),
      "feed_forward_norm": lambda x: feed_forward(x, deterministic=deterministic),
    }
    outputs = inputs
    for name, sublayer in sublayers.items():
      norm = LayerNorm(name=name)
      dropout = nn.Dropout(self.dropout_rate, deterministic=deterministic)
      if self.norm == "pre":
        outputs = outputs + dropout(sublayer(norm(outputs)))
      else:
        outputs = norm(outputs + dropout(sublayer(outputs)))
    return outputs
