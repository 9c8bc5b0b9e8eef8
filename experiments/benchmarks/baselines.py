"""The attention functions that the benchmark compares: this library, and others if they are installed.

Each baseline gets its arrays in the layout that it documents.
"""

import functools
import importlib
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attention
from experiments.benchmarks.cases import NORMALIZERS, Case, Inputs

# Baselines that store all scores are skipped if these need more memory. A few such arrays must fit at once.
MOST_BYTES = {"cpu": 2**31, "gpu": 2**33, "tpu": 2**31}


class Unavailable(Exception):
  """Raised if a baseline cannot be measured."""


class Baseline(NamedTuple):
  """A way to compute attention.

  Attributes:
    make: returns the function of the arrays of a case.
    scores: scores that it supports.
    has_window: whether it supports a sliding window.
    has_normalizers: whether it supports other normalizers than the softmax.
    heads_first: whether its arrays are [B N T H] instead of [B T N H].
    stores: returns the size of its largest array in bytes, if it is quadratic in the length.
  """

  make: Callable[[Case], Callable[..., Any]]
  scores: tuple[str, ...] = ("dot_product",)
  has_window: bool = False
  has_normalizers: bool = False
  heads_first: bool = False
  stores: Callable[[Case], int] = lambda case: 0


class Prepared(NamedTuple):
  """A baseline that is compiled for a case.

  Attributes:
    forward: runs the forward pass; returns an array for `to_numpy`.
    both: runs the forward and the backward pass; returns the context and the gradients of all inputs. An
      optional argument [B T N H] replaces the gradient of the context.
    to_numpy: converts an array to the layout of the case's Inputs.
    compile_seconds: compile times of the forward pass and of both passes; None if nothing is compiled.
    temporary_mib: temporary memory of both programs, as reported by the compiler; None if not reported.
  """

  forward: Callable[[], Any]
  both: Callable[..., Any]
  to_numpy: Callable[[Any], np.ndarray]
  compile_seconds: tuple[float | None, float | None] = (None, None)
  temporary_mib: tuple[float | None, float | None] = (None, None)


def prepare(name: str, case: Case, inputs: Inputs) -> Prepared:
  """Returns a baseline, compiled for a case.

  Raises:
    Unavailable: if it is not installed or does not support the case.
  """
  baseline = BASELINES[name]
  if case.score not in baseline.scores:
    raise Unavailable(f"does not support {case.score} attention")
  if case.normalizer != "softmax" and not baseline.has_normalizers:
    raise Unavailable(f"does not support {case.normalizer}")
  if case.window and not baseline.has_window:
    raise Unavailable("does not support a sliding window")
  if baseline.stores(case) > MOST_BYTES[jax.default_backend()]:
    raise Unavailable(f"would store {baseline.stores(case) / 2**30:.0f} GiB")
  attend = baseline.make(case)
  return _torch(attend, case, inputs) if name == "torch" else _jax(attend, case, inputs, baseline.heads_first)


def _ours(case: Case, implementation: str = "auto", library: Any = attention):
  masks = library.masks
  mask = masks.causal() if case.causal else None
  if case.window:
    mask &= masks.sliding_window(case.window - 1, 0)
  if case.padded:
    padding = masks.lengths(source=jnp.asarray(case.lengths())[:, None])
    mask = padding if mask is None else mask & padding
  score = "scaled_dot_product" if case.score == "dot_product" else case.score
  function = getattr(library, f"{score}_attention")
  normalizer = NORMALIZERS[case.normalizer]
  return functools.partial(function, mask=mask, implementation=implementation, normalizer=normalizer)


def _einsum(case: Case):
  """Returns attention as written in the papers."""

  def attend(queries, keys, values, score_vector=None):
    if score_vector is None:
      scores = jnp.einsum("BNTH,BNSH->BNTS", queries, keys) * case.width**-0.5
    else:
      hidden = jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :])
      scores = jnp.einsum("BNTSA,A->BNTS", hidden, score_vector)
    allowed = case.allowed()
    if allowed is not None:
      scores = jnp.where(allowed, scores, -jnp.inf)
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(values.dtype)
    return jnp.einsum("BNTS,BNSH->BNTH", weights, values)

  return attend


