"""Flax: modules that hold the parameters of one part of a layer or model."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype, Initializer

from attention.arrays.checks import check_size
from attention.arrays.sharding import compute_dtype
from attention.linear import linear, merge_heads, project, project_heads


def kernel_init(rng: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
  """Draws a kernel as Flax does by default; a module that has this function can be pickled."""
  return nn.initializers.lecun_normal()(rng, shape, dtype)


def is_deterministic(module: Any, given: bool | None) -> bool:
  """Returns the `deterministic` of a module or of a call, as `nn.merge_param` does; True for neither."""
  if module.deterministic is None and given is None:
    return True
  return nn.merge_param("deterministic", module.deterministic, given)


def promote(inputs: jax.Array, *others: jax.Array | None, dtype: Dtype | None) -> list[Any]:
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

  features: int

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    check_size("features", self.features)
    kernel = self.param("kernel", kernel_init, (inputs.shape[-1], self.features), jnp.float32)
    return project(lambda x: linear(x, kernel.astype(x.dtype)), inputs)


class Linear(nn.Module):
  """Holds the kernel [D X] and bias [X] of a map from vectors [... D] to [... X]; dtypes as in Flax."""

  features: int
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    check_size("features", self.features)
    kernel = self.param("kernel", kernel_init, (inputs.shape[-1], self.features), self.param_dtype)
    bias = self.param("bias", nn.initializers.zeros, (self.features,), self.param_dtype)
    inputs, kernel, bias = promote(inputs, kernel, bias, dtype=self.dtype)
    return linear(inputs, kernel, bias=bias)


class HeadLinear(nn.Module):
  """Holds the kernel and bias of `project_heads` or `merge_heads`; initialisers and dtypes as in Flax."""

  use_bias: bool = True
  kernel_init: Initializer = kernel_init
  bias_init: Initializer = nn.initializers.zeros
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32

  def project(self, inputs: jax.Array, num_heads: int, head_width: int) -> jax.Array:
    """Returns inputs [... T D] as seen by each head, [... N T H]."""
    arrays = self._promoted(inputs, inputs.shape[-1:], (num_heads, head_width))
    return project_heads(*arrays, name=self.name or "head")

  def merge(self, contexts: jax.Array, out_features: int) -> jax.Array:
    """Returns the contexts of all heads [... N T H] joined, [... T D]."""
    return merge_heads(*self._promoted(contexts, (contexts.shape[-3], contexts.shape[-1]), (out_features,)))

  @nn.compact
  def _promoted(self, vectors: jax.Array, axes_in: tuple[int, ...], axes_out: tuple[int, ...]) -> list[Any]:
    """Returns vectors, a kernel of both axes, and a bias of axes_out or None, in one dtype."""
    rows, columns = math.prod(axes_in), math.prod(axes_out)
    init = _reshaped(self.kernel_init, (rows, columns))
    kernel, bias = self.param("kernel", init, (*axes_in, *axes_out), self.param_dtype), None
    if self.use_bias:
      bias = self.param("bias", _reshaped(self.bias_init, (columns,)), axes_out, self.param_dtype)
    return promote(vectors, kernel, bias, dtype=self.dtype)


class LayerNorm(nn.Module):
  """Does what `flax.linen.LayerNorm` does, in float32 where vectors [... D] are of fewer bits.

  Flax's own mixes the dtypes of vectors and parameters, which JAX's strict dtype promotion forbids.
  """

  use_bias: bool = True
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    inits = {"scale": nn.initializers.ones} | ({"bias": nn.initializers.zeros} if self.use_bias else {})
    axes = inputs.shape[-1:]
    params = {name: self.param(name, init, axes, self.param_dtype) for name, init in inits.items()}
    dtype = promote(inputs, *params.values(), dtype=self.dtype)[0].dtype
    inputs, params = jax.tree.map(lambda leaf: leaf.astype(compute_dtype(dtype)), (inputs, params))
    norm: Any = nn.LayerNorm(use_bias=self.use_bias, parent=None)
    return norm.apply({"params": params}, inputs).astype(dtype)


def _reshaped(init: Initializer, drawn_shape: tuple[int, ...]) -> Initializer:
  """Returns an initialiser that draws an array of another shape, as Flax draws kernels of heads as matrices.

  Only then are the widths right that `lecun_normal` and others divide by.
  """

  def initialise(rng: jax.Array, shape: tuple[int, ...], dtype: Dtype) -> Any:
    drawn = init(rng, drawn_shape, dtype)
    return jax.tree.map(lambda array: array.reshape(shape), drawn)  # the array may be in a box of Flax's

  return initialise
