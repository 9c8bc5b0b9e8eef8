"""A Transformer of Flax, linen and NNX, with Flax's attention function and with that of this library.

    python -m examples.flax_transformer --length=4096

prints the median time of a training step and the memory that its compiled program needs.
"""

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import linen as nn
from flax import nnx

from attention import flax_attention_fn, masks
from experiments.benchmarks.timing import in_turn
from experiments.cli import flags as cli

_LENGTH = flags.DEFINE_integer("length", 512, "number of positions", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 1, "number of sequences", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 5, "number of measurements", lower_bound=1)
LAYERS, HEADS, WIDTH = 2, 8, 256


class Linen(nn.Module):
  attention_fn: object

  @nn.compact
  def __call__(self, x, mask=None):
    for _ in range(LAYERS):
      x += nn.MultiHeadDotProductAttention(HEADS, attention_fn=self.attention_fn)(
        nn.LayerNorm()(x), mask=mask
      )
      x += nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
    return x


class Block(nnx.Module):
  def __init__(self, attention_fn, rngs):
    self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
    self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, attention_fn=attention_fn, decode=False, rngs=rngs)
    self.hidden, self.out = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

  def __call__(self, x):
    x += self.attention(self.norms[0](x), is_causal=True)
    return x + self.out(nnx.gelu(self.hidden(self.norms[1](x))))


def linen_step(attention_fn, inputs, **options):
  """Returns a function that computes gradients, and its arguments."""
  model = Linen(attention_fn)

  def loss(params, options):
    return jnp.mean(model.apply(params, inputs, **options) ** 2)

  return jax.grad(loss), (model.init(jax.random.key(0), inputs[:, :1]), options)


def nnx_step(attention_fn, inputs):
  """Returns a function that computes gradients, and its arguments."""
  model = nnx.Sequential(*[Block(attention_fn, nnx.Rngs(layer)) for layer in range(LAYERS)])
  graph, params = nnx.split(model)
  return jax.grad(lambda params: jnp.mean(nnx.merge(graph, params)(inputs) ** 2)), (params,)


def main():
  inputs = jax.random.normal(jax.random.key(1), (_BATCH.value, _LENGTH.value, WIDTH))
  steps = {
    "linen, Flax": linen_step(nn.dot_product_attention, inputs, mask=nn.make_causal_mask(inputs[..., 0])),
    "linen, attention": linen_step(flax_attention_fn(mask=masks.causal()), inputs),
    "NNX, Flax": nnx_step(nnx.dot_product_attention, inputs),
    "NNX, attention": nnx_step(flax_attention_fn(), inputs),
  }
  programs = {name: jax.jit(step).lower(*arguments).compile() for name, (step, arguments) in steps.items()}

  def call(name):
    return lambda: jax.block_until_ready(programs[name](*steps[name][1]))

  for name, seconds in in_turn({name: call(name) for name in steps}, _REPEATS.value).items():
    mebibytes = programs[name].memory_analysis().temp_size_in_bytes / 2**20
    print(f"{name:17} {1e3 * np.median(seconds):8.1f} ms  {mebibytes:8.1f} MiB")


if __name__ == "__main__":
  cli.run(main, uses_cache=False)
