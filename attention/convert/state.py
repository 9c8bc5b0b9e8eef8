"""A mapping from names to arrays, of which every array must be used."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Linear = tuple[jax.Array, jax.Array | None]  # weight [X D], bias [X] or None


class State:
  """The arrays of a state whose names begin with a prefix; also records which were read.

  Attributes:
    needs_biases: whether linear layers must have biases.

  Args:
    state: a mapping from names to arrays.
    prefix: of the names that are read.
    needs_biases: as above.
    has_kernels: whether weights are [in out], as in GPT-2, instead of [out in], as in PyTorch.
    norm_offset: added to the weights of norms, as in Gemma.
  """

  def __init__(
    self,
    state: Mapping[str, Any],
    prefix: str,
    *,
    needs_biases: bool = False,
    has_kernels: bool = False,
    norm_offset: float = 0.0,
  ):
    if not isinstance(state, Mapping):
      raise ValueError(
        "state must be a mapping from names to arrays, such as module.state_dict(), "
        f"got {type(state).__name__}"
      )
    # The published files of BERT have older names.
    self._state = {
      str(name).replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias"): state[name]
      for name in state
    }
    self._prefix, self._has_kernels, self._norm_offset = str(prefix), has_kernels, norm_offset
    self.needs_biases = needs_biases
    self._read: set[str] = set()

  def __getitem__(self, name: str) -> jax.Array:
    name = self._prefix + name
    if name not in self._state:
      names = sorted(other for other in self._state if other.startswith(self._prefix)) or [*self._state]
      got = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "no names"
      raise ValueError(f"state must have the name {name!r}, got {got}")
    self._read.add(name)
    return tensor_to_array(name, self._state[name])

  def get(self, name: str) -> jax.Array | None:
    """Returns the array of a name, or None if it is missing."""
    return self[name] if self._prefix + name in self._state else None

  def get_vector(self, name: str, size: int | None = None) -> jax.Array:
    """Returns an array with one axis, of the given size if it is known."""
    return self._check_shape(name, self[name], (size,))

  def get_matrix(self, name: str, *, rows: int | None = None, columns: int | None = None) -> jax.Array:
    """Returns an array with two axes, of the given sizes if they are known."""
    return self._check_shape(name, self[name], (rows, columns))

  def linear(self, name: str, *, rows: int | None = None, columns: int | None = None) -> Linear:
    """Returns the weight and bias of a linear layer, with the given sizes if they are known."""
    if self._has_kernels:
      weight = self.get_matrix(f"{name}.weight", rows=columns, columns=rows).T
    else:
      weight = self.get_matrix(f"{name}.weight", rows=rows, columns=columns)
    return weight, self._bias(name, weight)

  def dense(self, name: str, *, rows: int | None = None, columns: int | None = None) -> dict[str, jax.Array]:
    """Returns a linear layer as the parameters of `Linear`."""
    weight, bias = self.linear(name, rows=rows, columns=columns)
    return named("kernel", weight.T, bias)

  def norm(self, name: str, width: int) -> dict[str, jax.Array]:
    """Returns the parameters of a norm."""
    weight = self.get_vector(f"{name}.weight", width)
    if self._norm_offset:  # in float32, as in Gemma: bfloat16 would round small weights
      weight = weight.astype(jnp.float32) + self._norm_offset
    return named("scale", weight, self._bias(name, weight))

  def _bias(self, name: str, weight: jax.Array) -> jax.Array | None:
    bias = self[f"{name}.bias"] if self.needs_biases else self.get(f"{name}.bias")
    return None if bias is None else self._check_shape(f"{name}.bias", bias, weight.shape[:1])

  def _check_shape(self, name: str, array: jax.Array, sizes: tuple[int | None, ...]) -> jax.Array:
    if array.ndim != len(sizes) or any(
      size not in (None, actual) for size, actual in zip(sizes, array.shape, strict=True)
    ):
      if None in sizes:
        allowed = f"axes [{' '.join('?' if size is None else str(size) for size in sizes)}]"
      else:
        allowed = f"shape {sizes}"
      raise ValueError(f"{self._prefix}{name} must have {allowed}, got shape {array.shape}")
    return array

  def check_all_read(self, *ignored: str, suffix: str = "") -> None:
    """Raises ValueError if names with the prefix and suffix were not read, but for buffers to be ignored."""
    known = self._read | {self._prefix + name for name in ignored}
    names = [name for name in self._state if name.startswith(self._prefix) and name.endswith(suffix)]
    if more := sorted({*names} - known):
      raise ValueError(f"unexpected parameters in state, which the layer lacks: {', '.join(more[:8])}")


def tensor_to_array(name: str, value: Any) -> jax.Array:
  """Returns an array of a state, or raises ValueError if it is none."""
  dtype = None
  if hasattr(value, "detach"):  # a tensor of PyTorch, perhaps with a gradient or on another device
    value = value.detach().cpu()
    if str(value.dtype) == "torch.bfloat16":  # which NumPy lacks
      value, dtype = value.float(), jnp.bfloat16
  try:
    array = np.asarray(value)
  except (TypeError, ValueError):
    array = None
  if array is None or not jnp.issubdtype(array.dtype, jnp.floating):
    got = getattr(array, "dtype", type(value).__name__)
    raise ValueError(f"{name} must be a floating-point array, got {got}")
  return jnp.asarray(array, dtype)


def named(name: str, array: jax.Array, bias: jax.Array | None) -> dict[str, jax.Array]:
  """Returns parameters of a layer: an array, and its bias if there is one."""
  return {name: array} | ({} if bias is None else {"bias": bias})
