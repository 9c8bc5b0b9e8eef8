"""Finite inputs create no NaN and no infinity, so `jax_debug_nans` and `jax_debug_infs` do not stop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import BLOCK_SIZES, SCORES, attend, draw

import attention
from attention import masks
from attention.linear import project

pytestmark = pytest.mark.slow

# The last mask leaves the first query, and all queries of the second sentence, fully masked.
MASKS = {
  "none": lambda: None,
  "causal": masks.causal,
  "empty rows": lambda: masks.causal(offset=-1) & masks.lengths(source=np.array([4, 0])),
}
ENGINES = {
  "dense": {"implementation": "dense", "return_weights": True},
  "blockwise": {"implementation": "blockwise"},
  "in blocks": {"implementation": "blockwise", "block_sizes": BLOCK_SIZES},
}


@pytest.fixture(autouse=True)
def debugging():
  with jax.debug_nans(True), jax.debug_infs(True):
    yield


@pytest.mark.parametrize(
  ("kind", "mask", "engine"),
  [
    *((kind, "empty rows", "blockwise") for kind in SCORES),
    ("scaled_dot_product", "empty rows", "in blocks"),
    ("additive", "empty rows", "dense"),
    ("scaled_dot_product", "none", "dense"),
    ("scaled_dot_product", "causal", "in blocks"),
  ],
)
def test_eager_calls_make_no_nan(kind, mask, engine):
  inputs = draw(kind)

  def run(inputs):
    options = {"dropout_rate": 0.1, "dropout_rng": jax.random.key(0)} | ENGINES[engine]
    return attend(inputs, mask=MASKS[mask](), **options)

  def loss(inputs):
    return sum(jnp.sum(array**2) for array in jax.tree.leaves(run(inputs)))

  # A call with a score of the user is not one program, so that the logsumexp of an empty row is seen.
  with jax.debug_infs(type(inputs.score).__module__.startswith("attention.")):
    jax.block_until_ready(run(inputs))
    jax.block_until_ready(jax.grad(loss)(inputs))
    jax.block_until_ready(jax.jvp(run, (inputs,), (inputs,)))


def test_other_functions_make_no_nan():
  vectors = np.ones((3, 5), np.float32)
  context, _, logsumexp = attention.scaled_dot_product_attention(
    vectors, vectors, vectors, return_logsumexp=True
  )

  def loss(context, logsumexp):
    merged = attention.merge_partials([(context, logsumexp), (context, 2 * logsumexp)])
    return sum(jnp.sum(array) for array in attention.add_sink(*merged, 0.5))

  jax.block_until_ready(jax.grad(loss, argnums=(0, 1))(context, logsumexp))
  scores = jnp.asarray(vectors)
  jax.block_until_ready(attention.masked_softmax(scores, masks.causal(offset=-1)))
  jax.block_until_ready(project(lambda inputs: inputs * 2, scores))


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_attended_nan_still_raises(implementation):
  _, queries, keys, values, _ = draw("scaled_dot_product")
  keys[1, 1] = np.nan
  with pytest.raises(FloatingPointError):
    attention.scaled_dot_product_attention(queries, keys, values, implementation=implementation)