def _mask_options(case: Case) -> dict[str, Any]:
  """Returns the masks of a case as arguments of the functions of JAX and Tokamax."""
  window = {"local_window_size": (case.window - 1, 0)} if case.window else {}
  padding = {"key_value_seq_lengths": jnp.asarray(case.lengths(), jnp.int32)} if case.padded else {}
  return {"is_causal": case.causal, **window, **padding}


def _jax_nn(case: Case, implementation: str | None = None):
  if implementation == "cudnn" and (jax.default_backend() != "gpu" or case.dtype == "float32"):
    raise Unavailable("requires half precision on a GPU")
  options = {"implementation": implementation, **_mask_options(case)}
  return functools.partial(jax.nn.dot_product_attention, **options)


def _flax(case: Case, module: str):
  function = _imported(module).dot_product_attention

  def attend(*arrays):
    return function(*arrays, mask=case.allowed())

  return attend


def _tokamax(case: Case, implementation: str):
  options = {"implementation": implementation, **_mask_options(case)}
  return functools.partial(_imported("tokamax").dot_product_attention, **options)


def _keras(case: Case):
  os.environ.setdefault("KERAS_BACKEND", "jax")
  keras = _imported("keras")
  if keras.backend.backend() != "jax":
    raise Unavailable("uses another backend than JAX")
  if case.score == "dot_product":
    options = {"mask": case.allowed()} if case.padded else {"is_causal": case.causal}
    return functools.partial(keras.ops.dot_product_attention, **options)
  if case.heads > 1:
    raise Unavailable("does not support several heads")
  if case.padded:
    raise Unavailable("is not measured with padding")
  layer = keras.layers.AdditiveAttention(dtype=case.dtype)
  layer.build([(case.batch, case.length, case.width)] * 3)

  def attend(queries, keys, values, score_vector):
    arrays = [array[:, :, 0] for array in (queries, values, keys)]
    context, _ = layer.stateless_call([score_vector], [], arrays, use_causal_mask=case.causal)
    return context[:, :, None]

  return attend


def _torch_attention(case: Case):
  torch = _imported("torch")
  # A mask is an array only where it must be, since that of a causal case has T * S numbers.
  allowed = torch.from_numpy(np.array(case.allowed())) if case.padded else None
  if allowed is not None and jax.default_backend() == "gpu":
    allowed = allowed.cuda()
  if case.score == "dot_product":
    options = {"is_causal": case.causal} if allowed is None else {"attn_mask": allowed}
    return functools.partial(torch.nn.functional.scaled_dot_product_attention, **options)

  def attend(queries, keys, values, vector):
    scores = torch.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ vector
    if allowed is not None:
      scores = scores.masked_fill(~allowed, -torch.inf)
    elif case.causal:
      scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(scores, -1) @ values

  return attend


def _stored_by_torch(case: Case) -> int:
  return case.hidden_bytes() if case.score == "additive" else 0


_TWO = "dot_product", "additive"
_ALL = *_TWO, "bilinear", "cosine"
COMPARED = "compared version"
BASELINES = {
  "attention": Baseline(_ours, _ALL, has_window=True, has_normalizers=True, heads_first=True),
  "attention dense": Baseline(
    lambda case: _ours(case, "dense"), _ALL, True, True, heads_first=True, stores=Case.score_bytes
  ),
  "einsum": Baseline(_einsum, _TWO, heads_first=True, stores=Case.hidden_bytes),
  "jax.nn": Baseline(_jax_nn, has_window=True, stores=Case.score_bytes),
  "jax.nn cudnn": Baseline(lambda case: _jax_nn(case, "cudnn"), has_window=True),
  "flax.linen": Baseline(lambda case: _flax(case, "flax.linen"), stores=Case.score_bytes),
  "flax.nnx": Baseline(lambda case: _flax(case, "flax.nnx"), stores=Case.score_bytes),
  "tokamax xla": Baseline(lambda case: _tokamax(case, "xla"), has_window=True, stores=Case.score_bytes),
  "tokamax xla_chunked": Baseline(lambda case: _tokamax(case, "xla_chunked"), has_window=True),
  "keras": Baseline(_keras, _TWO, stores=Case.hidden_bytes),
  "torch": Baseline(_torch_attention, _TWO, heads_first=True, stores=_stored_by_torch),
}


