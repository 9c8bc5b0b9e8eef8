"""Times calls outside of `jax.jit`: the first, with what it compiles, and later ones.

    python -m experiments.benchmark_eager

It takes a minute on 2 cores. The sizes are small (2 sentences of 64 positions, 4 heads of width 32): what is
timed is not the attention, but what Python and JAX do around it.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

import attention
from attention import masks, positions
from experiments.commands import flags as commands
from experiments.commands import tables

_REPEATS = flags.DEFINE_integer("repeats", 50, "how often later calls are timed", lower_bound=1)


def cases() -> dict[str, Callable[[], Any]]:
  """Returns what is timed, by name."""
  heads, vectors, score_vector = jnp.ones((2, 4, 64, 32)), jnp.ones((2, 64, 32)), jnp.ones(32)
  sideways = jnp.swapaxes(heads, 1, 2)
  kernel = jnp.ones((32, 4, 8))
  weights = attention.MultiHeadWeights(kernel, kernel, kernel, jnp.ones((4, 8, 32)))

  def causal(array: jax.Array, **options: Any) -> jax.Array:
    return attention.scaled_dot_product_attention(array, array, array, mask=masks.causal(), **options)

  def blockwise(array: jax.Array) -> jax.Array:
    return causal(array, implementation="blockwise")

  def of_jax(array: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(array, array, array, is_causal=True)

  def gradient(function: Callable[[jax.Array], jax.Array], array: jax.Array) -> jax.Array:
    return jax.grad(lambda array: jnp.sum(function(array)))(array)

  return {
    "jax.nn.dot_product_attention, causal": lambda: of_jax(sideways),
    "jax.nn.dot_product_attention, gradient": lambda: gradient(of_jax, sideways),
    "scaled_dot_product_attention, causal": lambda: causal(heads),
    "scaled_dot_product_attention, gradient": lambda: gradient(causal, heads),
    "blockwise": lambda: blockwise(heads),
    "blockwise, gradient": lambda: gradient(blockwise, heads),
    "with ALiBi": lambda: causal(heads, bias=positions.ALiBi(positions.alibi_slopes(4))),
    "with a bias function": lambda: causal(heads, bias=lambda t, s: (s - t).astype(jnp.float32)),
    "additive_attention": lambda: attention.additive_attention(heads, heads, heads, score_vector),
    "multi_head_attention": lambda: attention.multi_head_attention(vectors, vectors, weights),
    "attend_heads, grouped": lambda: attention.attend_heads(heads, heads[:, :2], heads[:, :2]),
    "additive_scores": lambda: attention.additive_scores(heads, heads, score_vector),
    "masked_softmax": lambda: attention.masked_softmax(jnp.ones((2, 64, 64)), masks.causal()),
    "merge": lambda: attention.merge([(vectors, jnp.ones((2, 64)))] * 2),
    "positions.rotary": lambda: positions.rotary(heads),
  }


def main() -> None:
  print(tables.markdown(["case", "first call, s", "later calls, ms"], []))
  for name, call in cases().items():
    jax.clear_caches()  # or a case would find what another has compiled
    first, *later = (_seconds(call) for _ in range(1 + _REPEATS.value))
    print(tables.markdown_row([name, f"{first:.2f}", f"{1e3 * np.median(later):.2f}"]), flush=True)


def _seconds(call: Callable[[], Any]) -> float:
  start = time.perf_counter()
  jax.block_until_ready(call())
  return time.perf_counter() - start


if __name__ == "__main__":
  commands.run(main, uses_cache=False)
