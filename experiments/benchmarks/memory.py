"""Memory and time of a training step of attention: calculated from its sizes, and of the compiled program.

A training step is the forward pass and the gradients of queries, keys and values. It is compiled for arrays
that are never allocated, so that all lengths can be compared, and run only if it takes a few seconds.
"""

import concurrent.futures
import dataclasses
import json
import multiprocessing
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import attention
from attention import masks
from attention.engines.plan import PAIRS_ON_CPU, Blocks, default_block_sizes, even_blocks
from experiments.benchmarks.timing import in_turn
from experiments.cli.messages import markdown, markdown_row
from experiments.devices.sharding import set_cpu_device_count

# Steps of at most this number of operations are run: up to about 20 seconds on 2 cores.
MOST_FLOPS = 10**12
# Scores, softmax and sums are computed in float32.
FLOAT32 = 4

HEADER = [
  "(B, T, N, H)",
  "options",
  "devices",
  "arguments and outputs, MiB",
  "temporary, calculated",
  "compiled",
  "ratio of totals",
  "compiling, s",
  "step, measured, s",
  "calculated, s",
]


@dataclasses.dataclass(frozen=True)
class Step:
  """The sizes and options of a training step.

  Attributes:
    batch: B.
    length: T = S, of the whole sequence.
    heads: N, of queries and keys.
    width: H, of queries, keys and values.
    devices: number of devices of a ring. 1: no ring.
    score: "dot_product" or "additive".
    causal: whether the mask is causal. In a ring, positions are in the order of `zigzag_layout`.
    dtype: "float32" or "bfloat16".
    implementation: "dense" or "blockwise".
  """

  batch: int
  length: int
  heads: int
  width: int
  devices: int = 1
  score: str = "dot_product"
  causal: bool = False
  dtype: str = "float32"
  implementation: str = "blockwise"

  @property
  def num_rows(self) -> int:
    """Number of queries of all heads on each device."""
    return self.batch * self.heads * self.length // self.devices

  @property
  def flops(self) -> int:
    """Floating-point operations in matrix products, two in the forward pass and five in the backward pass.

    Masked pairs do not count. The time of additive attention, which has other operations, grows like it.
    """
    pairs = self.length * (self.length + 1) // 2 if self.causal else self.length**2
    return 7 * 2 * self.batch * self.heads * pairs * self.width


def calculate(step: Step) -> dict[str, int]:
  """Returns the bytes per device of a training step, by purpose.

  For steps of a few MiB, such as a single sequence that is one tile, the compiled program may differ by 20 %.
  """
  vectors = step.num_rows * step.width * jnp.dtype(step.dtype).itemsize
  terms = {
    "arguments": 4 * vectors,  # queries, keys, values, and the gradient of the context
    "outputs": 4 * vectors,  # the context, and the gradients of queries, keys and values
  }
  return terms | (_dense(step) if step.implementation == "dense" else _blockwise(step))


def _dense(step: Step) -> dict[str, int]:
  """Returns the temporary bytes of "dense"."""
  is_half, is_additive = step.dtype != "float32", step.score == "additive"
  scores = FLOAT32 * step.num_rows * step.length
  return {
    # The weights, their gradient, and the gradient of the scores. Additive attention transposes the last in
    # four parts.
    "scores": 3 * scores + is_additive * scores // 4,
    # Gradients of queries and keys before those of vectors that are not finite are set to 0. Additive
    # attention also stores exponentials of queries and keys, and gradients of their factors.
    "vectors": (2 + 3 * is_half + 6 * is_additive) * FLOAT32 * step.num_rows * step.width,
    "rows": 3 * FLOAT32 * step.num_rows,
  }


