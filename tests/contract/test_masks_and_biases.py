"""Masks in all forms, and biases."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, FLOAT32, Inputs, attend, attend_fully, draw, expected, replaced

import attention
from attention import masks

B, N, T, S = DIMS["BNTS"]

SOURCE_LENGTHS = np.array([2, 5])
TARGET_LENGTHS = np.array([3, 1])
TARGET_SEGMENTS = np.array([[0, 1, 1], [4, 0, 2]])
SOURCE_SEGMENTS = np.array([[1, 1, 0, 0, 3], [0, 0, 0, 2, 2]])
ALLOWED = np.random.default_rng(3).random((B, N, T, S)) < 0.5


def over_heads(array):
  return jnp.asarray(array)[:, None]


# Masks, and whether target t may attend to source s in head n of batch b.
MASKS = {
  "causal": (lambda: masks.causal(), lambda b, n, t, s: s <= t),
  "causal_ahead": (lambda: masks.causal(2), lambda b, n, t, s: s <= t + 2),
  "causal_behind": (lambda: masks.causal(offset=-1), lambda b, n, t, s: s <= t - 1),
  "sliding_window": (lambda: masks.sliding_window(1, 2), lambda b, n, t, s: t - 1 <= s <= t + 2),
  "sliding_window_of_one": (lambda: masks.sliding_window(before=0, after=0), lambda b, n, t, s: s == t),
  "prefix": (lambda: masks.prefix(2), lambda b, n, t, s: s < 2),
  "source_lengths": (
    lambda: masks.lengths(source=over_heads(SOURCE_LENGTHS)),
    lambda b, n, t, s: s < SOURCE_LENGTHS[b],
  ),
  "target_lengths": (
    lambda: masks.lengths(target=over_heads(TARGET_LENGTHS)),
    lambda b, n, t, s: t < TARGET_LENGTHS[b],
  ),
  "both_lengths": (
    lambda: masks.lengths(source=over_heads(SOURCE_LENGTHS), target=over_heads(TARGET_LENGTHS)),
    lambda b, n, t, s: s < SOURCE_LENGTHS[b] and t < TARGET_LENGTHS[b],
  ),
  "one_length": (lambda: masks.lengths(source=jnp.asarray(3)), lambda b, n, t, s: s < 3),
  "segments": (
    lambda: masks.segments(target=over_heads(TARGET_SEGMENTS), source=over_heads(SOURCE_SEGMENTS)),
    lambda b, n, t, s: TARGET_SEGMENTS[b, t] == SOURCE_SEGMENTS[b, s],
  ),
  "from_array": (lambda: masks.from_array(jnp.asarray(ALLOWED)), lambda b, n, t, s: ALLOWED[b, n, t, s]),
  "from_function": (
    lambda: masks.from_function(lambda t, s: (s - t) % 3 != 1),
    lambda b, n, t, s: (s - t) % 3 != 1,
  ),
  "from_function_of_arrays": (
    lambda: ~masks.from_function(lambda t, s: jnp.asarray(ALLOWED)[..., t, s]) | masks.causal(),
    lambda b, n, t, s: not ALLOWED[b, n, t, s] or s <= t,
  ),
  "array": (lambda: jnp.asarray(ALLOWED), lambda b, n, t, s: ALLOWED[b, n, t, s]),
  "array_of_batches": (lambda: jnp.asarray(ALLOWED[:, :1]), lambda b, n, t, s: ALLOWED[b, 0, t, s]),
  "array_of_sources": (lambda: jnp.asarray(ALLOWED[0, 0, 0]), lambda b, n, t, s: ALLOWED[0, 0, 0, s]),
  "array_of_targets": (lambda: jnp.asarray(ALLOWED[:, :1, :, :1]), lambda b, n, t, s: ALLOWED[b, 0, t, 0]),
  "and": (
    lambda: masks.causal(1) & masks.lengths(source=over_heads(SOURCE_LENGTHS)),
    lambda b, n, t, s: s <= t + 1 and s < SOURCE_LENGTHS[b],
  ),
  "or": (lambda: masks.prefix(2) | masks.sliding_window(0, 1), lambda b, n, t, s: s < 2 or t <= s <= t + 1),
  "not": (
    lambda: ~masks.lengths(source=over_heads(SOURCE_LENGTHS)),
    lambda b, n, t, s: not s < SOURCE_LENGTHS[b],
  ),
  "all_together": (
    lambda: (masks.causal() & ~masks.prefix(1)) | masks.from_array(jnp.asarray(ALLOWED[0])),
    lambda b, n, t, s: (s <= t and not s < 1) or ALLOWED[0, n, t, s],
  ),
}


def allowed_pairs(may_attend, shape=(B, N, T, S)):
  return np.array([bool(may_attend(*index)) for index in np.ndindex(*shape)]).reshape(shape)


@pytest.mark.parametrize("name", [name for name in MASKS if not name.startswith("array")])
def test_mask_arrays_match_their_rules(name):
  mask, may_attend = MASKS[name]
  array = jax.jit(lambda mask: mask.materialize(T, S))(mask())
  assert array.dtype == bool
  assert array.ndim >= 2
  chex.assert_trees_all_equal(np.broadcast_to(array, (B, N, T, S)), allowed_pairs(may_attend))


# "dense" materializes masks first, so that few are enough.
ATTENDED = [
  *(("causal_behind", "dense"), ("from_function_of_arrays", "dense"), ("array_of_sources", "dense")),
  *((name, "blockwise") for name in MASKS),
]


@pytest.fixture(scope="module")
def inputs():
  return draw("scaled_dot_product", "BNTH", "BNSH", "NSD", bias=None)


@pytest.fixture(scope="module")
def results(inputs):
  """Returns the results by mask and engine, computed as one program, which compiles faster than many."""

  @jax.jit
  def run(inputs, every_mask):
    return {
      (name, engine): attend_fully(inputs, mask=every_mask[name], implementation=engine)
      for name, engine in ATTENDED
    }

  return run(inputs, {name: make() for name, (make, _) in MASKS.items()})


@pytest.mark.parametrize(("name", "implementation"), ATTENDED)
def test_queries_attend_to_allowed_keys(name, implementation, inputs, results):
  actual = results[name, implementation]
  desired = expected("scaled_dot_product", inputs, mask=allowed_pairs(MASKS[name][1]))
  chex.assert_trees_all_close(actual, desired, **FLOAT32)
  chex.assert_trees_all_equal(actual.weights == 0, desired.weights == 0)


@pytest.mark.parametrize(("T", "S"), [(3, 5), (5, 3), (1, 1), (1, 7), (0, 2), (2, 0)])
def test_positions_start_at_zero(T, S):
  @jax.jit
  def arrays(offset):
    width = abs(offset)
    made = [
      masks.causal(offset),
      masks.sliding_window(width, 0),
      masks.sliding_window(0, width),
      masks.prefix(width),
      masks.lengths(source=width, target=2),
    ]
    return [mask.materialize(T, S) for mask in made]

  for offset in (-9, -2, -1, 0, 1, 9):
    width = abs(offset)
    rules = [
      lambda t, s, offset=offset: s <= t + offset,
      lambda t, s, width=width: t - width <= s <= t,
      lambda t, s, width=width: t <= s <= t + width,
      lambda t, s, width=width: s < width,
      lambda t, s, width=width: s < width and t < 2,
    ]
    for array, may_attend in zip(arrays(offset), rules, strict=True):
      chex.assert_trees_all_equal(array, allowed_pairs(may_attend, (T, S)))


def test_joined_masks_broadcast():
  mask = masks.lengths(source=jnp.asarray(SOURCE_LENGTHS)[:, None]) & masks.from_array(
    jnp.asarray(ALLOWED[0])
  )
  desired = allowed_pairs(lambda b, n, t, s: s < SOURCE_LENGTHS[b] and ALLOWED[0, n, t, s])
  chex.assert_trees_all_equal(mask.materialize(T, S), desired)


def test_lengths_make_a_batch_of_masks():
  array = masks.lengths(source=jnp.asarray(SOURCE_LENGTHS)).materialize(T, S)
  desired = allowed_pairs(lambda b, t, s: s < SOURCE_LENGTHS[b], (B, T, S))
  chex.assert_trees_all_equal(np.broadcast_to(array, (B, T, S)), desired)


@pytest.mark.parametrize("join", ["&", "|"])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_arrays_join_masks_on_either_side(join, array):
  allowed, prefix = array(ALLOWED[0, 0]), masks.prefix(2)
  first_two = np.arange(S) < 2
  if join == "&":
    joined, desired = (allowed & prefix, prefix & allowed), ALLOWED[0, 0] & first_two
  else:
    joined, desired = (allowed | prefix, prefix | allowed), ALLOWED[0, 0] | first_two
  for mask in joined:
    assert isinstance(mask, attention.Mask)
    chex.assert_trees_all_equal(mask.materialize(T, S), desired)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("kind", ["scaled_dot_product", "user_defined"])
def test_masked_keys_equal_deleted_keys(kind, implementation):
  kept = np.array([True, False, True, True, False])
  inputs = draw(kind)
  actual = attend_fully(inputs, mask=np.broadcast_to(kept, (B, T, S)), implementation=implementation)
  deleted = inputs._replace(
    keys=inputs.keys[:, kept], values=inputs.values[:, kept], bias=inputs.bias[:, kept]
  )
  desired = attend_fully(deleted, implementation="dense")
  chex.assert_trees_all_close(actual._replace(weights=actual.weights[..., kept]), desired, **FLOAT32)
  chex.assert_trees_all_equal(actual.weights[..., ~kept], np.zeros((B, T, 2), np.float32))


@pytest.mark.parametrize("score", [-1e4, -1e30, -3e38, 2e4])
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_masking_uses_no_finite_score(score, implementation):
  # A single allowed key with any score has weight 1, also if the masked score is far above or below it.
  keys, values = np.float32([[score], [0.0]]), np.float32([[7.0], [11.0]])
  inputs = Inputs(attention.ScaledDotProduct(1.0), np.float32([[1.0]]), keys, values)
  context, weights, logsumexp = attend_fully(
    inputs, mask=np.array([True, False]), implementation=implementation
  )
  chex.assert_trees_all_equal(weights, np.float32([[1.0, 0.0]]))
  chex.assert_trees_all_equal(context, np.float32([[7.0]]))
  chex.assert_trees_all_equal(logsumexp, np.float32([score]))
  weights = attend_fully(inputs, mask=np.array([False, True]), implementation=implementation).weights
  chex.assert_trees_all_equal(weights, np.float32([[0.0, 1.0]]))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_masked_softmax_ignores_masked_scores(dtype):
  mask = ALLOWED[0, 0] & np.array([[True], [False], [True]])
  scores = np.random.default_rng(0).normal(size=(B, N, T, S)).astype(dtype)
  exponentials = np.where(mask, np.exp(scores.astype(np.float64)), 0)
  totals = exponentials.sum(axis=-1, keepdims=True)
  desired = exponentials / np.where(totals == 0, 1, totals)
  tolerance = 4e-6 if dtype == jnp.float32 else 2.0**-8
  for given in (scores, replaced(scores, np.broadcast_to(~mask, scores.shape), np.nan)):
    weights = attention.masked_softmax(given, mask)
    assert weights.dtype == dtype
    np.testing.assert_allclose(np.float64(weights), desired, rtol=tolerance, atol=tolerance)


def test_masked_softmax_gradient():
  mask = (np.arange(T) != 1)[:, None]
  scores = np.random.default_rng(0).normal(size=(T, S)).astype(np.float32)
  slopes = jax.grad(lambda scores: jnp.sum(attention.masked_softmax(scores, mask) ** 2))(scores)
  p = np.exp(scores.astype(np.float64))
  p = np.where(mask, p / p.sum(axis=-1, keepdims=True), 0)
  # d sum(p^2) / d score_j = 2 p_j (p_j - sum(p^2)).
  np.testing.assert_allclose(slopes, 2 * p * (p - np.sum(p**2, axis=-1, keepdims=True)), **FLOAT32)
  chex.assert_trees_all_equal(slopes[1], np.zeros(S, np.float32))


def test_bounds_of_any_integer_dtype():
  desired = masks.sliding_window(1, 0).materialize(3, 3)
  for kind in (np.uint8, np.int8, np.uint32):
    chex.assert_trees_all_equal(masks.sliding_window(kind(1), kind(0)).materialize(3, 3), desired)
    bounds = np.array([1], kind), np.array([0], kind)
    chex.assert_trees_all_equal(masks.sliding_window(*bounds).materialize(3, 3)[0], desired)
  assert not np.any(masks.sliding_window(-(2**31), 2**31 - 1).materialize(3, 3))


def test_largest_bounds_allow_everything():
  greatest = np.iinfo(np.int32).max
  chex.assert_trees_all_equal(masks.causal(greatest).materialize(3, 5), np.ones((3, 5)))
  chex.assert_trees_all_equal(masks.causal(-greatest).materialize(3, 5), np.zeros((3, 5)))
  window = masks.sliding_window(greatest, greatest)
  chex.assert_trees_all_equal(window.materialize(3, 5), np.ones((3, 5)))
  chex.assert_trees_all_equal(masks.sliding_window(0, greatest).materialize(3, 5), np.triu(np.ones((3, 5))))


def test_masks_accept_lists():
  np.testing.assert_array_equal(
    masks.lengths(source=[1, 2]).materialize(1, 3), masks.lengths(source=np.array([1, 2])).materialize(1, 3)
  )
  np.testing.assert_array_equal(
    (masks.segments([0, 1], [0, 0, 1]) & [True, False, True]).materialize(2, 3), [[1, 0, 0], [0, 0, 1]]
  )


# Biases: arrays, and functions of the two indices.

RANDOM = np.random.default_rng(2)
ARRAYS = {axes: np.float32(RANDOM.normal(size=DIMS[axes])) for axes in ("", "S", "T1", "N1S", "B1TS", "BNTS")}
SLOPES = RANDOM.uniform(size=(N, 1, 1)).astype(np.float32)
FUNCTIONS = {
  "table": lambda t, s: jnp.asarray(ARRAYS["BNTS"])[..., t, s],
  "slopes": lambda t, s: SLOPES * (t - s)[None].astype(jnp.float32),
  "target": lambda t, s: t.astype(jnp.float32) / 3,
  "source": lambda t, s: s.astype(jnp.float32) / 3,
  "masking": lambda t, s: jnp.where(s <= t, 0.5, -jnp.inf),
}


@pytest.fixture(scope="module")
def results_by_bias(inputs):
  """Returns the results by bias and engine, computed as one program."""

  @jax.jit
  def run(inputs):
    return {
      (name, engine): attend_fully(inputs._replace(bias=bias), implementation=engine)
      for name, bias in (ARRAYS | FUNCTIONS).items()
      for engine in ("dense", "blockwise")
    }

  return run(inputs)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("name", [*ARRAYS, *FUNCTIONS])
def test_biases_are_added_to_scores(name, implementation, inputs, results_by_bias):
  t, s = np.arange(T)[:, None], np.arange(S)[None]
  array = ARRAYS[name] if name in ARRAYS else FUNCTIONS[name](t, s)
  bias = np.broadcast_to(array, (B, N, T, S))
  desired = expected("scaled_dot_product", inputs._replace(bias=bias))
  # Biases of up to 5 in size.
  chex.assert_trees_all_close(results_by_bias[name, implementation], desired, rtol=8e-6, atol=8e-6)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_bias_functions_get_integer_indices(implementation):
  indices = []

  def bias(t, s):
    indices.append((t, s))
    return (t - s).astype(jnp.float32)

  attend(draw("cosine")._replace(bias=bias), implementation=implementation)
  assert indices
  for t, s in indices:
    assert t.ndim == s.ndim == 2 and t.shape[1] == s.shape[0] == 1
    assert jnp.issubdtype(t.dtype, jnp.integer) and jnp.issubdtype(s.dtype, jnp.integer)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.usefixtures("float64")
def test_bias_below_score_range_masks(implementation):
  lowest = np.finfo(np.float64).min
  inputs = draw("scaled_dot_product")
  bias = replaced(np.float64(inputs.bias), np.s_[:, 2], lowest)
  bias[1] = lowest
  desired = expected("scaled_dot_product", inputs._replace(bias=np.where(bias == lowest, -np.inf, bias)))
  given = inputs._replace(keys=replaced(inputs.keys, np.s_[:, 2], np.nan), bias=bias)
  chex.assert_trees_all_close(attend_fully(given, implementation=implementation), desired, **FLOAT32)
