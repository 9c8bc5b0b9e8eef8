"""Multi-head attention as a pure function."""

import dataclasses
import functools
from typing import Any, Unpack

import jax

from attention.arrays.checks import check_vectors
from attention.arrays.eager_jit import eager_jit
from attention.arrays.named_axes import register_pytree
from attention.arrays.shapes import broadcast_leading
from attention.engines.dense import AttentionOutput
from attention.engines.inputs import Options, Settings
from attention.grouped_heads import attend_heads_checked
from attention.linear import merge_heads, project_heads
from attention.scores.base import Score
from attention.scores.dot_product import ScaledDotProduct
from attention.validation import AttendOptions, check_names, check_options


@register_pytree
@dataclasses.dataclass(frozen=True)
class MultiHeadWeights:
  """Weights of multi-head attention: W_Q, W_K, W_V and W_O of the paper, stacked over heads.

  Attributes:
    query: [D N H].
    key: [D N H], where D is the width of inputs_kv. A number of heads that divides N gives grouped-query
      attention; a single head gives multi-query attention.
    value: [D N H], with as many heads as the key. Its H may differ from that of query and key.
    output: [N H D], where H is that of the value.
    query_bias: [N H], or None.
    key_bias: [N H], or None.
    value_bias: [N H], or None.
    output_bias: [D], or None.
  """

  query: jax.Array
  key: jax.Array
  value: jax.Array
  output: jax.Array
  query_bias: jax.Array | None = None
  key_bias: jax.Array | None = None
  value_bias: jax.Array | None = None
  output_bias: jax.Array | None = None


def multi_head_attention(
  inputs_q: jax.Array,
  inputs_kv: jax.Array,
  weights: MultiHeadWeights,
  *,
  score: Score | None = None,
  **options: Unpack[AttendOptions],
) -> Any:
  """Computes multi-head attention.

      head_n = attention(inputs_q W_Q[n], inputs_kv W_K[n], inputs_kv W_V[n])
      result = sum over n of head_n W_O[n]

  The sum equals the paper's product of the concatenated heads with W_O.

  Args:
    inputs_q: [... T D].
    inputs_kv: [... S D]; equal to inputs_q for self-attention.
    weights: the projections, converted to the dtype of the inputs.
    score: the score function. Default: `ScaledDotProduct()`.
    **options: those of `attend`: mask, bias, dropout_rate, dropout_rng, normalizer, return_weights,
      return_logsumexp, implementation, block_sizes. Masks and biases broadcast to [... N T S]: for lengths
      [B], pass `lengths[:, None]`.

  Returns:
    [... T D], where D is the width of the output projection. With `return_weights` or `return_logsumexp`, an
    `AttentionOutput` of it, the weights [... N T S] and the logsumexp [... N T].

  Raises:
    ValueError: if the shape of a projection is incompatible; see also `attend`.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. Grouped-query attention: Ainslie et al. 2023,
    arXiv:2305.13245.

  >>> import jax.numpy as jnp
  >>> kernel = jnp.ones((6, 2, 3))
  >>> weights = MultiHeadWeights(kernel, kernel, kernel, jnp.ones((2, 3, 6)))
  >>> multi_head_attention(jnp.ones((5, 6)), jnp.ones((7, 6)), weights).shape
  (5, 6)
  """
  inputs_q, inputs_kv = check_vectors(inputs_q=inputs_q, inputs_kv=inputs_kv)
  if not isinstance(weights, MultiHeadWeights):
    raise ValueError(f"weights must be MultiHeadWeights, got {weights!r}")
  broadcast_leading(inputs_q, inputs_kv, names="inputs_q and inputs_kv")
  check_names("multi_head_attention", options)
  checked, settings = check_options(ScaledDotProduct() if score is None else score, **options)
  return settings.select_output(
    _multi_head_attention(inputs_q, inputs_kv, weights, checked, settings=settings)
  )


@functools.partial(eager_jit, static_argnames=("settings",))
def _multi_head_attention(
  inputs_q: jax.Array,
  inputs_kv: jax.Array,
  weights: MultiHeadWeights,
  options: Options,
  *,
  settings: Settings,
) -> AttentionOutput:
  heads = attend_heads_checked(
    project_heads(inputs_q, weights.query, weights.query_bias, name="query"),
    project_heads(inputs_kv, weights.key, weights.key_bias, name="key"),
    project_heads(inputs_kv, weights.value, weights.value_bias, name="value"),
    options,
    settings=settings,
  )
  return heads._replace(context=merge_heads(heads.context, weights.output, weights.output_bias))
