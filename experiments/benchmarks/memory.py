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
from experiments.cli.flags import UsageError
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
  "step, s",
]


@dataclasses.dataclass(frozen=True)
class Step:
  """The sizes and options of a training step.

  Attributes:
    batch: B.
    length: T = S, of the whole sequence.
    heads: N, of queries.
    width: H, of queries, keys and values.
    devices: number of devices of a ring. 1: no ring.
    key_heads: K, of keys and values, which N / K query heads share. None: N.
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
  key_heads: int | None = None
  score: str = "dot_product"
  causal: bool = False
  dtype: str = "float32"
  implementation: str = "blockwise"

  @property
  def local_length(self) -> int:
    """Number of positions on each device."""
    return self.length // self.devices

  @property
  def num_key_heads(self) -> int:
    """K."""
    return self.key_heads or self.heads

  @property
  def is_half(self) -> bool:
    """Whether arguments and outputs are in half precision."""
    return self.dtype != "float32"

  @property
  def flops(self) -> int:
    """Floating-point operations in matrix products, two in the forward pass and five in the backward pass.

    Masked pairs do not count. The time of additive attention, which has other operations, grows like it.
    """
    pairs = self.length * (self.length + 1) // 2 if self.causal else self.length**2
    return 7 * 2 * self.batch * self.heads * pairs * self.width


def calculate(step: Step) -> dict[str, int]:
  """Returns the bytes per device of a training step, by purpose.

  The total of the compiled program may differ by 30 % for less than 15 MiB, where XLA shares the arrays of a
  single tile, and for grouped heads in half precision with a mask, or in a ring with one key head.
  """
  vector = jnp.dtype(step.dtype).itemsize * step.local_length * step.width
  vectors = 2 * step.batch * (step.heads + step.num_key_heads) * vector
  terms = {
    "arguments": vectors,  # queries, keys, values, and the gradient of the context
    "outputs": vectors,  # the context, and the gradients of queries, keys and values
  }
  return terms | (_dense(step) if step.implementation == "dense" else _blockwise(step))


def _dense(step: Step) -> dict[str, int]:
  """Returns the temporary bytes of "dense"."""
  is_additive = step.score == "additive"
  row = FLOAT32 * step.batch * step.heads  # a number for each head
  # The weights, before and after division, and their gradient. Grouped heads transpose an array. Additive
  # attention transposes one in four parts, and stores one part more.
  num_scores = 3 + (step.num_key_heads < step.heads) + is_additive / 4
  # The context and the gradient of values, before rows that are not finite are replaced. In half precision
  # also queries, keys and values in float32. Additive attention also stores exponentials and complex
  # gradients.
  num_vectors = 2 + 3 * step.is_half + 6 * is_additive
  return {
    "scores": round(num_scores * row * step.length**2),
    "vectors": num_vectors * row * step.length * step.width,
    "rows": 3 * row * step.length,
  }


def _blockwise(step: Step) -> dict[str, int]:
  """Returns the temporary bytes of "blockwise", which are largest in the backward pass.

  It computes a few of the B N sequences together, and of these one tile at a time.
  """
  together, queries, keys = tiles(step)
  count, key_count = step.batch * step.heads, step.batch * step.num_key_heads
  is_ring, is_additive = step.devices > 1, step.score == "additive"
  row = FLOAT32 * step.local_length
  vector, block = row * step.width, FLOAT32 * together * queries.size * step.width
  arrays = {  # the number and the size of float32 arrays
    # Queries, keys, values and their gradients; without a ring also the context and its gradient.
    "float32": (step.is_half * ((2 if is_ring else 4) * count + 4 * key_count), vector),
    # Keys and values of another device, their gradients, the gradient of queries from that device, and the
    # gradient of the context, before and after it.
    "ring": (is_ring * (3 * count + 4 * key_count), vector),
    "group": (_num_group(step), vector),
    "together": (_num_together(step), together * vector),
    # Weights, and the gradient of the scores; of additive attention also the scores.
    "tiles": (2 + is_additive, FLOAT32 * together * queries.size * keys.size),
    # The row maxima and denominators, and in a ring their gradients and copies.
    "rows": ((6 if is_ring else 2) * count + (4 if is_ring else 2) * together, row),
    # Queries, keys, and gradients of queries, keys and context. If tiles are skipped, also copies of sums.
    "blocks": (0 if queries.count == keys.count == 1 else 5 + 3 * step.causal, block),
    # Exponentials and complex gradients.
    "exponentials": (6 * is_additive, block),
  }
  if step.num_key_heads == step.heads and count // together > 1 and count % together:
    # The last sequences are computed after a loop over the others, whose results are then copied.
    arrays["rest"] = 4 * count, vector
  terms = {purpose: number * size for purpose, (number, size) in arrays.items() if number}
  if step.is_half:
    sizes = 4 * [vector * count // key_count] if "group" in terms else []
    for number, size in (arrays["together"], arrays["tiles"]):
      sizes += number * [size]
    terms["in outputs"] = -_bytes_in_outputs(step, sizes)
  return terms


def _bytes_in_outputs(step: Step, sizes: list[int]) -> int:
  """Returns the bytes of arrays that are stored in the buffers of the gradients in half precision.

  These are idle until the last operation. XLA stores the largest array there that fits.
  """
  buffer, total = step.batch * step.local_length * step.width * FLOAT32 // 2, 0
  for heads in (step.heads, step.num_key_heads, step.num_key_heads):
    if fitting := [size for size in sizes if size <= heads * buffer]:
      sizes.remove(max(fitting))
      total += max(fitting)
  return total


def tiles(step: Step) -> tuple[int, Blocks, Blocks]:
  """Returns how many of the B N sequences are computed together, and the blocks of queries and keys."""
  length, group = step.local_length, step.heads // step.num_key_heads
  sizes = default_block_sizes(length, length, step.causal, 1)
  queries, keys = (even_blocks(length, size, 1 + (step.causal and step.devices > 1)) for size in sizes)
  count = group if group > 1 else step.batch * step.heads
  most = min(count, max(1, round(PAIRS_ON_CPU / (queries.size * keys.size))))
  divisor = max(number for number in range(1, most + 1) if count % number == 0)
  return divisor if 2 * divisor > most else most, queries, keys


def _num_together(step: Step) -> int:
  """Returns the number of arrays [T H] of each of the sequences that are computed together."""
  together, queries, keys = tiles(step)
  if queries.count == keys.count == 1:
    return 4  # queries, transposed keys and values, and the gradient of the context
  # Also the context, the gradient of queries, the sums of the gradients of keys and values, and those of one
  # block of queries. A single block of keys has space for one of the latter in a tile.
  number = 10 if keys.count > 1 else 9
  if together < step.batch * step.heads:
    return number
  # If all are computed together, no loop copies queries, context and two gradients, and an output stores one
  # gradient of a block. In half precision, the float32 copies of keys and values are freed when transposed.
  # Several sequences are rearranged, so that a block of each is contiguous.
  return number - 5 - 2 * step.is_half + 2 * (together > 1)


def _num_group(step: Step) -> int:
  """Returns the number of arrays [T H] for the N / K heads that share keys and values."""
  count, key_count = step.batch * step.heads, step.batch * step.num_key_heads
  if count == key_count or key_count == 1:
    return 0
  # Queries, context and two gradients; and the gradients of keys and values, summed over the heads.
  number = 4 * count // key_count + 2
  if not step.is_half and step.devices == 1:
    number += 2 * key_count  # gradients of all keys and values, before they are copied to the outputs
  if tiles(step)[0] > 1:
    number += 2 * count  # gradients of keys and values of each head, before their sum
  return number


def run(folder: pathlib.Path, repeats: int) -> None:
  """Compares all steps, prints a table, and writes memory.json and memory.md.

  Raises:
    UsageError: unless the device is a CPU.
  """
  if jax.default_backend() != "cpu":
    raise UsageError(f"--suites=memory requires a CPU, got {jax.default_backend()}")
  lines = markdown(HEADER, []).splitlines()
  print(*lines, sep="\n", flush=True)
  records, rates = [], dict[str, float]()
  for step in STEPS:
    record = {**dataclasses.asdict(step), "calculated": calculate(step), **_in_new_process(step, repeats)}
    if record["is_measured"]:
      rates[step.score] = step.flops / record["seconds"]
    else:  # at the rate of the previous step, without communication
      record["seconds"] = step.flops / step.devices / rates[step.score]
    records.append(record)
    lines.append(markdown_row(_cells(step, record)))
    print(lines[-1], flush=True)
  (folder / "memory.json").write_text(json.dumps(records, indent=2) + "\n", "utf-8")
  (folder / "memory.md").write_text("\n".join(lines) + "\n", "utf-8")


def _in_new_process(step: Step, repeats: int) -> dict[str, Any]:
  """Returns the record of `measure`, computed in a new process with `step.devices` simulated devices."""
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, context, set_cpu_device_count, (step.devices,)) as pool:
    return pool.submit(measure, step, repeats).result()


def measure(step: Step, repeats: int) -> dict[str, Any]:
  """Returns bytes and seconds of a compiled step, and the seconds of the step if it is short."""
  start = time.perf_counter()
  compiled = compile_step(step)
  compile_seconds, sizes = time.perf_counter() - start, compiled.memory_analysis()
  is_measured = step.devices == 1 and step.flops <= MOST_FLOPS
  return {
    "compiled": {
      "arguments": sizes.argument_size_in_bytes,
      "outputs": sizes.output_size_in_bytes,
      "temporary": sizes.temp_size_in_bytes,
    },
    "compile_seconds": compile_seconds,
    "is_measured": is_measured,
    "seconds": _median_seconds(compiled, repeats) if is_measured else None,
  }


def _median_seconds(compiled: Any, repeats: int) -> float:
  """Returns the median time of a compiled step with random arguments."""
  rng = np.random.default_rng(0)
  arguments, _ = jax.tree.map(
    lambda array: jnp.asarray(rng.standard_normal(array.shape, np.float32), array.dtype), compiled.args_info
  )
  times = in_turn({"step": lambda: jax.block_until_ready(compiled(*arguments))}, repeats)["step"]
  return float(np.median(times))


def _cells(step: Step, record: dict[str, Any]) -> list[str]:
  """Returns a row of the table."""
  calculated, compiled = record["calculated"], sum(record["compiled"].values())
  outside, total = calculated["arguments"] + calculated["outputs"], sum(calculated.values())
  options = [step.implementation, *(["causal"] if step.causal else [])]
  options += [] if step.key_heads is None else [f"{step.key_heads} key heads"]
  options += [name for name in (step.score, step.dtype) if name not in ("dot_product", "float32")]
  seconds = record["seconds"]
  return [
    f"({step.batch}, {step.length:,}, {step.heads}, {step.width})",
    ", ".join(options),
    str(step.devices),
    *(f"{size / 2**20:,.0f}" for size in (outside, total - outside, compiled - outside)),
    f"{total / compiled:.2f}",
    f"{record['compile_seconds']:.1f}",
    f"{float(f'{seconds:.2g}'):,g}{'' if record['is_measured'] else ' (calculated)'}",
  ]


def compile_step(step: Step) -> Any:
  """Returns the compiled training step of arrays [B N T H]. JAX must have at least `step.devices` devices."""
  mask = masks.causal() if step.causal else None
  parameters = [jax.ShapeDtypeStruct((step.width,), step.dtype)] if step.score == "additive" else []

  def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, *parameters: jax.Array) -> jax.Array:
    score = attention.Additive(*parameters) if parameters else attention.ScaledDotProduct()
    if step.devices == 1:
      return attention.attend_heads(
        queries, keys, values, score=score, mask=mask, implementation=step.implementation
      )
    shape = queries.shape
    if step.num_key_heads < step.heads:  # [B K G T H] and [B K 1 T H], where G = N / K
      queries = queries.reshape(step.batch, step.num_key_heads, -1, *shape[2:])
      keys, values = jnp.expand_dims(keys, 2), jnp.expand_dims(values, 2)
    return attention.ring_attention(
      score, queries, keys, values, axis_name="sequence", mask=mask, zigzag=step.causal
    ).reshape(shape)

  sharding, function = None, attend
  if step.devices > 1:
    devices = jax.devices()[: step.devices]
    mesh = jax.make_mesh((step.devices,), ("sequence",), axis_types=(AxisType.Auto,), devices=devices)
    spec = PartitionSpec(None, None, "sequence")
    specs = (spec, spec, spec, *(PartitionSpec() for _ in parameters))
    sharding = NamedSharding(mesh, spec)
    function = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=spec)

  def train_step(queries: Any, keys: Any, values: Any, d_context: Any, *parameters: Any) -> Any:
    context, pull = jax.vjp(lambda *vectors: function(*vectors, *parameters), queries, keys, values)
    return context, pull(d_context)

  queries, keys = (
    jax.ShapeDtypeStruct((step.batch, heads, step.length, step.width), step.dtype, sharding=sharding)
    for heads in (step.heads, step.num_key_heads)
  )
  return jax.jit(train_step).lower(queries, keys, keys, queries, *parameters).compile()


_MILLION = 2**20
STEPS = [
  Step(8, 512, 8, 64, implementation="dense"),
  Step(1, 4096, 8, 64, implementation="dense"),
  Step(32, 512, 8, 64),
  Step(4, 4096, 8, 64),
  Step(1, 32_768, 1, 64),
  Step(1, 32_768, 8, 64),
  Step(4, 32_768, 16, 128),
  Step(4, 32_768, 16, 128, key_heads=4),
  Step(1, 32_768, 8, 64, causal=True),
  Step(1, 262_144, 8, 64),
  Step(1, 262_144, 8, 64, devices=8),
  Step(1, _MILLION, 8, 64),
  Step(1, _MILLION, 8, 64, dtype="bfloat16"),
  *(Step(1, _MILLION, 8, 64, devices=devices) for devices in (2, 4, 8, 16, 32, 64)),
  Step(1, _MILLION, 8, 64, devices=64, causal=True),
  Step(1, _MILLION, 8, 64, devices=64, dtype="bfloat16"),
  Step(4, _MILLION, 16, 128, devices=64),
  Step(4, _MILLION, 16, 128, devices=64, key_heads=4),
  Step(1, 4096, 8, 64, score="additive", implementation="dense"),
  Step(1, 4096, 8, 64, score="additive"),
  Step(1, 32_768, 8, 64, score="additive"),
  Step(1, _MILLION, 8, 64, score="additive"),
  Step(1, _MILLION, 8, 64, score="additive", devices=64),
]
