"""Transformations of JAX, and what they must equal: plain calls of "dense"."""

import functools

import chex
import jax
import jax.numpy as jnp
from cases import GRADIENTS, random_like


def loss_of(function):
  return lambda arrays: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(function(arrays)))


def tangent_of(function, arrays):
  return jax.jvp(function, (arrays,), (random_like(arrays),))[1]


def stacked(arrays):
  """Returns two different arrays for each."""
  return jax.tree.map(lambda leaf: jnp.stack([leaf, -0.5 * leaf]), arrays)


def each(function, arrays):
  """Returns the stacked results of two calls."""
  calls = [function(jax.tree.map(lambda leaf, i=i: leaf[i], arrays)) for i in range(2)]
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *calls)


def scanned(function, arrays):
  return jax.lax.scan(lambda carry, one: (carry, function(one)), 0, arrays)[1]


# Each transforms a function and applies it; the second is what "dense" is compared with.
TRANSFORMATIONS = {
  "jit": (lambda f, x: f(x), lambda f, x: f(x)),
  "grad": (lambda f, x: jax.grad(loss_of(f))(x), lambda f, x: jax.grad(loss_of(f))(x)),
  "checkpoint": (lambda f, x: jax.grad(jax.checkpoint(loss_of(f)))(x), lambda f, x: jax.grad(loss_of(f))(x)),
  "forward_over_reverse": (
    lambda f, x: tangent_of(jax.grad(loss_of(f)), x),
    lambda f, x: tangent_of(jax.grad(loss_of(f)), x),
  ),
  "reverse_over_forward": (
    lambda f, x: jax.grad(lambda x: tangent_of(loss_of(f), x))(x),
    lambda f, x: tangent_of(jax.grad(loss_of(f)), x),
  ),
  "jacobians": (lambda f, x: (jax.jacfwd(f)(x), jax.jacrev(f)(x)), lambda f, x: (jax.jacrev(f)(x),) * 2),
  "vmap": (lambda f, x: jax.vmap(f)(stacked(x)), lambda f, x: each(f, stacked(x))),
  "vmap_of_grad": (
    lambda f, x: jax.vmap(jax.grad(loss_of(f)))(stacked(x)),
    lambda f, x: each(jax.grad(loss_of(f)), stacked(x)),
  ),
  "scan": (lambda f, x: scanned(f, stacked(x)), lambda f, x: each(f, stacked(x))),
}


def assert_equals_plain_calls(function, arrays, implementation, transformations=tuple(TRANSFORMATIONS)):
  """Asserts that transformations of function(arrays, implementation) equal plain calls with "dense"."""

  # One program compiles faster than one per transformation.
  @jax.jit
  def run(arrays):
    transformed = functools.partial(function, implementation=implementation)
    plain = functools.partial(function, implementation="dense")
    return {
      name: (TRANSFORMATIONS[name][0](transformed, arrays), TRANSFORMATIONS[name][1](plain, arrays))
      for name in transformations
    }

  for transformation, (actual, desired) in run(arrays).items():
    chex.assert_trees_all_close(actual, desired, **GRADIENTS, custom_message=transformation)
