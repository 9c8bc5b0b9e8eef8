"""A mapping from names to arrays, of which every array must be used."""

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn


def check_mapping(name: str, value: Any, example: str) -> None:
  """Raises ValueError unless a value is a mapping."""
  if not isinstance(value, Mapping):
    raise ValueError(f"{name} must be a mapping{example}, got {type(value).__name__}")


class State:
  """The arrays of a state whose names begin with a prefix; also records which were read.

  Attributes:
    prefix: of the names that are read.

  Args:
    state: a mapping from names to arrays.
    prefix: of the names that are read.
    zero_biases: names of biases that are zero if they are missing, without the prefix of a layer.
    has_kernels: whether weights are [in out], as in GPT-2, instead of [out in], as in PyTorch.
    norm_offset: added to the weights of norms, as in Gemma.
  """

  def __init__(
    self,
    state: Mapping[str, Any],
    prefix: str = "",
    *,
    zero_biases: tuple[str, ...] = (),
    has_kernels: bool = False,
    norm_offset: float = 0.0,
  ):
    check_mapping("state", state, " from names to arrays, such as module.state_dict()")
    self._state = {_new_name(str(name)): state[name] for name in state}
    if len(self._state) < len(state):
      raise ValueError(f"state must not have two names of one array, got {', '.join(map(str, state))}")
    self.prefix, self._zero_biases = str(prefix), zero_biases
    self._has_kernels, self._norm_offset = has_kernels, norm_offset
    self._read: set[str] = set()

  def within(self, prefix: str) -> "State":
    """Returns the names of this state that begin with a further prefix. What it reads counts as read here."""
    part = copy.copy(self)
    part.prefix = self.prefix + prefix
    return part

  def before(self, suffix: str) -> "State":
    """Returns the part with the prefix of the shortest name that ends with `suffix`, such as "model."."""
    found = [name for name in self._state if name.endswith(suffix)]
    return self.within(min(found, key=len, default="").removesuffix(suffix))

  def __contains__(self, name: str) -> bool:
    return self.prefix + name in self._state

  def __getitem__(self, name: str) -> jax.Array:
    name = self.prefix + name
    if name not in self._state:
      names = sorted(other for other in self._state if other.startswith(self.prefix)) or [*self._state]
      got = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "no names"
      raise ValueError(f"state must have the name {name!r}, got {got}")
    self._read.add(name)
    return tensor_to_array(name, self._state[name])

  def array(self, name: str, *sizes: int | None) -> jax.Array:
    """Returns an array with axes of the given sizes. None: any size.

    Raises:
      ValueError: if it is missing or has another shape.
    """
    array = self[name]
    if array.ndim != len(sizes) or any(
      size not in (None, actual) for size, actual in zip(sizes, array.shape, strict=True)
    ):
      allowed = f"[{' '.join('?' if size is None else str(size) for size in sizes)}]"
      raise ValueError(f"{self.prefix}{name} must have axes {allowed}, got shape {array.shape}")
    return array

  def arrays_outside(self, *prefixes: str) -> dict[str, jax.Array]:
    """Returns all arrays whose names do not begin with a prefix, by their names."""
    return {name: self[name] for name in self._state if not name.startswith(prefixes)}

  def split(self, name: str, *parts: str) -> None:
    """Adds the parts of a linear layer that holds several ones, by further names, if it is there."""
    for kind in ("weight", "bias"):
      if f"{name}.{kind}" in self:
        array = self.array(f"{name}.{kind}", *[None] * (1 + (kind == "weight")))
        axis = array.ndim - 1 if self._has_kernels else 0
        if array.shape[axis] % len(parts):
          raise ValueError(f"{self.prefix}{name}.{kind} must have 3 equal parts, got {array.shape}")
        for part, value in zip(parts, jnp.split(array, len(parts), axis), strict=True):
          self._state[f"{self.prefix}{part}.{kind}"] = value

  def params(self, shapes: Any, names: Mapping[str, str]) -> Any:
    """Returns the parameters of a module.

    Args:
      shapes: their shapes, a tree of arrays or of `jax.ShapeDtypeStruct`.
      names: the name in the state of each submodule, by its path, such as "attention/query".
    """
    return jax.tree_util.tree_map_with_path(
      lambda path, leaf: self._param([key.key for key in path], leaf, names), shapes
    )

  def _param(self, path: list[str], leaf: Any, names: Mapping[str, str]) -> jax.Array:
    """Returns a parameter: a kernel from a transposed weight, a scale of a norm, a bias, or another one."""
    *module, kind = path
    name = f"{names['/'.join(module)]}.{'weight' if kind in ('kernel', 'scale') else kind}"
    if name in self._zero_biases and name not in self:
      return jnp.zeros(leaf.shape, leaf.dtype)
    if kind != "kernel":
      array = self.array(name, math.prod(leaf.shape)).reshape(leaf.shape)
      # The offset is added in float32, as in Gemma: bfloat16 would round small weights.
      return array.astype(jnp.float32) + self._norm_offset if kind == "scale" and self._norm_offset else array
    axes_in = leaf.ndim - 1 if module[-1] == "out" else 1
    rows, columns = math.prod(leaf.shape[:axes_in]), math.prod(leaf.shape[axes_in:])
    array = self.array(name, rows, columns) if self._has_kernels else self.array(name, columns, rows).T
    return array.reshape(leaf.shape)

  def check_all_read(self, *ignored: str, suffix: str = "") -> None:
    """Raises ValueError if names with the prefix and suffix were not read, and do not end with `ignored`."""
    names = {name for name in self._state if name.startswith(self.prefix) and name.endswith(suffix)}
    if more := sorted(name for name in names - self._read if not name.endswith(ignored)):
      raise ValueError(f"unexpected parameters in state, which the layer lacks: {', '.join(more[:8])}")


def _new_name(name: str) -> str:
  """Returns names of BERT's files and of PyTorch's attention as other ones: module.weight, module.bias."""
  name = name.replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias")
  return name.replace("proj_weight", "proj.weight").replace("proj_bias", "proj.bias")


def variables_of(
  module: nn.Module, parts: Iterable[State], names: Mapping[str, str], *inputs: jax.Array
) -> tuple[dict[str, Any], ...]:
  """Returns the variables of a module from each part of a state; see `State.params`."""
  shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"]
  return tuple({"params": part.params(shapes, names)} for part in parts)


def tensor_to_array(name: str, value: Any) -> jax.Array:
  """Returns an array of a state, or raises ValueError if it is none."""
  dtype = None
  if hasattr(value, "detach"):  # a tensor of PyTorch, perhaps with a gradient or on another device
    value = value.detach().cpu()
    if str(value.dtype) == "torch.bfloat16":  # which NumPy lacks
      value, dtype = value.float(), jnp.bfloat16
  array = np.asarray(value)
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise ValueError(f"{name} must be a floating-point array, got {array.dtype}")
  return jnp.asarray(array, dtype)
