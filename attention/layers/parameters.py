"""Flax: modules that hold the parameters of one part of a layer or model."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype, Initializer

from attention.arrays.broadcasting import with_rank
from attention.arrays.numbers import check_size
from attention.arrays.precision import compute_dtype
from attention.projections import linear, merge_heads, project, project_heads

bias_init = nn.initializers.zeros


def kernel_init(rng: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
  """Draws a kernel as Flax does by default; a module that has this function can be pickled."""
  return nn.initializers.lecun_normal()(rng, shape, dtype)


def is_deterministic(module: Any, given: bool | None) -> bool:
  """Returns the `deterministic` of a module or of a call, as `nn.merge_param` does; True for neither."""
  if module.deterministic is None and given is None:
    return True
  return nn.merge_param("deterministic", module.deterministic, given)


def promoted(inputs: jax.Array, *others: jax.Array | None, dtype: Dtype | None) -> list[Any]:
  """Returns all in `dtype`; if it is None, in the dtype that JAX promotes them to, as Flax's layers do.

  So bfloat16 inputs and float32 parameters give float32. A None among the others stays None.

  Raises:
    ValueError: if the inputs or the dtype are not of a floating type.
  """
  inputs = jnp.asarray(inputs)
  if not jnp.issubdtype(inputs.dtype, jnp.floating):
    raise ValueError(f"inputs must be of a floating type, got {inputs.dtype}")
  if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"dtype must be a floating type, got {dtype}")
  with jax.numpy_dtype_promotion("standard"):
    return nn.dtypes.promote_dtype(inputs, *others, dtype=dtype)


class Projection(nn.Module):
  """Holds the kernel [D X] of a projection of vectors [... T D] to [... T X], in the vectors' dtype."""

  width: int

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    check_size("width", self.width)
    kernel = self.param("kernel", kernel_init, (inputs.shape[-1], self.width), jnp.float32)
    return project(lambda x: linear(x, kernel.astype(x.dtype)), inputs)


class Linear(nn.Module):
  """Holds the kernel [D X] and bias [X] of a map from vectors [... D] to [... X]; dtypes as in Flax."""

  width: int
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    check_size("width", self.width)
    kernel = self.param("kernel", kernel_init, (inputs.shape[-1], self.width), self.param_dtype)
    bias = self.param("bias", bias_init, (self.width,), self.param_dtype)
    inputs, kernel, bias = promoted(inputs, kernel, bias, dtype=self.dtype)
    products = linear(inputs, kernel)
    return products + with_rank(bias, products.ndim)


class HeadProjection(nn.Module):
  """Holds the kernel [D N H] and bias [N H] of `project_heads`; initialisers and dtypes as in Flax."""

  num_heads: int
  use_bias: bool = True
  kernel_init: Initializer = kernel_init
  bias_init: Initializer = bias_init
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, inputs: jax.Array, head_width: int) -> jax.Array:
    heads = (self.num_heads, head_width)
    init = _of_matrix(self.kernel_init, 1)
    kernel = self.param("kernel", init, (inputs.shape[-1], *heads), self.param_dtype)
    init = _of_matrix(self.bias_init, 0)
    bias = self.param("bias", init, heads, self.param_dtype) if self.use_bias else None
    inputs, kernel, bias = promoted(inputs, kernel, bias, dtype=self.dtype)
    return project_heads(inputs, kernel, bias, name=self.name or "head")


class HeadMerge(nn.Module):
  """Holds the kernel [N H D] and bias [D] of `merge_heads`; D is N H where the width is None."""

  width: int | None
  use_bias: bool = True
  kernel_init: Initializer = kernel_init
  bias_init: Initializer = bias_init
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, contexts: jax.Array) -> jax.Array:
    N, H = contexts.shape[-3], contexts.shape[-1]
    D = N * H if self.width is None else self.width
    kernel = self.param("kernel", _of_matrix(self.kernel_init, 2), (N, H, D), self.param_dtype)
    bias = self.param("bias", self.bias_init, (D,), self.param_dtype) if self.use_bias else None
    contexts, kernel, bias = promoted(contexts, kernel, bias, dtype=self.dtype)
    return merge_heads(contexts, kernel, bias)


class LayerNorm(nn.Module):
  """Does what `flax.linen.LayerNorm` does, of vectors [... D], in float32 where they are of fewer bits.

  Flax's own mixes the dtypes of vectors and parameters, which JAX's strict dtype promotion forbids.
  """

  use_bias: bool = True
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    shape = inputs.shape[-1:]
    params = {"scale": self.param("scale", nn.initializers.ones, shape, self.param_dtype)}
    if self.use_bias:
      params["bias"] = self.param("bias", bias_init, shape, self.param_dtype)
    dtype = promoted(inputs, *params.values(), dtype=self.dtype)[0].dtype
    exact = compute_dtype(dtype)
    norm: Any = nn.LayerNorm(use_bias=self.use_bias, parent=None)
    params = {name: leaf.astype(exact) for name, leaf in params.items()}
    return norm.apply({"params": params}, inputs.astype(exact)).astype(dtype)


def _of_matrix(init: Initializer, num_axes: int) -> Initializer:
  """Returns an initialiser that sees an array as a matrix, its first axes as one and the others as one.

  So does Flax. Only then are the widths right that `lecun_normal` and others divide by. Without first axes it
  is a vector.
  """

  def initialise(rng: jax.Array, shape: tuple[int, ...], dtype: Dtype) -> Any:
    rows, columns = math.prod(shape[:num_axes]), math.prod(shape[num_axes:])
    drawn = init(rng, (rows, columns) if num_axes else (columns,), dtype)
    return jax.tree.map(lambda array: array.reshape(shape), drawn)  # the array may be in a box of Flax's

  return initialise
