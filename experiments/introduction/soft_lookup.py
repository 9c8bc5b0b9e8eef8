"""Lesson 2: attention as a soft lookup, and a layer whose outputs have the shape of its inputs."""

import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import attention
from experiments.introduction.printing import formulas, title

CONCEPTS = ("cat", "dog", "bird")


def soft_lookup(query: list[float]) -> tuple[jax.Array, jax.Array]:
  """Returns the context [1 3] and weights [1 3] of a query. Keys and values are one-hot vectors.

      weights = softmax(query . keys), not scaled
      context = weights . values

  Args:
    query: three numbers, the scores of cat, dog and bird.

  >>> context, weights = soft_lookup([1.0, 10.0, 1.0])
  >>> weights.round(2).tolist()
  [[0.0, 1.0, 0.0]]
  """
  concepts = jnp.eye(len(CONCEPTS))
  attended = attention.scaled_dot_product_attention(
    jnp.array([query]), concepts, concepts, scale=1.0, return_weights=True
  )
  return attended.context, attended.weights


def same_shape(rng: jax.Array) -> dict[str, jax.Array]:
  """Runs attention with 4 heads of width 8 on inputs [B T D] and sources [B S D].

  >>> jax.eval_shape(same_shape, jax.random.key(0))["outputs"].shape
  (4, 10, 32)
  """
  inputs_rng, sources_rng, params_rng = jax.random.split(rng, 3)
  inputs = jax.random.normal(inputs_rng, (4, 10, 32))
  sources = jax.random.normal(sources_rng, (4, 10, 32))
  layer = attention.MultiHeadAttention(num_heads=4, qkv_features=32)
  outputs, variables = layer.init_with_output(params_rng, inputs, sources)
  return {"inputs": inputs, "sources": sources, "params": variables["params"], "outputs": outputs}


def lesson(rng: jax.Array, folder: pathlib.Path) -> Iterator[str]:
  """Yields the lines of the lesson."""
  del folder
  yield title("2. A soft lookup")
  yield "The better a key matches the query, the larger is the weight of its value. Without scaling:"
  yield formulas("weights = softmax(query . keys)")
  for name, query in (("dog", [1.0, 10.0, 1.0]), ("bird", [1.0, 1.0, 10.0])):
    _, weights = jax.jit(soft_lookup)(query)
    yield f"looking up {name}, {query}, in {list(CONCEPTS)}: {np.round(weights, 2)}"
  run = jax.jit(same_shape)(rng)
  yield ""
  yield "The outputs of multi-head attention have the shape of its inputs, so layers can be stacked:"
  yield f"4 heads: {run['inputs'].shape} -> {run['outputs'].shape}"
