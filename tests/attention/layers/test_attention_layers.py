"""Flax layers with a single head compute the formulas of their scores; local attention."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import model_reference as reference
from helpers.model_reference import compiled, float64, random_parameters

import attention

# C, E: widths of queries and sources. A: alignment.
DIMS = chex.Dimensions(B=2, T=5, S=7, C=13, E=17, D=19, A=11)
rng = np.random.default_rng(0)
QUERIES, SOURCES, VALUES = (rng.normal(size=DIMS[axes]).astype(np.float32) for axes in ("BTC", "BSE", "BSD"))
MASK = (rng.random(DIMS["BTS"]) < 0.6) | (np.arange(DIMS.S) == 3)
BIAS = rng.normal(size=DIMS["TS"]).astype(np.float32)
LAYERS = {
  "additive": attention.AdditiveAttention(DIMS.A),
  "dot_product": attention.DotProductAttention(DIMS.A, implementation="blockwise"),
  "bilinear": attention.BilinearAttention(),
  "cosine": attention.CosineAttention(DIMS.A),
  "local": attention.LocalAttention(),
}


def scores(name, params, queries, keys):
  """Returns the scores [B T S] in NumPy."""
  if name == "bilinear":
    return np.einsum("BTC,CE,BSE->BTS", queries, params["matrix"], keys)
  q, k = reference.linear(params["query"], queries), reference.linear(params["key"], keys)
  if name == "additive":
    return np.tanh(q[:, :, None] + k[:, None]) @ params["score_vector"]
  if name == "cosine":
    q, k = (params["scale"] ** 0.5 * x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
  return np.einsum("BTA,BSA->BTS", q, k) * (DIMS.A**-0.5 if name == "dot_product" else 1)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "local"])
def test_layers_match_their_formulas(name):
  layer = LAYERS[name]
  variables = jax.tree.map(jnp.abs, random_parameters(layer, QUERIES, SOURCES))  # a positive scale

  @jax.jit
  def run(variables):
    options = {"mask": MASK, "bias": BIAS}

    def loss(variables):
      results = layer.apply(variables, QUERIES, SOURCES, VALUES, return_weights=True, **options)
      return jnp.sum(results[0] ** 2), results

    return layer.apply(variables, QUERIES, SOURCES, **options), jax.grad(loss, has_aux=True)(variables)

  of_keys, (gradients, actual) = jax.device_get(run(variables))
  params, queries, sources, values = float64((variables["params"], QUERIES, SOURCES, VALUES))
  weights = reference.softmax(np.where(MASK, scores(name, params, queries, sources) + BIAS, -np.inf))
  desired = weights @ sources, (weights @ values, weights)
  chex.assert_trees_all_close((of_keys, actual), desired, rtol=1e-4, atol=1e-4)
  assert all(np.max(np.abs(leaf)) > 1e-3 for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("name", LAYERS)
def test_results_have_the_inputs_dtype(name):
  layer = LAYERS[name]
  halves = QUERIES.astype(jnp.bfloat16), SOURCES.astype(jnp.bfloat16)
  results, variables = jax.eval_shape(
    lambda: layer.init_with_output(jax.random.key(0), *halves, return_weights=True)
  )
  assert {leaf.dtype for leaf in jax.tree.leaves(results)} == {np.dtype(jnp.bfloat16)}
  assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}


def test_initial_parameters():
  @jax.jit
  def init(rng):
    inputs = jnp.ones((1, 31)), jnp.ones((1, 53))
    layers = attention.AdditiveAttention(1009), attention.CosineAttention(7)
    return [layer.init(rng, *inputs)["params"] for layer in layers]

  params, of_cosine = init(jax.random.key(0))
  arrays = params["query"]["kernel"], params["key"]["kernel"], params["score_vector"]
  for array, fan_in in zip(arrays, (31, 53, 1009), strict=True):
    # An estimated deviation has a relative error of 1 / sqrt(2 n).
    assert abs(np.std(array) * np.sqrt(fan_in) - 1) < 5 / np.sqrt(2 * array.size)
  assert of_cosine["scale"] == pytest.approx(7**0.5)


SPARSEMAX = attention.Sparsemax()


@pytest.mark.parametrize(
  ("layer", "message"),
  [
    (attention.AdditiveAttention(0), "features must be an integer of at least 1, got 0"),
    (attention.DotProductAttention(0), "features must be an integer of at least 1, got 0"),
    (attention.LocalAttention(window_radius=0.0), "window_radius must be above 0, got 0.0"),
    (attention.LocalAttention(window_radius=np.nan), "window_radius must be above 0, got nan"),
    (attention.LocalAttention(normalizer=SPARSEMAX), "must be None for local attention, got Sparsemax"),
    (
      attention.MonotonicAttention(3, normalizer=SPARSEMAX),
      "must be None for monotonic attention, got Sparsemax",
    ),
    (attention.LocationAwareAttention(3, num_filters=0), "num_filters must be an integer .*, got 0"),
    (attention.LocationAwareAttention(3, kernel_size=0), "kernel_size must be an integer .*, got 0"),
  ],
)
def test_invalid_fields_raise(layer, message):
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(layer.init, jax.random.key(0), QUERIES, SOURCES)


@pytest.mark.parametrize("name", LAYERS)
def test_integer_inputs_raise(name):
  integers = np.ones((5, 7), int)
  with pytest.raises(ValueError, match="floating"):
    jax.eval_shape(LAYERS[name].init, jax.random.key(0), integers, integers)


# Local attention.


def test_normalizers_apply_to_single_heads():
  layer = attention.BilinearAttention(normalizer=attention.Sigmoid())
  variables = {"params": {"matrix": jnp.zeros((13, 17))}}
  weights = compiled(layer, return_weights=True)(variables, QUERIES, SOURCES)[1]
  np.testing.assert_allclose(weights, np.full(DIMS["BTS"], 0.5), rtol=1e-6)


def test_local_weights_match_the_paper():
  layer, keys = attention.LocalAttention(window_radius=3.0), jnp.zeros((20, 4))
  variables = jax.tree.map(jnp.zeros_like, random_parameters(layer, keys, keys))
  mask = np.stack([np.full(20, True), np.arange(20) < 12])
  weights = compiled(layer, return_weights=True)(variables, keys[:2], keys, mask=mask)[1]
  # The center is sigmoid(0) = 1/2 of the length, 20 or 12; 7 keys are at distance of at most 3; the deviation
  # is half of that.
  distances = np.arange(20) - np.array([[10], [6]])
  desired = np.where(np.abs(distances) <= 3, np.exp(-(distances**2) / (2 * 1.5**2)) / 7, 0)
  np.testing.assert_allclose(weights, desired, rtol=1e-5)


def test_local_positions_are_exact_in_bfloat16():
  layer, rng = attention.LocalAttention(), np.random.default_rng(0)
  queries = rng.normal(size=(50, 4)).astype(jnp.bfloat16)
  halves = random_parameters(layer, queries, queries), queries, np.zeros((1000, 4), jnp.bfloat16)
  halves = jax.tree.map(lambda array: array.astype(jnp.bfloat16), halves)
  floats = jax.tree.map(lambda array: array.astype(jnp.float32), halves)
  actual, desired = (compiled(layer, return_weights=True)(*arguments)[1] for arguments in (halves, floats))
  np.testing.assert_allclose(actual.astype(jnp.float32), desired, atol=1e-3)


def test_local_attention_of_nan_queries():
  layer = attention.LocalAttention()
  variables = random_parameters(layer, QUERIES, SOURCES)
  broken = QUERIES.copy()
  broken[0, 1] = np.nan
  mask = np.full(DIMS["BTS"], True)
  mask[0, 1] = False

  @jax.jit
  def run(queries):
    def loss(variables, queries):
      return jnp.sum(layer.apply(variables, queries, SOURCES, mask=mask) ** 2)

    results = layer.apply(variables, queries, SOURCES, return_weights=True)
    return results, jax.grad(loss, argnums=(0, 1))(variables, queries)

  (results, gradients), (desired, desired_gradients) = jax.device_get((run(broken), run(QUERIES)))
  for actual, wanted in zip(results, desired, strict=True):
    assert np.all(np.isnan(actual[0, 1]))
    np.testing.assert_allclose(actual[0, [0, 2]], wanted[0, [0, 2]], rtol=1e-5)
    np.testing.assert_allclose(actual[1], wanted[1], rtol=1e-5)
  chex.assert_trees_all_equal(gradients, desired_gradients)
