"""Flax: what holds the parameters of one part of a layer, or of a model."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from attention.arrays.precision import compute_dtype
from attention.arrays.shapes import with_rank
from attention.multi_head import merge_heads, project_heads
from attention.projections import linear, project

kernel_init = nn.initializers.lecun_normal()


class Projection(nn.Module):
  """Holds the kernel [D X] of a projection of vectors [... T D] to [... T X], in the vectors' dtype."""

  width: int

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    kernel = self.param("kernel", kernel_init, (inputs.shape[-1], self.width), jnp.float32)
    return project(lambda x: linear(x, kernel.astype(x.dtype)), inputs)


class Linear(nn.Module):
  """Holds the kernel [D X] and the bias [X] that make vectors [... X] of [... D], in the vectors' dtype."""

  width: int

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    kernel = self.param("kernel", kernel_init, (inputs.shape[-1], self.width), jnp.float32)
    bias = self.param("bias", nn.initializers.zeros, (self.width,), jnp.float32)
    products = linear(inputs, kernel.astype(inputs.dtype))
    return products + with_rank(bias.astype(inputs.dtype), products.ndim)


class HeadProjection(nn.Module):
  """Holds the kernel [D N H] and bias [N H] of `project_heads`."""

  num_heads: int
  head_width: int
  use_bias: bool = True

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    heads = (self.num_heads, self.head_width)
    init = nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
    kernel = self.param("kernel", init, (inputs.shape[-1], *heads), jnp.float32)
    bias = self.param("bias", nn.initializers.zeros, heads, jnp.float32) if self.use_bias else None
    return project_heads(inputs, kernel, bias, name=self.name or "head")


class HeadMerge(nn.Module):
  """Holds the kernel [N H D] and bias [D] of `merge_heads`."""

  width: int
  use_bias: bool = True

  @nn.compact
  def __call__(self, contexts: jax.Array) -> jax.Array:
    init = nn.initializers.lecun_normal(in_axis=(0, 1), out_axis=2)
    shape = contexts.shape[-3], contexts.shape[-1], self.width
    kernel = self.param("kernel", init, shape, jnp.float32)
    bias = self.param("bias", nn.initializers.zeros, (self.width,), jnp.float32) if self.use_bias else None
    return merge_heads(contexts, kernel, bias)


class LayerNorm(nn.Module):
  """Does what `flax.linen.LayerNorm` does, of vectors [... D], in float32 where they are of fewer bits.

  Flax's own mixes the dtypes of vectors and parameters, which JAX's strict dtype promotion forbids.
  """

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    dtype, shape = compute_dtype(inputs.dtype), inputs.shape[-1:]
    params = {
      "scale": self.param("scale", nn.initializers.ones, shape, jnp.float32).astype(dtype),
      "bias": self.param("bias", nn.initializers.zeros, shape, jnp.float32).astype(dtype),
    }
    norm: Any = nn.LayerNorm(parent=None)
    return norm.apply({"params": params}, inputs.astype(dtype)).astype(inputs.dtype)