def _blockwise(step: Step) -> dict[str, int]:
  """Returns the temporary bytes of "blockwise", which are largest in the backward pass.

  It computes a few of the B N sequences at a time, and of these one tile.
  """
  is_half, is_ring, is_additive = step.dtype != "float32", step.devices > 1, step.score == "additive"
  together, queries, keys = tiles(step)
  rows, rows_together = FLOAT32 * step.num_rows, FLOAT32 * together * queries.length
  tile = FLOAT32 * together * queries.size * keys.size
  num_tiles = 2 + is_additive  # weights, and the gradient of scores; of additive attention also the scores
  num_together = _num_together(step)
  terms = {
    # Queries, keys, values and their gradients; without a ring also the context and its gradient.
    "float32": is_half * (6 if is_ring else 8) * rows * step.width,
    # Keys and values of another device, their gradients, the gradient of queries from that device, and the
    # gradient of the context, before and after it.
    "ring": is_ring * 7 * rows * step.width,
    "together": num_together * rows_together * step.width,
    "tiles": num_tiles * tile,
    # The row maxima and denominators, and in a ring their gradients and copies.
    "rows": (6 if is_ring else 2) * rows + (4 if is_ring else 2) * rows_together,
  }
  count = step.batch * step.heads
  if count // together > 1 and count % together:
    # The last sequences are computed after a loop over the others, whose results are then copied.
    terms["rest"] = 4 * rows * step.width
  if not queries.count == keys.count == 1:
    # Queries, keys, and gradients of queries, keys and context. If tiles are skipped, also copies of sums.
    terms["blocks"] = (5 + 3 * step.causal) * FLOAT32 * together * queries.size * step.width
  if is_additive:  # exponentials and complex gradients
    terms["exponentials"] = 6 * FLOAT32 * together * queries.size * step.width
  if is_half:
    # Until the last operation, the buffers of the three gradients are idle. XLA stores the largest arrays
    # there that are not larger.
    buffer = step.num_rows * step.width * jnp.dtype(step.dtype).itemsize
    arrays = [rows_together * step.width] * num_together + [tile] * num_tiles
    terms["in outputs"] = -sum(sorted((size for size in arrays if size <= buffer), reverse=True)[:3])
  return terms


def tiles(step: Step) -> tuple[int, Blocks, Blocks]:
  """Returns how many of the B N sequences are computed together, and the blocks of queries and keys."""
  length, count = step.length // step.devices, step.batch * step.heads
  sizes = default_block_sizes(length, length, step.causal, 1)
  queries, keys = (even_blocks(length, size, 1 + (step.causal and step.devices > 1)) for size in sizes)
  most = min(count, max(1, round(PAIRS_ON_CPU / (queries.size * keys.size))))
  divisor = max(number for number in range(1, most + 1) if count % number == 0)
  return divisor if 2 * divisor > most else most, queries, keys


def _num_together(step: Step) -> int:
  """Returns the number of float32 arrays [T H] for the sequences that are computed together."""
  together, queries, keys = tiles(step)
  if queries.count == keys.count == 1:
    return 4  # queries, transposed keys and values, and the gradient of the context
  # Also the context, the gradient of queries, the sums of the gradients of keys and values, and those of one
  # block of queries. A single block of keys has space for one of the latter in a tile.
  number = 10 if keys.count > 1 else 9
  if together < step.batch * step.heads:
    return number
  # If all are computed together, arguments and outputs are not copied: queries, context, two gradients, and
  # one of the sums. In half precision, the float32 copies of keys and values are freed when transposed.
  # Several sequences are copied, since a block of each is needed at a time.
  return number - 5 - 2 * (step.dtype != "float32") + 2 * (together > 1)


def run(folder: pathlib.Path, repeats: int) -> None:
  """Compares all steps, prints a table, and writes memory.json and memory.md."""
  lines = markdown(HEADER, []).splitlines()
  print(*lines, sep="\n", flush=True)
  records, rates = [], dict[str, float]()
  for step in STEPS:
    record = {**dataclasses.asdict(step), "calculated": calculate(step), **_in_new_process(step, repeats)}
    if record["seconds"] is not None:
      rates[step.score] = step.flops / record["seconds"]
    record["calculated_seconds"] = step.flops / step.devices / rates[step.score]
    records.append(record)
    lines.append(markdown_row(_cells(step, record)))
    print(lines[-1], flush=True)
  (folder / "memory.json").write_text(json.dumps(records, indent=2) + "\n", "utf-8")
  (folder / "memory.md").write_text("\n".join(lines) + "\n", "utf-8")


def _in_new_process(step: Step, repeats: int) -> dict[str, Any]:
  """Returns the record of `measure`, from a process with as many simulated devices as the step."""
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, context, set_cpu_device_count, (step.devices,)) as pool:
    return pool.submit(measure, step, repeats).result()


def measure(step: Step, repeats: int) -> dict[str, Any]:
  """Returns bytes and seconds of a compiled step, and the seconds of the step if it is short."""
  start = time.perf_counter()
  compiled = compile_step(step)
  record = {
    "compiled": compiled_bytes(compiled),
    "compile_seconds": time.perf_counter() - start,
    "seconds": None,
  }
  if step.devices == 1 and step.flops <= MOST_FLOPS:
    rng = np.random.default_rng(0)
    arguments, _ = jax.tree.map(
      lambda array: jnp.asarray(rng.standard_normal(array.shape, np.float32), array.dtype), compiled.args_info
    )
    seconds = in_turn({"step": lambda: jax.block_until_ready(compiled(*arguments))}, repeats)["step"]
    record["seconds"] = float(np.median(seconds))
  return record


