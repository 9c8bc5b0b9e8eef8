"""Linear projections of vectors, and of heads."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from attention.arrays import device
from attention.arrays.checks import check_rank
from attention.arrays.dtypes import matmul_precision
from attention.arrays.masking import where_constant
from attention.arrays.shapes import is_known, with_rank


def linear(
  vectors: jax.Array, kernel: jax.Array, dtype: jnp.dtype | None = None, *, bias: jax.Array | None = None
) -> jax.Array:
  """Returns vectors [... D] times a kernel [D X], plus a bias [X] or [... X].

  Leading axes are flattened: with more than one, XLA copies an operand of the kernel's gradient on CPUs,
  which is three times slower. Sequences that are sharded over devices should be projected inside
  `jax.shard_map`; outside, XLA would gather them.

  Args:
    vectors: [... D].
    kernel: [D X].
    dtype: of the result. Default: as in `jnp.einsum`.
    bias: [X] or [... X].
  """
  rows = vectors.reshape(math.prod(vectors.shape[:-1]), vectors.shape[-1])
  if device.is_cpu() and is_known(rows.shape[0]) and rows.shape[0] == 1:
    # Otherwise XLA of JAX 0.10 fuses a reshape of the kernel into this product: 17 times as long.
    kernel = jax.lax.optimization_barrier(kernel)
  products = jnp.einsum("ND,DX->NX", rows, kernel, preferred_element_type=dtype)
  products = products.reshape(*vectors.shape[:-1], kernel.shape[-1])
  return products if bias is None else products + with_rank(bias, products.ndim)


def project(function: Callable[[jax.Array], jax.Array], inputs: jax.Array) -> jax.Array:
  """Applies a projection to vectors [... T D], giving [... T X] or [... N T X].

  A vector that holds NaN or infinity becomes NaN, with zero gradient. Otherwise the zero gradient of a masked
  vector would be multiplied by NaN in the gradient of the kernel, and 0 * NaN is NaN.

  Raises:
    ValueError: if the dtype of the vectors is not floating-point.
  """
  if not jnp.issubdtype(inputs.dtype, jnp.floating):
    raise ValueError(f"vectors must be floating-point, got {inputs.dtype}")
  finite = jnp.all(jnp.isfinite(inputs), axis=-1, keepdims=True)
  with jax.default_matmul_precision(matmul_precision()):
    outputs = function(jnp.where(finite, inputs, 0))
  if outputs.ndim > inputs.ndim:  # [... N T X], with heads
    finite = jnp.expand_dims(finite, -3)
  return jnp.where(finite, outputs, 0) + where_constant(~finite, "nan", jnp.zeros((), outputs.dtype))


def project_heads(
  inputs: jax.Array, kernel: jax.Array, bias: jax.Array | None = None, *, name: str = "head"
) -> jax.Array:
  """Projects inputs for each head: inputs . kernel[:, n] + bias[n].

  Args:
    inputs: [... T D].
    kernel: [D N H].
    bias: [N H], or None.
    name: name of the kernel in error messages.

  Returns:
    [... N T H] in the dtype of the inputs.

  Raises:
    ValueError: if the shapes are incompatible.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
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
    concatenated = linear(inputs, kernel, bias=bias)
    return jnp.swapaxes(concatenated.reshape(*inputs.shape[:-1], N, H), -3, -2)

  return project(function, inputs)


def merge_heads(contexts: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
  """Projects the contexts of all heads to one: sum over n of contexts[n] . kernel[n], plus bias.

  Args:
    contexts: [... N T H].
    kernel: [N H D].
    bias: [D], or None.

  Returns:
    [... T D] in the dtype of the contexts.

  Raises:
    ValueError: if the shapes are incompatible.

  References:
    Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
  """
  contexts, kernel = jnp.asarray(contexts), jnp.asarray(kernel)
  check_rank("contexts", contexts, "[... N T H]")
  bias = None if bias is None else jnp.asarray(bias, contexts.dtype)
  bias_shape = None if bias is None else bias.shape
  N_H = contexts.shape[-3], contexts.shape[-1]
  if kernel.ndim != 3 or kernel.shape[:2] != N_H or bias_shape not in (None, kernel.shape[2:]):
    raise ValueError(
      "output kernel must have axes [N H D] for N heads of width H, and its bias [D], "
      f"got kernel {kernel.shape}, contexts [... N T H] {contexts.shape}, bias {bias_shape}"
    )
  N, H, D = kernel.shape
  kernel = kernel.reshape(N * H, D).astype(contexts.dtype)
  contexts = jnp.swapaxes(contexts, -3, -2)
  concatenated = contexts.reshape(*contexts.shape[:-2], N * H)
  return project(lambda vectors: linear(vectors, kernel, bias=bias), concatenated)
