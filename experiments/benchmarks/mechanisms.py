"""What each mechanism of docs/design.md gains: the same program with it and without it.

A mechanism is taken away by replacing a function or a constant of the library while the program is traced.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import attention
from attention import masks
from attention.arrays import leading_axes, masking
from attention.decoding.top_k import top_k
from attention.engines import blockwise, dense, plan
from attention.linear import project_heads
from attention.scores import additive_kernel
from experiments.benchmarks.timing import in_turn
from experiments.cli.errors import UserError
from experiments.cli.flags import UsageError
from experiments.cli.messages import markdown, markdown_row

# Allowed difference of results with and without a mechanism, relative to the largest.
_TOLERANCE = 1e-3

HEADER = ["mechanism", "program", "quantity", "with", "without", "ratio", "at least"]


class MechanismWithoutGain(UserError):
  """A mechanism that gains less than it should."""


class Program(NamedTuple):
  """What is measured.

  Attributes:
    name: for the table.
    function: returns an array.
    arguments: its arguments.
    quantity: "forward", "both" (time of both passes), "eager" (time outside `jax.jit`) or "memory" (temporary
      memory of both passes).
  """

  name: str
  function: Callable[..., jax.Array]
  arguments: tuple[Any, ...]
  quantity: str


@dataclasses.dataclass(frozen=True)
class Mechanism:
  """A row of the table in docs/design.md.

  Attributes:
    name: first cell of the row.
    program: returns what is measured.
    replaced: replacements that take the mechanism away, by the name of the function or constant.
    least: the least quantity without the mechanism, divided by that with it. It leaves room for noise.
    versions: prefixes of the JAX versions to which `least` applies. Default: all.
  """

  name: str
  program: Callable[[], Program]
  replaced: Mapping[str, Any]
  least: float
  versions: tuple[str, ...] = ("",)

  def is_expected(self) -> bool:
    """Returns whether the mechanism should gain anything on this version of JAX."""
    return jax.__version__.startswith(self.versions)


def run(folder: pathlib.Path, repeats: int) -> None:
  """Measures all mechanisms, prints a table, and writes mechanisms.json.

  Raises:
    UsageError: unless the device is a CPU.
    RuntimeError: if the results without a mechanism differ.
    MechanismWithoutGain: if a ratio is below `least`.
  """
  if jax.default_backend() != "cpu":
    raise UsageError(f"--suites=mechanisms requires a CPU, got {jax.default_backend()}")
  records = []
  print(markdown(HEADER, []), flush=True)
  for mechanism in MECHANISMS:
    record = measure(mechanism, repeats)
    records.append(record)
    unit, digits = ("MiB", 1) if record["quantity"] == "memory" else ("ms", 2)
    values = [f"{record[which]:.{digits}f} {unit}" for which in ("with", "without")]
    least = f"{mechanism.least:.2f}" if mechanism.is_expected() else "-"
    names = (record[key] for key in ("mechanism", "program", "quantity"))
    print(markdown_row([*names, *values, f"{record['ratio']:.2f}", least]), flush=True)
  (folder / "mechanisms.json").write_text(json.dumps(records, indent=2) + "\n", "utf-8")
  if small := [record["mechanism"] for record in records if not record["ratio"] >= record["at_least"]]:
    raise MechanismWithoutGain(f"gains less than expected, or less than the noise: {'; '.join(small)}")


def measure(mechanism: Mechanism, repeats: int) -> dict[str, Any]:
  """Measures a program with and without a mechanism, and returns the record."""
  program = mechanism.program()
  calls, memory = {}, {}
  for which in ("with", "without"):
    replaced = mechanism.replaced if which == "without" else {}
    call, memory[which] = _prepare(program, replaced)
    calls[which] = call
  for result, other in zip(*(jax.tree.leaves(call()) for call in calls.values()), strict=True):
    if not jnp.max(jnp.abs(result - other)) <= _TOLERANCE * jnp.max(jnp.abs(result)):
      raise RuntimeError(f"results must be the same without this mechanism: {mechanism.name}")
  values = memory
  if program.quantity != "memory":
    values = {which: 1e3 * float(np.median(times)) for which, times in in_turn(calls, repeats).items()}
  return {
    "mechanism": mechanism.name,
    "program": program.name,
    "quantity": program.quantity,
    **values,
    "ratio": values["without"] / values["with"],
    "at_least": mechanism.least if mechanism.is_expected() else 0.0,
  }


def lower(program: Program, replaced: Mapping[str, Any]) -> Any:
  """Returns the lowered program, traced with replacements."""

  def loss(*arguments: Any) -> jax.Array:
    return jnp.sum(program.function(*arguments) ** 2)

  jax.clear_caches()  # of traces of attention functions
  with replacing(replaced):
    derived = program.function
    if program.quantity in ("both", "memory"):
      derived = jax.grad(loss, tuple(range(len(program.arguments))))
    lowered = jax.jit(lambda *arguments: derived(*arguments)).lower(*program.arguments)
  jax.clear_caches()  # of traces with replacements
  return lowered


def _prepare(program: Program, replaced: Mapping[str, Any]) -> tuple[Callable[[], Any], float]:
  """Returns a function that runs the program, and its temporary memory in MiB."""
  if program.quantity == "eager":

    def run_eagerly() -> jax.Array:
      with replacing(replaced):
        return jax.block_until_ready(program.function(*program.arguments))

    return run_eagerly, 0.0
  compiled = lower(program, replaced).compile()
  memory = compiled.memory_analysis()
  mebibytes = memory.temp_size_in_bytes / 2**20 if memory else math.nan
  return lambda: jax.block_until_ready(compiled(*program.arguments)), mebibytes


@contextlib.contextmanager
def replacing(replaced: Mapping[str, Any]) -> Iterator[None]:
  """Replaces functions and constants, given as "module.name"."""
  with contextlib.ExitStack() as exits:
    for name, value in replaced.items():
      module, _, attribute = name.rpartition(".")
      # Not mock.patch(name): a package may have a function with the name of one of its modules.
      exits.enter_context(mock.patch.object(importlib.import_module(module), attribute, value))
    yield


def _vectors(*shape: int, count: int = 3) -> tuple[jax.Array, ...]:
  rng = np.random.default_rng(0)
  return tuple(jnp.asarray(rng.standard_normal(shape), jnp.float32) for _ in range(count))


def _dot_product(quantity: str, *shape: int, name: str = "", **options: Any) -> Program:
  """Returns dot-product attention of vectors [B N T H]."""
  function = functools.partial(attention.scaled_dot_product_attention, **options)
  return Program(f"dot-product {shape}{name}", function, _vectors(*shape), quantity)


def _causal(quantity: str, *shape: int, **options: Any) -> Program:
  return _dot_product(quantity, *shape, name=" causal", mask=masks.causal(), **options)


def _with_lengths(quantity: str, *shape: int) -> Program:
  B, _, T, _ = shape
  lengths = jnp.asarray(np.random.default_rng(0).integers(1, T + 1, (B, 1)))
  return _dot_product(quantity, *shape, name=" lengths", mask=masks.lengths(source=lengths))


def _additive(quantity: str, *shape: int) -> Program:
  (score_vector,) = _vectors(shape[-1], count=1)
  arguments = *_vectors(*shape), score_vector / math.sqrt(shape[-1])
  return Program(f"additive {shape}", attention.additive_attention, arguments, quantity)


def _projection() -> Program:
  vectors, kernel = *_vectors(1, 1, 256, count=1), *_vectors(256, 4, 64, count=1)

  def function(vectors: jax.Array, kernel: jax.Array) -> jax.Array:
    def step(_: int, vectors: jax.Array) -> jax.Array:
      return jnp.tanh(project_heads(vectors, kernel).reshape(vectors.shape))

    return jax.lax.fori_loop(0, 100, step, vectors)

  return Program("100 projections of one vector [256]", function, (vectors, kernel / 32), "forward")


def _largest_logits() -> Program:
  logits = _vectors(1000, 4000, count=1)
  return Program("six of (1000, 4000) logits", lambda logits: top_k(logits, 6)[0], logits, "forward")


def _at_each_index(plan: Any, leaves: Any) -> Any:
  """Computes `flash_attention` with the rule at each index of the leading axes, instead of around them."""
  inner = dataclasses.replace(plan, leading=(), per_step=None)

  def at_index(leaves: Any) -> Any:
    return _FLASH_ATTENTION(inner, leaves)

  return leading_axes.map_leading_axes(at_index, (leaves,), plan.letters, plan.leading, plan.per_step)


def _on_whole_arrays(plan: Any, leaves: Any) -> Any:
  """Computes `flash_attention` after NaN and infinity have been replaced in whole arrays."""
  return _FLASH_ATTENTION(plan, jax.tree.leaves(plan.inputs(leaves).with_finite_vectors()))


def _nested(function: Any, arrays: Any, letters: Any, leading: Any, per_step: Any) -> Any:
  """Computes `map_index_batches` with a loop for each leading axis."""
  if len(leading) < 2:
    return _MAP_INDEX_BATCHES(function, arrays, letters, leading, per_step)
  with_others = jax.tree.map(lambda axes: "-" * len(leading[1:]) + axes, letters)

  def at_index(arrays: Any, batch: Any) -> Any:
    return _nested(function, arrays, letters, leading[1:], per_step)

  return _MAP_INDEX_BATCHES(at_index, arrays, with_others, leading[:1], 1)


def _cut_after_vmap(function: Any, arrays: Any, letters: Any, leading: Any, per_step: Any) -> Any:
  """Cuts keys into blocks after `jax.vmap`."""

  def at_index(*arrays: Any) -> Any:
    return function(arrays, ())

  return leading_axes.map_leading_axes(at_index, arrays, letters, leading, per_step)


def _all_tiles(*args: Any, **options: Any) -> Any:
  made, leaves = _MAKE_PLAN(*args, **options)
  return dataclasses.replace(made, skips_tiles=False), leaves


def _sweep_twice(x: jax.Array, y: jax.Array, factors: jax.Array) -> jax.Array:
  """Computes `_sweep` of the real and of the imaginary factors."""
  if not jnp.iscomplexobj(factors):
    return _SWEEP(x, y, factors)
  zero = jnp.zeros_like(factors.real)
  return _SWEEP(x, y, factors.real) + _SWEEP(x, y, jax.lax.complex(zero, factors.imag))


# Before they are replaced.
_FLASH_ATTENTION, _MAKE_PLAN = blockwise.flash_attention, plan.make_plan
_MAP_INDEX_BATCHES, _SWEEP = leading_axes.map_index_batches, additive_kernel._sweep

_ENGINES, _KERNEL = "attention.engines", "attention.scores.additive_kernel"

MECHANISMS = [
  Mechanism(
    "forward-mode differentiation rule",
    lambda: _dot_product("memory", 1, 1, 4096, 64),
    {f"{_ENGINES}.blockwise.flash_attention": blockwise.flash_attention.fun},
    least=3,
  ),
  Mechanism(
    "loop over leading axes inside that rule",
    lambda: _dot_product("memory", 1, 8, 2048, 64, name=" bias", bias=jnp.zeros((1, 1, 2048, 2048))),
    {f"{_ENGINES}.blockwise.flash_attention": _at_each_index},
    least=1.2,
  ),
  Mechanism(
    "leading axes that index the same arrays are merged into one loop",
    lambda: _dot_product("both", 64, 1, 256, 64),
    {f"{_ENGINES}.loops.map_index_batches": _nested},
    least=1.1,
  ),
  Mechanism(
    "NaN and infinity are replaced per index, not in whole arrays",
    lambda: _dot_product("memory", 1, 8, 4096, 64),
    {
      f"{_ENGINES}.blockwise.flash_attention": _on_whole_arrays,
      f"{_ENGINES}.loops.finite_arrays": lambda plan, leaves, *others: (leaves, *others),
    },
    least=1.3,
  ),
  Mechanism(
    "empty tiles are skipped",
    lambda: _causal("both", 1, 8, 4096, 64),
    {f"{_ENGINES}.blockwise.make_plan": _all_tiles},
    least=1.3,
  ),
  Mechanism(
    "a separate pass for the normalizer's state",
    lambda: _dot_product("memory", 8, 8, 512, 64, name=" sparsemax", normalizer=attention.Sparsemax()),
    {"attention.functional.blockwise": lambda inputs, shape, **options: dense.dense(inputs, shape)},
    least=5,
  ),
  Mechanism(
    "windows of keys, for masks that are known to allow only these",
    lambda: _dot_product(
      "both", 1, 8, 8192, 64, name=" window 256", mask=masks.causal() & masks.sliding_window(255, 0)
    ),
    {f"{_ENGINES}.plan.find_windows": lambda *args: None},
    least=1.5,
  ),
  Mechanism(
    "keys are cut into blocks before `jax.vmap` over the leading axes",
    lambda: _causal("memory", 1, 8, 16384, 64),
    {f"{_ENGINES}.loops.map_index_batches": _cut_after_vmap},
    least=1.05,
  ),
  Mechanism(
    "keys and values are stored transposed in derivatives",
    lambda: _dot_product("both", 1, 8, 2048, 32),
    {f"{_ENGINES}.loops.turn": lambda plan, array, axes: array},
    least=1.1,
  ),
  Mechanism(
    "compiled calls, which share their trace",
    lambda: _dot_product("eager", 2, 3, 5, 4),
    {"attention.arrays.eager_jit.has_user_code": lambda tree: True},
    least=5,
  ),
  Mechanism(
    "gradients of up to 1,024 pairs per head from transposed weights",
    lambda: _with_lengths("both", 128, 4, 16, 32),
    {"attention.arrays.products.MAX_FEW_PAIRS": 0},
    least=1.05,
  ),
  Mechanism(
    "one derivative rule for mask and softmax",
    lambda: _with_lengths("memory", 32, 8, 50, 32),
    {f"{_ENGINES}.dense.softmax": dense.softmax.fun},
    least=1.15,
  ),
  Mechanism(
    "vectors are finite if their sum is",
    lambda: _with_lengths("forward", 32, 8, 20, 64),
    {f"{_ENGINES}.inputs.has_nonfinite_sum": masking.any_nonfinite},
    least=1.05,
  ),
  Mechanism(
    "additive scores from products of exponentials",
    lambda: _additive("both", 2, 1, 512, 256),
    {f"{_KERNEL}._needs_tanh": lambda queries, keys: jnp.any(queries < jnp.inf)},
    least=1.5,
  ),
  Mechanism(
    "a small matrix product in the loops of additive scores",
    lambda: _additive("both", 2, 1, 512, 256),
    {f"{_KERNEL}._one": lambda index, dtype: jnp.ones((), dtype)},
    least=1.2,
    versions=("0.12",),
  ),
  Mechanism(
    "one division per four hidden units in additive scores",
    lambda: _additive("forward", 2, 1, 512, 256),
    {f"{_KERNEL}.ROWS": 1},
    least=1.15,
  ),
  Mechanism(
    "gradients of queries and score vector in one loop, as a complex array",
    lambda: _additive("both", 2, 1, 512, 256),
    {f"{_KERNEL}._sweep": _sweep_twice},
    least=1.1,
  ),
  Mechanism(
    "the largest logits are found in chunks",
    _largest_logits,
    {"attention.decoding.top_k._FEW_LOGITS": math.inf},
    least=1.5,
  ),
  Mechanism(
    "a barrier before the kernel, for a single vector",
    _projection,
    {"jax.lax.optimization_barrier": lambda array: array},
    least=1.5,
    versions=("0.10",),
  ),
]