def _cells(step: Step, record: dict[str, Any]) -> list[str]:
  """Returns a row of the table."""
  calculated, compiled = record["calculated"], record["compiled"]
  outside = calculated["arguments"] + calculated["outputs"]
  total = sum(calculated.values())
  options = [step.implementation, *(["causal"] if step.causal else [])]
  options += [name for name in (step.score, step.dtype) if name not in ("dot_product", "float32")]
  seconds = record["seconds"]
  return [
    f"({step.batch}, {step.length:,}, {step.heads}, {step.width})",
    ", ".join(options),
    str(step.devices),
    *(f"{size / 2**20:,.0f}" for size in (outside, total - outside, compiled - outside)),
    f"{total / compiled:.2f}",
    f"{record['compile_seconds']:.1f}",
    "-" if seconds is None else f"{seconds:.2g}",
    f"{record['calculated_seconds']:,.3g}",
  ]


def compile_step(step: Step) -> Any:
  """Returns the compiled training step, of arrays [B N T H]. JAX must have as many devices as the step."""
  mask = masks.causal() if step.causal else None
  parameters = [jax.ShapeDtypeStruct((step.width,), step.dtype)] if step.score == "additive" else []

  def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, *parameters: jax.Array) -> jax.Array:
    score = attention.Additive(*parameters) if parameters else attention.ScaledDotProduct()
    if step.devices == 1:
      return attention.attend(score, queries, keys, values, mask=mask, implementation=step.implementation)
    return attention.ring_attention(
      score, queries, keys, values, axis_name="sequence", mask=mask, zigzag=step.causal
    )

  sharding, function = None, attend
  if step.devices > 1:
    devices = jax.devices()[: step.devices]
    mesh = jax.make_mesh((step.devices,), ("sequence",), axis_types=(AxisType.Auto,), devices=devices)
    spec = PartitionSpec(None, None, "sequence")
    specs = (spec, spec, spec, *(PartitionSpec() for _ in parameters))
    sharding, function = (
      NamedSharding(mesh, spec),
      jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=spec),
    )

  def train_step(queries: Any, keys: Any, values: Any, d_context: Any, *parameters: Any) -> Any:
    context, pull = jax.vjp(lambda *vectors: function(*vectors, *parameters), queries, keys, values)
    return context, pull(d_context)

  shape = step.batch, step.heads, step.length, step.width
  vectors = jax.ShapeDtypeStruct(shape, step.dtype, sharding=sharding)
  return jax.jit(train_step).lower(vectors, vectors, vectors, vectors, *parameters).compile()


def compiled_bytes(compiled: Any) -> int:
  """Returns the bytes per device of arguments, outputs and temporary arrays of a compiled program."""
  sizes = compiled.memory_analysis()
  return sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes


_MILLION = 2**20
STEPS = [
  Step(8, 512, 8, 64, implementation="dense"),
  Step(1, 4096, 8, 64, implementation="dense"),
  Step(32, 512, 8, 64),
  Step(4, 4096, 8, 64),
  Step(1, 32_768, 1, 64),
  Step(1, 32_768, 8, 64),
  Step(4, 32_768, 16, 128),
  Step(1, 262_144, 8, 64),
  Step(1, _MILLION, 8, 64),
  Step(1, 32_768, 8, 64, causal=True),
  Step(1, _MILLION, 8, 64, dtype="bfloat16"),
  Step(1, 262_144, 8, 64, devices=8),
  *(Step(1, _MILLION, 8, 64, devices=devices) for devices in (2, 4, 8, 16, 32, 64)),
  Step(4, _MILLION, 16, 128, devices=64),
  Step(1, _MILLION, 8, 64, devices=64, causal=True),
  Step(1, _MILLION, 8, 64, devices=64, dtype="bfloat16"),
  Step(1, 4096, 8, 64, score="additive", implementation="dense"),
  Step(1, 4096, 8, 64, score="additive"),
  Step(1, 32_768, 8, 64, score="additive"),
  Step(1, _MILLION, 8, 64, score="additive"),
  Step(1, _MILLION, 8, 64, score="additive", devices=64),
]
