"""Whom the benchmark compares: this library, and others if they are installed.

Each peer gets its arrays in the layout that it asks for, and is called as its documentation says.
"""

import importlib
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attention
from attention import masks
from experiments.benchmarks.cases import Case, Inputs

# What stores all scores is not run where they take more: a few arrays of this size must fit at once.
MOST_BYTES = {"cpu": 2**31, "gpu": 2**33, "tpu": 2**31}


class Absent(Exception):
  """Why a peer is not measured."""


class Prepared(NamedTuple):
  """A peer that is ready for a case.

  Attributes:
    forward: does the forward pass; returns something for `to_numpy`.
    both: does the forward and the backward pass; returns the context and the derivatives by all inputs.
    to_numpy: gives an array in the layout of the case's Inputs.
    compile_seconds: how long compiling took, of the forward pass and of both.
    temporary_bytes: the temporary memory of each as the compiler states it, None if there is no such.
  """

  forward: Callable[[], Any]
  both: Callable[[], Any]
  to_numpy: Callable[[Any], np.ndarray]
  compile_seconds: tuple[float, float] | None = None
  temporary_bytes: tuple[int, int] | None = None


def prepare(name: str, case: Case, inputs: Inputs) -> Prepared:
  """Returns a peer, compiled.

  Raises:
    Absent: if it is not installed or has no such attention.
  """
  if name == "torch":
    return _torch(case, inputs)
  function, heads_first = _JAX_PEERS[name](case)
  return _jax(function, case, inputs, heads_first)


def _ours(case: Case, implementation: str = "auto"):
  mask = None
  if case.causal:
    mask = masks.causal() & masks.sliding_window(case.window - 1, 0) if case.window else masks.causal()
  functions: dict[str, Callable[..., jax.Array]] = {
    "dot_product": attention.scaled_dot_product_attention,
    "additive": attention.additive_attention,
    "bilinear": attention.bilinear_attention,
    "cosine": attention.cosine_attention,
  }
  function = functions[case.score]
  return lambda *arrays: function(*arrays, mask=mask, implementation=implementation), True


def _einsum(case: Case):
  """Returns the formulas as they stand in the papers."""
  _check_no_window(case)
  _check_score(case, "dot_product", "additive")

  def function(queries, keys, values, score_vector=None):
    if score_vector is None:
      scores = jnp.einsum("BNTH,BNSH->BNTS", queries, keys) * case.width**-0.5
    else:
      hidden = jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :])
      scores = jnp.einsum("BNTSA,A->BNTS", hidden, score_vector)
    if case.causal:
      scores = jnp.where(jnp.tri(case.length, dtype=bool), scores, -jnp.inf)
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(values.dtype)
    return jnp.einsum("BNTS,BNSH->BNTH", weights, values)

  return function, True


def _jax_nn(implementation: str | None):
  def make(case: Case):
    _check_score(case, "dot_product")
    if implementation == "cudnn" and (jax.default_backend() != "gpu" or case.dtype == "float32"):
      raise Absent("for half precision on a GPU")
    options: dict[str, Any] = {
      "is_causal": case.causal,
      "local_window_size": (case.window - 1, 0) if case.window else None,
      "implementation": implementation,
    }
    return lambda *arrays: jax.nn.dot_product_attention(*arrays, **options), False

  return make


def _flax(module: str):
  def make(case: Case):
    _check_score(case, "dot_product")
    _check_no_window(case)
    function = _imported(module).dot_product_attention

    def attend(*arrays):
      mask = jnp.tri(case.length, dtype=bool)[None, None] if case.causal else None
      return function(*arrays, mask=mask)

    return attend, False

  return make


def _tokamax(implementation: str):
  def make(case: Case):
    _check_score(case, "dot_product")
    function = _imported("tokamax").dot_product_attention

    def attend(*arrays):
      options = {"local_window_size": (case.window - 1, 0)} if case.window else {}
      return function(*arrays, is_causal=case.causal, implementation=implementation, **options)

    return attend, False

  return make


def _keras(case: Case):
  os.environ.setdefault("KERAS_BACKEND", "jax")
  keras = _imported("keras")
  if keras.backend.backend() != "jax":
    raise Absent("its backend is not JAX")
  if case.score == "dot_product":
    _check_no_window(case)
    return lambda *arrays: keras.ops.dot_product_attention(*arrays, is_causal=case.causal), False
  _check_score(case, "additive")
  if case.heads > 1:
    raise Absent("has no heads")
  layer = keras.layers.AdditiveAttention(dtype=case.dtype)
  layer.build([(case.batch, case.length, case.width)] * 3)

  def attend(queries, keys, values, score_vector):
    arrays = [array[:, :, 0] for array in (queries, values, keys)]
    context, _ = layer.stateless_call([score_vector], [], arrays, use_causal_mask=case.causal)
    return context[:, :, None]

  return attend, False


