"""Time to trace and compile attention and layers, and the size of the compiled programs."""

import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import attention
from attention import masks

HEADER = """\
| program | pass | tracing, ms | lowering, ms | compiling, ms | total, ms | lines of HLO | without tables |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


class Program(NamedTuple):
  """A causal program: its name, the function, and its arguments."""

  name: str
  function: Callable[..., jax.Array]
  arguments: tuple[Any, ...]


def run(folder: pathlib.Path, repeats: int) -> None:
  """Measures all programs, prints a table, and writes compile.json and compile.md."""
  print(HEADER)
  records, lines = [], [HEADER]
  for program in programs():
    for is_gradient in (False, True):
      record = measure(program, is_gradient, repeats)
      stages = [record[stage] for stage in ("tracing", "lowering", "compiling", "total")]
      cells = [record["program"], record["pass"], *(f"{ms:.0f}" for ms in stages)]
      line = f"| {' | '.join(cells)} | {record['lines']:,} | {record['program_lines']:,} |"
      print(line, flush=True)
      records.append(record)
      lines.append(line)
  (folder / "compile.json").write_text(json.dumps(records, indent=2) + "\n", "utf-8")
  (folder / "compile.md").write_text("\n".join(lines) + "\n", "utf-8")


def programs() -> Iterator[Program]:
  """Yields attention at two sizes, and six layers, each beside the same in JAX or Flax."""
  rng = np.random.default_rng(0)

  def draw(*shape: int) -> jax.Array:
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)

  for shape in ((2, 4, 33, 16), (2, 4, 513, 64)):
    vectors, score_vector = (draw(*shape), draw(*shape), draw(*shape)), draw(shape[-1])
    yield Program(f"jax.nn {shape}", _jax_nn, vectors)
    yield Program(f"scaled_dot_product_attention {shape}", _dot_product, vectors)
    yield Program(f"additive, three lines {shape}", _additive_in_three_lines, (*vectors, score_vector))
    yield Program(f"additive_attention {shape}", _additive, (*vectors, score_vector))
  inputs = draw(2, 1000, 64)
  for name, layers in (("Flax", _FlaxLayers()), ("EncoderLayer", _EncoderLayers())):
    variables = layers.init(jax.random.key(0), inputs[:, :8])
    yield Program(f"six layers of {name}", layers.apply, (variables, inputs))  # type: ignore[arg-type]


def measure(program: Program, is_gradient: bool, repeats: int) -> dict[str, Any]:
  """Returns the least times of each stage, in ms, without caches, and the lines of the compiled program.

  XLA prints tables of source lines before the program; `program_lines` does not count them.
  """
  function, arguments = program.function, program.arguments

  def loss(*arguments: Any) -> jax.Array:
    return jnp.sum(function(*arguments) ** 2)

  times = []
  text = ""
  for _ in range(repeats):
    derived = jax.grad(loss, tuple(range(len(arguments)))) if is_gradient else function
    jax.clear_caches()
    start = time.perf_counter()
    traced = jax.jit(lambda *arguments, derived=derived: derived(*arguments)).trace(*arguments)
    after_tracing = time.perf_counter()
    lowered = traced.lower()
    after_lowering = time.perf_counter()
    text = lowered.compile().as_text() or ""
    end = time.perf_counter()
    times.append((after_tracing - start, after_lowering - after_tracing, end - after_lowering, end - start))
  lines = text.splitlines()
  milliseconds = 1e3 * np.min(np.array(times), axis=0)
  return {
    "program": program.name,
    "pass": "gradient" if is_gradient else "forward",
    **dict(zip(("tracing", "lowering", "compiling", "total"), map(float, milliseconds), strict=True)),
    "lines": len(lines),
    "program_lines": sum(line.startswith((" ", "%", "ENTRY", "}")) for line in lines),
  }


def _jax_nn(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
  arrays = (jnp.swapaxes(array, 1, 2) for array in (queries, keys, values))
  return jax.nn.dot_product_attention(*arrays, is_causal=True)


def _dot_product(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
  return attention.scaled_dot_product_attention(queries, keys, values, mask=masks.causal())


def _additive_in_three_lines(
  queries: jax.Array, keys: jax.Array, values: jax.Array, score_vector: jax.Array
) -> jax.Array:
  scores = jnp.sum(jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) * score_vector, axis=-1)
  scores = jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -jnp.inf)
  return jax.nn.softmax(scores) @ values


def _additive(queries: jax.Array, keys: jax.Array, values: jax.Array, score_vector: jax.Array) -> jax.Array:
  return attention.additive_attention(queries, keys, values, score_vector, mask=masks.causal())


class _FlaxLayer(nn.Module):
  """A pre-norm Transformer layer of Flax, as `attention.EncoderLayer`."""

  @nn.compact
  def __call__(self, inputs: jax.Array, mask: jax.Array) -> jax.Array:
    inputs += nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(inputs), mask=mask)
    hidden = nn.relu(nn.Dense(256)(nn.LayerNorm()(inputs)))
    return inputs + nn.Dense(inputs.shape[-1])(hidden)


class _FlaxLayers(nn.Module):
  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    mask = nn.make_causal_mask(inputs[..., 0])
    for _ in range(6):
      inputs = _FlaxLayer()(inputs, mask)
    return inputs


class _EncoderLayers(nn.Module):
  @nn.compact
  def __call__(self, inputs: jax.Array) -> jax.Array:
    for _ in range(6):
      inputs = attention.EncoderLayer(4, 256)(inputs, mask=masks.causal())
    return inputs