def add_version(folder: pathlib.Path) -> None:
  """Adds the baseline `COMPARED`: the version of this library in another folder.

  Raises:
    Unavailable: if it cannot be imported.
  """
  own = {name: sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] == "attention"}
  sys.path.insert(0, str(folder))
  try:
    library = importlib.import_module("attention")
  except Exception as error:
    raise Unavailable(f"cannot be imported: {error}") from error
  finally:
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "attention"]:
      del sys.modules[name]
    sys.modules.update(own)
  if not pathlib.Path(str(library.__file__)).resolve().is_relative_to(folder.resolve()):
    raise Unavailable("has no folder `attention`")
  ours = functools.partial(_ours, library=library)
  BASELINES[COMPARED] = Baseline(ours, _ALL, has_window=True, heads_first=True)


def _jax(attend: Callable[..., jax.Array], case: Case, inputs: Inputs, heads_first: bool) -> Prepared:
  def arrange(array):
    array = jnp.asarray(array, case.dtype)
    return jnp.swapaxes(array, 1, 2) if heads_first and array.ndim == 4 else array

  def with_gradients(d_context, *arrays):
    context, vjp_fn = jax.vjp(attend, *arrays)
    return context, vjp_fn(d_context)

  arrays = [arrange(array) for array in inputs[:4] if array is not None]
  default = arrange(inputs.d_context)
  forward, *forward_stats = _compiled(attend, arrays, case)
  both, *both_stats = _compiled(with_gradients, [default, *arrays], case)
  seconds, memory = zip(forward_stats, both_stats, strict=True)

  def run_both(d_context=None):
    return jax.block_until_ready(both(default if d_context is None else arrange(d_context), *arrays))

  return Prepared(
    forward=lambda: jax.block_until_ready(forward(*arrays)),
    both=run_both,
    to_numpy=lambda array: np.asarray(arrange(array).astype(jnp.float32)),
    compile_seconds=seconds,
    temporary_mib=memory,
  )


def _compiled(function: Callable[..., Any], arrays: list[jax.Array], case: Case) -> tuple[Any, float, float]:
  """Returns a compiled program, its compile time in seconds, and its temporary memory in MiB."""
  start = time.perf_counter()
  # By default, GPUs round float32 to 10 bits in some programs but not in others.
  with jax.default_matmul_precision("highest" if case.dtype == "float32" else None):
    program = jax.jit(function).lower(*arrays).compile()
  seconds = round(time.perf_counter() - start, 2)
  analysis: Any = program.memory_analysis()
  return program, seconds, round(analysis.temp_size_in_bytes / 2**20, 3)


def _torch(attend: Callable[..., Any], case: Case, inputs: Inputs) -> Prepared:
  torch = _imported("torch")
  on_gpu = jax.default_backend() == "gpu"
  if on_gpu and not torch.cuda.is_available():
    raise Unavailable("finds no GPU")
  torch.set_num_threads(len(os.sched_getaffinity(0)))

  def arrange(array):
    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, case.dtype))
    tensor = tensor.cuda() if on_gpu else tensor
    return tensor.transpose(1, 2).contiguous() if array.ndim == 4 else tensor

  def to_numpy(tensor):
    tensor = tensor.detach().float().cpu()
    return (tensor.transpose(1, 2) if tensor.ndim == 4 else tensor).numpy()

  arrays = [arrange(array).requires_grad_() for array in inputs[:4] if array is not None]
  default = arrange(inputs.d_context)

  def synchronize(results):
    if on_gpu:
      torch.cuda.synchronize()
    return results

  def forward():
    with torch.no_grad():
      return synchronize(attend(*arrays))

  def both(d_context=None):
    context = attend(*arrays)
    d_context = default if d_context is None else arrange(d_context)
    return synchronize((context.detach(), torch.autograd.grad(context, arrays, d_context)))

  return Prepared(forward, both, to_numpy)


def _imported(name: str) -> Any:
  """Imports a module, or raises Unavailable."""
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise Unavailable("not installed" if error.name == name else f"cannot be imported: {error}") from None