_JAX_PEERS: dict[str, Callable[[Case], tuple[Callable[..., jax.Array], bool]]] = {
  "attention": _ours,
  "attention dense": lambda case: _ours(_check_memory(case, case.score_bytes), "dense"),
  "einsum": lambda case: _einsum(_check_memory(case)),
  "jax.nn": lambda case: _jax_nn(None)(_check_memory(case)),
  "jax.nn cudnn": _jax_nn("cudnn"),
  "flax.linen": lambda case: _flax("flax.linen")(_check_memory(case)),
  "flax.nnx": lambda case: _flax("flax.nnx")(_check_memory(case)),
  "tokamax xla": lambda case: _tokamax("xla")(_check_memory(case)),
  "tokamax xla_chunked": _tokamax("xla_chunked"),
  "keras": lambda case: _keras(_check_memory(case)),
}
PEERS = (*_JAX_PEERS, "torch")


def _jax(function: Callable[..., jax.Array], case: Case, inputs: Inputs, heads_first: bool) -> Prepared:
  def arrange(array):
    array = jnp.asarray(array, case.dtype)
    return jnp.swapaxes(array, 1, 2) if heads_first and array.ndim == 4 else array

  arrays = [arrange(array) for array in inputs[:4] if array is not None]
  of_context = arrange(inputs.of_context)
  programs, seconds, memory = [], [], []
  for run, arguments in (
    (function, arrays),
    (lambda of_context, *arrays: _with_derivatives(function, of_context, *arrays), [of_context, *arrays]),
  ):
    start = time.perf_counter()
    # By default a GPU would round float32 to 10 bits for some and not for others.
    with jax.default_matmul_precision("highest" if case.dtype == "float32" else None):
      programs.append(jax.jit(run).lower(*arguments).compile())
    seconds.append(time.perf_counter() - start)
    analysis: Any = programs[-1].memory_analysis()
    memory.append(analysis.temp_size_in_bytes)
  return Prepared(
    forward=lambda: jax.block_until_ready(programs[0](*arrays)),
    both=lambda: jax.block_until_ready(programs[1](of_context, *arrays)),
    to_numpy=lambda array: np.asarray(arrange(array).astype(jnp.float32)),
    compile_seconds=(seconds[0], seconds[1]),
    temporary_bytes=(memory[0], memory[1]),
  )


def _with_derivatives(function: Callable[..., jax.Array], of_context: jax.Array, *arrays: jax.Array):
  """Returns the context and the derivatives by each array."""
  context, pull = jax.vjp(function, *arrays)
  return context, pull(of_context)


def _torch(case: Case, inputs: Inputs) -> Prepared:
  torch = _imported("torch")
  _check_no_window(case)
  _check_score(case, "dot_product", "additive")
  if case.score == "additive":
    _check_memory(case)
  on_gpu = jax.default_backend() == "gpu"
  if on_gpu and not torch.cuda.is_available():
    raise Absent("it sees no GPU")
  torch.set_num_threads(len(os.sched_getaffinity(0)))

  def arrange(array):
    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, case.dtype))
    tensor = tensor.cuda() if on_gpu else tensor
    return tensor.transpose(1, 2).contiguous() if array.ndim == 4 else tensor

  arrays = [arrange(array).requires_grad_() for array in inputs[:4] if array is not None]
  of_context = arrange(inputs.of_context)

  def attend():
    if case.score == "dot_product":
      return torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=case.causal)
    queries, keys, values, vector = arrays
    scores = torch.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ vector
    if case.causal:
      scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(scores, -1) @ values

  def finished(results):
    if on_gpu:
      torch.cuda.synchronize()
    return results

  def forward():
    with torch.no_grad():
      return finished(attend())

  def to_numpy(tensor):
    tensor = tensor.detach().float().cpu()
    return (tensor.transpose(1, 2) if tensor.ndim == 4 else tensor).numpy()

  def both():
    context = attend()
    return finished((context.detach(), torch.autograd.grad(context, arrays, of_context)))

  return Prepared(forward, both, to_numpy)


def _imported(name: str) -> Any:
  """Returns a module, or raises Absent."""
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise Absent("not installed" if error.name == name else f"cannot be imported: {error}") from None


def _check_score(case: Case, *scores: str) -> None:
  if case.score not in scores:
    raise Absent(f"has no {case.score} attention")


def _check_no_window(case: Case) -> None:
  if case.window:
    raise Absent("has no sliding window")


def _check_memory(case: Case, size: int | None = None) -> Case:
  """Returns the case, or raises Absent if it has arrays of too many bytes, by default the hidden ones."""
  size = case.hidden_bytes if size is None else size
  if size > MOST_BYTES[jax.default_backend()]:
    raise Absent(f"would store {size / 2**30:.0f} GiB")
  return case
