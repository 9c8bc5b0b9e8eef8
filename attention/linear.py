"""Products of vectors and a kernel."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from attention.arrays.checks import check_rank
from attention.arrays.shapes import with_rank
from attention.arrays.sharding import matmul_precision
from attention.engines.masking import where


def linear(
  vectors: jax.Array, kernel: jax.Array, dtype: jnp.dtype | None = None, *, bias: jax.Array | None = None
) -> jax.Array:
  """Returns vectors [... D] times a kernel [D X], plus a bias [X], [... X], in a dtype, or in theirs.

  The leading axes become one: with more of them, XLA for CPUs copies an operand of the product that is the
  kernel's gradient, and takes three times as long. Positions that are spread over devices should therefore
  meet it inside `jax.shard_map`; outside, XLA would put them together.
  """
  side_by_side = vectors.reshape(math.prod(vectors.shape[:-1]), vectors.shape[-1])
  products = jnp.einsum("ND,DX->NX", side_by_side, kernel, preferred_element_type=dtype)
  products = products.reshape(*vectors.shape[:-1], kernel.shape[-1])
  return products if bias is None else products + with_rank(bias, products.ndim)


def project(function: Callable[[jax.Array], jax.Array], inputs: jax.Array) -> jax.Array:
  """Returns a projection of vectors [... T D] to [... T X] or [... N T X].

  A vector that holds a NaN or infinity becomes NaN, and gives no gradient: if it is masked, its zero
  gradient would be multiplied by it on the way to the projection's weights, and 0 * NaN is NaN.

  Raises:
    ValueError: if the vectors are not of a floating type.
  """
  if not jnp.issubdtype(inputs.dtype, jnp.floating):
    raise ValueError(f"queries, keys, inputs_q, inputs_kv and contexts must be floating, got {inputs.dtype}")
  finite = jnp.all(jnp.isfinite(inputs), axis=-1, keepdims=True)
  with jax.default_matmul_precision(matmul_precision()):
    outputs = function(jnp.where(finite, inputs, 0))
  if outputs.ndim > inputs.ndim:  # [... N T X]: heads were split off
    finite = jnp.expand_dims(finite, -3)
  return jnp.where(finite, outputs, 0) + where(~finite, "nan", jnp.zeros((), outputs.dtype))


def project_heads(
  inputs: jax.Array, kernel: jax.Array, bias: jax.Array | None = None, *, name: str = "head"
) -> jax.Array:
  """Returns the inputs as seen by each head: for head n, inputs . kernel[:, n] + bias[n].

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.

  Args:
    inputs: [... T D].
    kernel: [D N H].
    bias: [N H]; None for none.
    name: what errors call the kernel.

  Returns:
    [... N T H] in the dtype of the inputs.

  Raises:
    ValueError: if kernel or bias do not fit.
  """
  inputs, kernel = jnp.asarray(inputs), jnp.asarray(kernel)
  check_rank("inputs", inputs, "[... T D]")
  bias = None if bias is None else jnp.asarray(bias, inputs.dtype)
  bias_shape = None if bias is None else bias.shape
  if kernel.ndim != 3 or kernel.shape[0] != inputs.shape[-1] or bias_shape not in (None, kernel.shape[1:]):
    raise ValueError(
      f"{name} kernel must have axes [D N H], D the width of its inputs, and {name} bias [N H], "
      f"got kernel {kernel.shape}, inputs {inputs.shape}, bias {bias_shape}"
    )
  D, N, H = kernel.shape
  kernel = kernel.reshape(D, N * H).astype(inputs.dtype)
  bias = None if bias is None else bias.reshape(N * H)

  def function(inputs):
    side_by_side = linear(inputs, kernel, bias=bias)
    return jnp.swapaxes(side_by_side.reshape(*inputs.shape[:-1], N, H), -3, -2)

  return project(function, inputs)


def merge_heads(contexts: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
  """Returns the heads' contexts joined: the sum over n of contexts[n] . kernel[n], + bias.

  Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.

  Args:
    contexts: [... N T H].
    kernel: [N H D].
    bias: [D]; None for none.

  Returns:
    [... T D] in the dtype of the contexts.

  Raises:
    ValueError: if kernel or bias do not fit.
  """
  contexts, kernel = jnp.asarray(contexts), jnp.asarray(kernel)
  check_rank("contexts", contexts, "[... N T H]")
  bias = None if bias is None else jnp.asarray(bias, contexts.dtype)
  bias_shape = None if bias is None else bias.shape
  N_H = contexts.shape[-3], contexts.shape[-1]
  if kernel.ndim != 3 or kernel.shape[:2] != N_H or bias_shape not in (None, kernel.shape[2:]):
    raise ValueError(
      "output kernel must have axes [N H D], N the number of heads and H their width, and output bias [D], "
      f"got kernel {kernel.shape}, contexts [... N T H] {contexts.shape}, bias {bias_shape}"
    )
  N, H, D = kernel.shape
  kernel = kernel.reshape(N * H, D).astype(contexts.dtype)
  contexts = jnp.swapaxes(contexts, -3, -2)
  side_by_side = contexts.reshape(*contexts.shape[:-2], N * H)
  return project(lambda vectors: linear(vectors, kernel, bias=bias), side_by_side)
