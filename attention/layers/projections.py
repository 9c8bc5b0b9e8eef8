"""Flax modules for projections and norms, with the dtypes and initializers of Flax."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Dtype, Initializer

from attention.arrays.checks import check_size
from attention.arrays.dtypes import compute_dtype
from attention.linear import linear, merge_heads, project, project_heads


def kernel_init(rng: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
  """Initializes a kernel as Flax does by default (LeCun normal). As a named function, it can be pickled."""
  return nn.initializers.lecun_normal()(rng, shape, dtype)


def relu(array: jax.Array) -> jax.Array:
  """Computes `jax.nn.relu`. As a named function, it can be pickled."""
  return nn.relu(array)


def is_deterministic(module: Any, value: bool | None) -> bool:
  """Merges the `deterministic` of a module and of a call, like `nn.merge_param`. Default: True."""
  if module.deterministic is None and value is None:
    return True
  return nn.merge_param("deterministic", module.deterministic, value)


def check_unused(module: nn.Module, **is_used: bool) -> None:
  """Raises ValueError if a module has a parameter that it does not use, which Flax would ignore.

  Subclasses, and modules that share their scope with another one, may have more parameters.

  Args:
    module: the module.
    is_used: whether its options use the parameter or submodule of this name.
  """
  shares_scope = module.scope is not None and module.scope.name != module.name
  if shares_scope or not type(module).__module__.startswith("attention."):
    return
  params = module.variables.get("params", {})
  unused = [name for name, used in is_used.items() if not used and params.get(name) is not None]
  if unused:
    where = f"{type(module).__name__} at {'/'.join(module.path)!r}" if module.path else type(module).__name__
    raise ValueError(f"{where} has parameters that its options do not use: {', '.join(unused)}")


def promote(inputs: jax.Array, *others: jax.Array | None, dtype: Dtype | None) -> list[Any]:
  """Returns all arrays in one dtype, as Flax layers do: `dtype`, or that to which JAX promotes them.

  For example, bfloat16 inputs and float32 parameters give float32. None among the others stays None.

  Raises:
    ValueError: if the inputs or `dtype` are not floating-point.
  """
  inputs = jnp.asarray(inputs)
  if not jnp.issubdtype(inputs.dtype, jnp.floating):
    raise ValueError(f"inputs must be floating-point, got {inputs.dtype}")
  if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"dtype must be floating-point, got {dtype}")
  with jax.numpy_dtype_promotion("standard"):
    return nn.dtypes.promote_dtype(inputs, *others, dtype=dtype)


class Projection(nn.Module):
  """A projection with a kernel [D X], from vectors [... T D] to [... T X], in the dtype of the vectors."""

  features: int

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    check_size("features", self.features)
    kernel = self.param("kernel", kernel_init, (inputs.shape[-1], self.features), jnp.float32)
    return project(lambda x: linear(x, kernel.astype(x.dtype)), inputs)


class Linear(nn.Module):
  """A linear layer with a kernel [D X] and a bias [X], from vectors [... D] to [... X]; dtypes as in Flax."""

  features: int
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  use_bias: bool = True

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    check_size("features", self.features)
    check_unused(self, bias=self.use_bias)
    kernel = self.param("kernel", kernel_init, (inputs.shape[-1], self.features), self.param_dtype)
    bias = None
    if self.use_bias:
      bias = self.param("bias", nn.initializers.zeros, (self.features,), self.param_dtype)
    inputs, kernel, bias = promote(inputs, kernel, bias, dtype=self.dtype)
    return linear(inputs, kernel, bias=bias)


class HeadLinear(nn.Module):
  """The kernel and bias of `project_heads` or `merge_heads`; initializers and dtypes as in Flax."""

  use_bias: bool = True
  kernel_init: Initializer = kernel_init
  bias_init: Initializer = nn.initializers.zeros
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32

  def project(self, inputs: jax.Array, num_heads: int, head_width: int) -> jax.Array:
    """Projects inputs [... T D] for each head, to [... N T H]."""
    arrays = self._promoted(inputs, inputs.shape[-1:], (num_heads, head_width))
    return project_heads(*arrays, name=self.name or "head")

  def merge(self, contexts: jax.Array, out_features: int) -> jax.Array:
    """Projects the contexts of all heads [... N T H] to outputs [... T D]."""
    return merge_heads(*self._promoted(contexts, (contexts.shape[-3], contexts.shape[-1]), (out_features,)))

  @nn.compact
  def _promoted(self, vectors: jax.Array, axes_in: tuple[int, ...], axes_out: tuple[int, ...]) -> list[Any]:
    """Returns vectors, a kernel [axes_in axes_out] and a bias [axes_out] or None, in the same dtype."""
    check_unused(self, bias=self.use_bias)
    rows, columns = math.prod(axes_in), math.prod(axes_out)
    init = _reshaped(self.kernel_init, (rows, columns))
    kernel, bias = self.param("kernel", init, (*axes_in, *axes_out), self.param_dtype), None
    if self.use_bias:
      bias = self.param("bias", _reshaped(self.bias_init, (columns,)), axes_out, self.param_dtype)
    return promote(vectors, kernel, bias, dtype=self.dtype)


class LayerNorm(nn.Module):
  """`flax.linen.LayerNorm`, computed in at least float32.

  Flax's layer mixes the dtypes of vectors and parameters, which strict dtype promotion in JAX forbids.

  Attributes:
    use_bias: whether there is a bias.
    dtype, param_dtype: as in `MultiHeadAttention`.
    epsilon: added to the variance.
  """

  use_bias: bool = True
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  epsilon: float = 1e-6

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    norm = nn.LayerNorm(epsilon=self.epsilon, use_bias=self.use_bias, parent=None)
    return _apply_norm(self, norm, inputs, ("scale", "bias") if self.use_bias else ("scale",))


class RMSNorm(nn.Module):
  """`flax.linen.RMSNorm`, computed in at least float32: vectors divided by their root mean square.

  Attributes:
    epsilon: added to the mean square.
    dtype, param_dtype: as in `MultiHeadAttention`.

  References:
    Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.
  """

  epsilon: float = 1e-6
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    return _apply_norm(self, nn.RMSNorm(epsilon=self.epsilon, parent=None), inputs, ("scale",))


def _apply_norm(module: Any, norm: Any, inputs: jax.Array, names: tuple[str, ...]) -> jax.Array:
  """Applies a norm of Flax in at least float32, with parameters of a module."""
  check_unused(module, bias="bias" in names)
  inits = {"scale": nn.initializers.ones, "bias": nn.initializers.zeros}
  params = {name: module.param(name, inits[name], inputs.shape[-1:], module.param_dtype) for name in names}
  dtype = promote(inputs, *params.values(), dtype=module.dtype)[0].dtype
  inputs, params = jax.tree.map(lambda leaf: leaf.astype(compute_dtype(dtype)), (inputs, params))
  return norm.apply({"params": params}, inputs).astype(dtype)


def _reshaped(init: Initializer, drawn_shape: tuple[int, ...]) -> Initializer:
  """Returns an initializer that draws an array of another shape, since Flax draws head kernels as matrices.

  Initializers such as `lecun_normal` compute the fan-in from the shape.
  """

  def initialise(rng: jax.Array, shape: tuple[int, ...], dtype: Dtype) -> Any:
    drawn = init(rng, drawn_shape, dtype)
    return jax.tree.map(lambda array: array.reshape(shape), drawn)  # may be boxed by Flax

  return initialise
