"""Derivatives of attention at sizes at which compilers fuse, compared with "dense" in float64.

Results that are correct for 3 queries and 5 keys can be wrong for more: with jaxlib 0.10.2, many batched
derivatives of "blockwise" were off by up to 350 %, while all tests of small arrays passed.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attention
from attention import masks


class Size(NamedTuple):
  examples: int
  T: int
  S: int
  H: int
  D: int
  directions: int
  block_sizes: tuple[int, int]  # the last blocks extend beyond the end


LONG = Size(examples=2, T=512, S=512, H=16, D=8, directions=32, block_sizes=(128, 192))
MANY = Size(examples=4, T=16, S=16, H=8, D=8, directions=300, block_sizes=(7, 6))

SCORES = {
  "scaled_dot_product": (attention.ScaledDotProduct, ""),
  "additive": (attention.Additive, "H"),
  "bilinear": (attention.Bilinear, "HH"),
  "cosine": (attention.Cosine, ""),
}
# Implementations; "windows" computes no keys before a window, "blocks" many small tiles.
ENGINES = ("dense", "blockwise", "blocks", "windows")


def draw(kind, size):
  """Returns a score, queries, keys and values; and directions, each like these."""
  rng = np.random.default_rng(0)
  make, axes = SCORES[kind]

  def arrays(*leading):
    parameter = rng.normal(size=(*leading, *[size.H] * len(axes)))
    shapes = (size.T, size.H), (size.S, size.H), (size.S, size.D)
    vectors = [np.float32(rng.normal(size=(*leading, size.examples, *shape))) for shape in shapes]
    return make(np.float32(0.3 * np.abs(parameter))), *vectors

  return arrays(), arrays(size.directions)


def attend(engine, block_sizes, arrays):
  """Returns the context and the logsumexp; the first query is fully masked."""
  mask = masks.causal(offset=-1)
  if engine in ("windows", "dense in a window"):
    mask = mask & masks.sliding_window(40, 0)
  context, _, logsumexp = attention.attend(
    *arrays,
    mask=mask,
    return_logsumexp=True,
    implementation="dense" if engine.startswith("dense") else "blockwise",
    block_sizes=block_sizes if engine == "blocks" else None,
  )
  return context, jnp.where(logsumexp > -jnp.inf, logsumexp, 0)


def loss(outputs):
  context, logsumexp = outputs
  return jnp.sum(jnp.sin(context)) + jnp.sum(jnp.cos(logsumexp))


def tangent(f, x, direction):
  return jax.jvp(f, (x,), (direction,))[1]


def moved(x, directions, steps):
  """Returns arrays moved along each direction by a number of steps."""
  return jax.tree.map(lambda leaf, along: leaf + jnp.einsum("i,i...->...", steps, along), x, directions)


def first(directions):
  return jax.tree.map(lambda leaf: leaf[0], directions)


def gradient(f, x):
  return jax.grad(lambda x: loss(f(x)))(x)


def of_each_example(f, x):
  """Returns the gradients of each example, which share the score."""
  score, *vectors = x
  return jax.vmap(lambda *vectors: gradient(f, (score, *vectors)))(*vectors)


def zeros(directions):
  queries = directions[1]
  return jnp.zeros(len(queries), queries.dtype)


# Each takes a function of arrays x, the arrays, and directions.
DERIVATIVES = {
  "grad": lambda f, x, d: gradient(f, x),
  "jvp": lambda f, x, d: tangent(f, x, first(d)),
  "Hessian-vector": lambda f, x, d: tangent(lambda x: gradient(f, x), x, first(d)),
  "vmap of jvp": lambda f, x, d: jax.vmap(lambda one: tangent(f, x, one))(d),
  "vmap of Hessian-vector": lambda f, x, d: jax.vmap(lambda one: tangent(lambda x: gradient(f, x), x, one))(
    d
  ),
  "vmap of vjp": lambda f, x, d: jax.vmap(
    lambda scale: jax.grad(lambda x: loss([scale * o for o in f(x)]))(x)
  )(jnp.linspace(0.5, 1.5, len(d[1]), dtype=d[1].dtype)),
  "jacfwd": lambda f, x, d: jax.jacfwd(lambda steps: f(moved(x, d, steps)))(zeros(d)),
  "hessian": lambda f, x, d: jax.hessian(lambda steps: loss(f(moved(x, d, steps))))(zeros(d)),
  "grad of each example": lambda f, x, d: of_each_example(f, x),
}


def check(kind, engine, name, size):
  """Asserts that a derivative, compiled with default options, equals that of "dense" in float64."""
  arrays, directions = draw(kind, size)

  def run(engine, arrays, directions):
    return DERIVATIVES[name](lambda x: attend(engine, size.block_sizes, x), arrays, directions)

  run = jax.jit(run, static_argnums=0)
  actual = run(engine, arrays, directions)
  with jax.enable_x64(True):
    exact = jax.tree.map(np.float64, (arrays, directions))
    desired = run("dense in a window" if engine == "windows" else "dense", *exact)
  for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(desired), strict=True):
    # Gradients of a single parameter are sums of half a million terms with cancellation: errors of 4e-5 were
    # seen. Errors of compilers were larger than 0.5.
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * np.max(np.abs(other)), err_msg=name)
