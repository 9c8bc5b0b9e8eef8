"""Points 2 to 9 of the contract for all normalizers, on both engines."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import (
  BLOCK_SIZES,
  DIFFERENCES,
  DIMS,
  ENGINES,
  FLOAT32,
  SCORES,
  always,
  assert_close,
  assert_trees_close,
  assert_trees_equal,
  assert_trees_finite,
  draw,
  replaced,
)

import attention

B, T, S = DIMS["BTS"]
RNG = np.random.default_rng(7)
BEFORE = RNG.dirichlet(np.ones(S), size=(B, T))
CENTERS = RNG.uniform(0, S - 1, size=(B, T))
SINK = RNG.normal(size=B)


class Case(NamedTuple):
  """A normalizer as a function of the arrays with gradients, and the reference's formula."""

  make: Any
  formula: Any
  arrays: tuple[np.ndarray, ...] = ()


NORMALIZERS = {
  "softmax": Case(attention.Softmax, lambda: reference.softmax),
  "sink": Case(attention.Softmax, reference.softmax_with_sink, (SINK,)),
  "sparsemax": Case(attention.Sparsemax, lambda: reference.entmax(2.0)),
  "entmax15": Case(attention.Entmax15, lambda: reference.entmax(1.5)),
  "sigmoid": Case(attention.Sigmoid, lambda: reference.sigmoid),
  "sigmoid_less_log_keys": Case(
    lambda: attention.Sigmoid(subtract_log_length=True), lambda: reference.sigmoid_less_log_keys
  ),
  "softpick": Case(attention.Softpick, lambda: reference.softpick),
  "stick_breaking": Case(attention.StickBreaking, lambda: reference.stick_breaking),
  "monotonic": Case(attention.Monotonic, reference.monotonic, (BEFORE,)),
  "local": Case(
    lambda centers: attention.GaussianWindow(centers, 1.5),
    lambda centers: reference.local(centers, 1.5),
    (CENTERS,),
  ),
}
# Normalizers whose derivatives differ most.
DIFFERENT = ("sink", "sparsemax", "entmax15", "softpick", "stick_breaking", "monotonic", "local")
ON_ENGINES = [
  (name, engine) for name in NORMALIZERS for engine in ENGINES if (name, engine) != ("monotonic", "blockwise")
]
normalizers = pytest.mark.parametrize(("normalizer", "implementation"), ON_ENGINES)
scores = pytest.mark.parametrize(
  "kind", always("scaled_dot_product", of=["scaled_dot_product", "additive", "cosine"])
)


def draw_mask():
  """Returns a mask whose row 1 of batch 1 is empty."""
  mask = np.random.default_rng(3).random((B, T, S)) < 0.7
  mask[1, 1], mask[0, 0] = False, True
  return mask


def draw_inputs(kind, normalizer):
  """Returns Inputs with scores that differ by several units, so that sparse weights have zeros, and the
  arrays.
  """
  inputs = draw(kind, "BTH", "BSH", "BSD", bias="BTS")
  arrays = tuple(array.astype(np.float32) for array in NORMALIZERS[normalizer].arrays)
  return inputs._replace(bias=2 * inputs.bias), arrays


def run(kind, normalizer, inputs, arrays, mask=None, implementation="dense", **options):
  """Returns context and weights."""
  result = attention.attend(
    SCORES[kind].score(**inputs.parameters),
    *inputs[:3],
    bias=inputs.bias,
    mask=mask,
    normalizer=NORMALIZERS[normalizer].make(*arrays),
    return_weights=True,
    implementation=implementation,
    block_sizes=BLOCK_SIZES,
    **options,
  )
  return result.context, result.weights


def results_and_gradients(kind, normalizer, inputs, arrays, mask, of_loss, implementation):
  """Returns context, weights and gradients, with all normalizers compiled as one program to save time."""
  every_array = {name: tuple(map(np.float32, case.arrays)) for name, case in NORMALIZERS.items()}
  every_array[normalizer] = arrays
  return _results_and_gradients(kind, inputs, every_array, mask, of_loss)[normalizer, implementation]


@functools.partial(jax.jit, static_argnums=0)
def _results_and_gradients(kind, inputs, arrays, mask, of_loss):
  def one(normalizer, implementation):
    results, pull = jax.vjp(
      lambda *args: run(kind, normalizer, *args, mask, implementation), inputs, arrays[normalizer]
    )
    return results, pull(tuple(array.astype(out.dtype) for array, out in zip(of_loss, results, strict=True)))

  return {pair: one(*pair) for pair in ON_ENGINES}


def expected(kind, normalizer, inputs, arrays, **options):
  arrays = (np.asarray(array).astype(np.float64) for array in arrays)
  result = reference.attend(
    SCORES[kind].pair_score,
    *inputs[:3],
    bias=inputs.bias,
    normalize=NORMALIZERS[normalizer].formula(*arrays),
    **inputs.parameters,
    **options,
  )
  return result.context, result.weights


def random_loss(seed=1):
  rng = np.random.default_rng(seed)
  return rng.normal(size=DIMS["BTD"]), rng.normal(size=DIMS["BTS"])


# Scores (1, 0, -1): the softmax is e^z / (e + 1 + 1/e); sparsemax: threshold 0, weights (1, 0, 0);
# entmax15 of halves (1/2, 0, -1/2): (1/2 - t)^2 + t^2 = 1, t = (1 - sqrt(7)) / 4 = -0.41144, and
# (0.91144^2, 0.41144^2, 0); sigmoid: 1 / (1 + 1/e), 1/2, 1 / (1 + e);
# sink: e / (e + 1 + 1/e + e^2), and so on; softpick: (e - 1) / (e - 1 + 1 - 1/e) = 1 / (1 + 1/e);
# stick_breaking from the last key: p3, p2 (1 - p3), p1 (1 - p2) (1 - p3);
# less log 3: 1 / (1 + 3/e), 1/4, 1 / (1 + 3e); monotonic from the first key: p1,
# (1 - p1) p2, (1 - p1)(1 - p2) p3; local around key 1 with deviation 1: times exp(-1/2), 1, exp(-1/2).
HAND_VALUES = {
  "softmax": (attention.Softmax(), [0.66524096, 0.24472847, 0.09003057]),
  "sink": (attention.Softmax(sink=2.0), [0.23688282, 0.08714432, 0.03205860]),
  "off_by_one": (attention.Softmax(sink=0.0), [0.53444665, 0.19661193, 0.07232949]),
  "softpick": (attention.Softpick(), [0.73105803, 0.0, 0.0]),
  "stick_breaking": (attention.StickBreaking(), [0.26722332, 0.36552929, 0.26894142]),
  "sparsemax": (attention.Sparsemax(), [1.0, 0.0, 0.0]),
  "entmax15": (attention.Entmax15(), [0.83071891, 0.16928109, 0.0]),
  "sigmoid": (attention.Sigmoid(), [0.73105858, 0.5, 0.26894142]),
  "sigmoid_less_log_keys": (attention.Sigmoid(subtract_log_length=True), [0.47536689, 0.25, 0.10923178]),
  "monotonic": (
    attention.Monotonic(np.float32([[1.0, 0.0, 0.0]])),
    [0.73105858, 0.13447071, 0.03616437],
  ),
  "hard": (attention.Monotonic(np.float32([[0.0, 1.0, 0.0]]), hard=True), [0.0, 1.0, 0.0]),
  "local": (attention.GaussianWindow(np.float32([1.0]), 1.0), [0.40348918, 0.24472847, 0.05460630]),
}


@pytest.mark.parametrize("normalizer", HAND_VALUES)
def test_weights_match_hand_values(normalizer):
  normalizer, weights = HAND_VALUES[normalizer]
  queries, keys = np.float32([[1.0]]), np.float32([[1.0], [0.0], [-1.0]])
  result = attention.attend(
    attention.ScaledDotProduct(1.0), queries, keys, keys, normalizer=normalizer, return_weights=True
  )
  assert_close(result.weights, [weights], FLOAT32)
  assert_close(result.context, [[weights[0] - weights[2]]], FLOAT32)


@pytest.mark.parametrize("implementation", ENGINES)
def test_softpick_of_small_scores(implementation):
  # (e^x - 1) / (sum of |e^x - 1| + epsilon) of x = 1e-6 (1, 2, -1) and epsilon = 1e-6: 1 / 5, 2 / 5, 0.
  keys = np.float32([[1e-6], [2e-6], [-1e-6]])
  context = attention.attend(
    attention.ScaledDotProduct(1.0),
    np.ones((1, 1), np.float32),
    keys,
    np.eye(3, dtype=np.float32),
    normalizer=attention.Softpick(),
    implementation=implementation,
    block_sizes=(1, 2),
  )
  np.testing.assert_allclose(context, [[0.2, 0.4, 0]], rtol=3e-6)


@normalizers
@scores
def test_results_match_reference(kind, normalizer, implementation):
  inputs, arrays = draw_inputs(kind, normalizer)
  for mask in (draw_mask(), np.ones((B, T, S), bool)):
    result, _ = results_and_gradients(kind, normalizer, inputs, arrays, mask, random_loss(), implementation)
    assert_trees_close(result, expected(kind, normalizer, inputs, arrays, mask=mask), FLOAT32)
  # Some weights must be zero for the sparse normalizers; otherwise this does not test the threshold.
  are_sparse = normalizer in ("sparsemax", "entmax15", "softpick")
  assert are_sparse == bool(np.any(np.asarray(result[1]) == 0))


def loss_of(normalizer, of_loss, mask, implementation):
  """Returns a function of inputs and arrays, with additive scores."""

  def loss(inputs, arrays):
    result = run("additive", normalizer, inputs, arrays, mask, implementation)
    return sum(jnp.sum(one * other) for one, other in zip(of_loss, result, strict=True))

  return loss


@jax.jit
def derivatives(inputs, arrays, directions, mask, of_loss):
  """Returns the gradient, the tangent and the Hessian-vector product of each normalizer that has arrays."""

  def one(normalizer, implementation):
    loss = loss_of(normalizer, of_loss, mask, implementation)
    at, along = (inputs, arrays[normalizer]), directions[normalizer]
    gradient, second = jax.jvp(jax.grad(loss, argnums=(0, 1)), at, along)
    return gradient, jax.jvp(loss, at, along)[1], second

  return {pair: one(*pair) for pair in ON_ENGINES if pair[0] in arrays}


@pytest.mark.parametrize(
  ("normalizer", "implementation"),
  always(*(pair for pair in ON_ENGINES if pair[0] in DIFFERENT), of=ON_ENGINES),
)
def test_derivatives_match_reference(normalizer, implementation, float64):
  kind = "additive"
  inputs, arrays = jax.tree.map(np.float64, draw_inputs(kind, normalizer))
  arrays = NORMALIZERS[normalizer].arrays
  mask, of_loss = draw_mask(), random_loss()
  rng = np.random.default_rng(5)
  leaves, structure = jax.tree.flatten((inputs, arrays))
  direction = jax.tree.unflatten(structure, [np.asarray(rng.normal(size=leaf.shape)) for leaf in leaves])
  names = DIFFERENT if normalizer in DIFFERENT else NORMALIZERS.keys() - DIFFERENT
  every_array = {name: NORMALIZERS[name].arrays for name in names}
  directions = {name: (direction[0], tuple(map(np.ones_like, given))) for name, given in every_array.items()}
  directions[normalizer] = direction

  def differentiate(inputs, arrays):
    return derivatives(inputs, every_array | {normalizer: arrays}, directions, mask, of_loss)[
      normalizer, implementation
    ]

  def moved(step):
    return jax.tree.map(lambda leaf, along: leaf + step * along, (inputs, arrays), direction)

  def along(step):
    return sum(
      np.sum(one * other)
      for one, other in zip(of_loss, expected(kind, normalizer, *moved(step), mask=mask), strict=True)
    )

  step = 1e-5
  desired = (along(step) - along(-step)) / (2 * step)
  gradient, by_forward, second = differentiate(inputs, arrays)
  by_reverse = sum(
    np.sum(one * other)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
  )
  np.testing.assert_allclose([by_reverse, by_forward], desired, rtol=DIFFERENCES, atol=10 * DIFFERENCES)

  ahead, behind = differentiate(*moved(step))[0], differentiate(*moved(-step))[0]
  differences = jax.tree.map(lambda one, other: (one - other) / (2 * step), ahead, behind)
  assert_trees_close(second, differences, 100 * DIFFERENCES)


@normalizers
@scores
def test_masked_keys_never_leak(kind, normalizer, implementation):
  inputs, arrays = draw_inputs(kind, normalizer)
  mask, of_loss = draw_mask(), random_loss()
  mask[:, :, 2] = False
  clean, slopes = results_and_gradients(kind, normalizer, inputs, arrays, mask, of_loss, implementation)
  assert_trees_finite((clean, slopes))
  np.testing.assert_array_equal(clean[0][1, 1], 0)
  np.testing.assert_array_equal(clean[1][1, 1], 0)
  np.testing.assert_array_equal(slopes[0].queries[1, 1], 0)
  np.testing.assert_array_equal(slopes[0].keys[:, 2], 0)
  for value in (np.nan, np.inf):
    spoilt = inputs._replace(
      keys=replaced(inputs.keys, np.s_[:, 2], value), values=replaced(inputs.values, np.s_[:, 2], value)
    )
    assert_trees_equal(
      results_and_gradients(kind, normalizer, spoilt, arrays, mask, of_loss, implementation), (clean, slopes)
    )


@normalizers
def test_attended_nan_makes_the_row_nan(normalizer, implementation):
  inputs, arrays = draw_inputs("scaled_dot_product", normalizer)
  mask = np.ones((B, T, S), bool)
  mask[0, 0, 2] = False
  spoilt = inputs._replace(keys=replaced(inputs.keys, (0, 2), np.nan))
  (context, weights), slopes = results_and_gradients(
    "scaled_dot_product", normalizer, spoilt, arrays, mask, random_loss(), implementation
  )
  assert np.all(np.isnan(context[0, 1:])) and np.all(np.isnan(weights[0, 1:]))
  assert_trees_finite((context[0, 0], context[1], weights[1], slopes))
  np.testing.assert_array_equal(slopes[0].queries[0, 1:], 0)


@normalizers
def test_scores_of_ten_thousand_stay_exact(normalizer, implementation):
  inputs, arrays = draw_inputs("scaled_dot_product", normalizer)
  inputs = inputs._replace(bias=1e4 * np.round(inputs.bias))  # exact in float32
  (context, weights), slopes = results_and_gradients(
    "scaled_dot_product", normalizer, inputs, arrays, draw_mask(), random_loss(), implementation
  )
  desired = expected("scaled_dot_product", normalizer, inputs, arrays, mask=draw_mask())
  # A score of 1e4 is rounded to 1e-3.
  assert_trees_close((context, weights), desired, 2e-3)
  assert_trees_finite(slopes)


@pytest.mark.parametrize("normalizer", always("entmax15", "monotonic", "local", of=NORMALIZERS))
def test_half_precision_computes_in_float32(normalizer):
  inputs, arrays = draw_inputs("scaled_dot_product", normalizer)
  halves = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), inputs)
  context, weights = run("scaled_dot_product", normalizer, halves, arrays)
  assert context.dtype == weights.dtype == jnp.bfloat16
  back = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), halves)
  desired = expected("scaled_dot_product", normalizer, back, arrays)
  assert_trees_close(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (context, weights)), desired, 2**-7)


@pytest.mark.parametrize("normalizer", always("sparsemax", "monotonic", "local", of=NORMALIZERS))
def test_vmap_and_eager_match_reference(normalizer):
  inputs, arrays = draw_inputs("scaled_dot_product", normalizer)
  function = functools.partial(run, "scaled_dot_product", normalizer)
  whole = expected("scaled_dot_product", normalizer, inputs, arrays)
  assert_trees_close(function(inputs, arrays), whole, FLOAT32)
  axes = inputs._replace(queries=0, keys=0, values=0, parameters=dict.fromkeys(inputs.parameters), bias=0)
  one_by_one = jax.jit(jax.vmap(function, in_axes=(axes, 0)))(inputs, arrays)
  assert_trees_close(one_by_one, whole, FLOAT32)


@pytest.mark.parametrize("normalizer", always("sigmoid", "local", of=NORMALIZERS))
def test_dropout_multiplies_the_weights(normalizer):
  inputs, arrays = draw_inputs("scaled_dot_product", normalizer)
  options = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(3)}
  context, weights = run("scaled_dot_product", normalizer, inputs, arrays, **options)
  assert_close(weights, run("scaled_dot_product", normalizer, inputs, arrays)[1], FLOAT32)
  by_softmax = run("scaled_dot_product", "softmax", inputs, (), **options)[0]
  kept = _kept(options["dropout_rng"])
  assert_close(
    context,
    np.einsum("BTS,BSD->BTD", weights * kept.astype(np.float32) / np.float32(0.5), inputs.values),
    8 * FLOAT32,
  )
  assert not np.allclose(context, by_softmax) or normalizer == "softmax"


def _kept(rng):
  """Returns which pairs are kept, from attention to values that identify their keys."""
  zeros = jnp.zeros(DIMS["BTS"])
  values = jnp.broadcast_to(jnp.eye(S), (B, S, S))
  return (
    attention.attend(
      attention.ScaledDotProduct(), zeros, jnp.zeros((B, S, S)), values, dropout_rate=0.5, dropout_rng=rng
    )
    > 0
  )


def test_grouped_heads_have_separate_rows():
  rng = np.random.default_rng(0)
  queries = rng.normal(size=(B, 6, T, 4)).astype(np.float32)
  keys = rng.normal(size=(B, 2, S, 4)).astype(np.float32)
  before = rng.dirichlet(np.ones(S), size=(B, 6, T)).astype(np.float32)
  shared = attention.attend_heads(queries, keys, keys, normalizer=attention.Monotonic(before))
  repeated = np.repeat(keys, 3, axis=1)
  alone = attention.attend_heads(queries, repeated, repeated, normalizer=attention.Monotonic(before))
  assert_close(shared, alone, FLOAT32)


def test_hard_monotonic_matches_certain_probabilities():
  scores = np.float32([[-3.0, 2.0, -1.0, 5.0, -2.0]])
  keys = np.eye(S, dtype=np.float32)
  weights = BEFORE[0, :1].astype(np.float32) * 0 + np.eye(S, dtype=np.float32)[2]
  for start, stop in ((0, 1), (1, 1), (2, 3), (3, 3), (4, None)):
    before = np.eye(S, dtype=np.float32)[start][None]
    result = attention.attend(
      attention.ScaledDotProduct(1.0),
      scores,
      keys,
      keys,
      normalizer=attention.Monotonic(before, hard=True),
    )
    np.testing.assert_array_equal(result[0], np.zeros(S) if stop is None else np.eye(S)[stop])
  assert weights.shape == (1, S)


def test_sigmoid_counts_allowed_keys():
  queries, keys = np.zeros((3, 1), np.float32), np.zeros((4, 1), np.float32)
  mask = np.array([[True] * 4, [True, False, True, False], [False, False, False, True]])
  result = attention.attend(
    attention.ScaledDotProduct(),
    queries,
    keys,
    keys,
    mask=mask,
    normalizer=attention.Sigmoid(subtract_log_length=True),
    return_weights=True,
  )
  # Scores of 0 minus log n: 1 / (1 + n) each.
  np.testing.assert_allclose(result.weights, mask / (1 + mask.sum(axis=-1, keepdims=True)), rtol=1e-6)


def test_invalid_values_raise():
  inputs, _ = draw_inputs("scaled_dot_product", "softmax")
  with pytest.raises(
    ValueError, match=r"^normalizer must be a Normalizer such as Sparsemax\(\), or None, got 'sparsemax'$"
  ):
    attention.attend(attention.ScaledDotProduct(), *inputs[:3], normalizer="sparsemax")
  for options, words in (
    ({"return_logsumexp": True}, "return_logsumexp must be False for the normalizer Sparsemax, got True"),
  ):
    with pytest.raises(ValueError, match=words):
      attention.attend(attention.ScaledDotProduct(), *inputs[:3], normalizer=attention.Sparsemax(), **options)
  monotonic = attention.Monotonic(np.eye(T, S, dtype=np.float32))
  with pytest.raises(ValueError, match="implementation must be auto or dense for the normalizer Monotonic"):
    attention.attend(
      attention.ScaledDotProduct(), *inputs[:3], normalizer=monotonic, implementation="blockwise"
    )
  with pytest.raises(ValueError, match=r"Softmax\.sink must be broadcastable to \(2,\), got shape \(3,\)"):
    attention.attend(
      attention.ScaledDotProduct(), *inputs[:3], normalizer=attention.Softmax(sink=np.zeros(3, np.float32))
    )
  with pytest.raises(ValueError, match=r"GaussianWindow\.centers must be broadcastable to"):
    attention.attend(
      attention.ScaledDotProduct(), *inputs[:3], normalizer=attention.GaussianWindow(jnp.zeros(T + 1), 1.0)
    )
  with pytest.raises(ValueError, match=r"stddev must be above 0 in float32, got 0\.0"):
    attention.attend(
      attention.ScaledDotProduct(), *inputs[:3], normalizer=attention.GaussianWindow(jnp.zeros(T), 0.0)
    )
  with pytest.raises(ValueError, match="stddev must be above 0 in float32, got 0"):
    local = attention.GaussianWindow(np.zeros(T), 0)
    jax.jit(lambda: attention.attend(attention.ScaledDotProduct(), *inputs[:3], normalizer=local))()
  with pytest.raises(ValueError, match=r"Monotonic\.previous_weights must be broadcastable to"):
    attention.attend(
      attention.ScaledDotProduct(), *inputs[:3], normalizer=attention.Monotonic(np.ones((1, 3), np.float32))
    )


def test_invalid_numbers_raise():
  vectors = np.ones((3, 2), np.float32)
  for make, message in [
    (lambda: attention.GaussianWindow(np.array([1j, 0, 1]), 1.0), "centers must be a real number or array"),
    (lambda: attention.Softpick(epsilon=1e-60), "epsilon must be at least 1e-37 and finite, got 1e-60"),
  ]:
    with pytest.raises(ValueError, match=message):
      attention.attend(attention.ScaledDotProduct(), vectors, vectors, vectors, normalizer=make())


def test_explicit_softmax_equals_the_default():
  inputs, _ = draw_inputs("scaled_dot_product", "softmax")
  options = {"return_logsumexp": True, "implementation": "blockwise"}
  default = attention.attend(attention.ScaledDotProduct(), *inputs[:3], **options)
  named = attention.attend(
    attention.ScaledDotProduct(), *inputs[:3], normalizer=attention.Softmax(), **options
  )
  assert_trees_equal(default, named)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Exponentials(attention.Normalizer):
  """A normalizer with a state."""

  def row_state(self, rows):
    return rows.max()

  def weights(self, tile, state):
    return jnp.exp(tile.shifted(state))


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_nan_rows_do_not_reach_others(bad):
  rng = np.random.default_rng(11)
  queries, keys, values = (rng.standard_normal(shape) for shape in ((T, 3), (S, 3), (S, 2)))
  queries[1] = bad

  @jax.jit
  def context_of(queries, values):
    score, normalizer = attention.ScaledDotProduct(), Exponentials()
    return attention.attend(score, queries, keys, values, normalizer=normalizer)

  others = np.delete(np.arange(T), 1)
  gradient = jax.grad(lambda values: jnp.sum(context_of(queries, values)[others]))(values)
  alone = jax.grad(lambda values: jnp.sum(context_of(queries[others], values)))(values)
  assert_close(gradient, alone, FLOAT32)
  assert np.all(np.isnan(context_of(queries, values)[1]))


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Squared(attention.Softmax):
  def weights(self, tile, state):
    return super().weights(tile, state) ** 2


def test_softmax_subclasses_are_not_ignored():
  inputs, _ = draw_inputs("scaled_dot_product", "softmax")
  score = attention.ScaledDotProduct()
  plain = attention.attend(score, *inputs[:3], return_weights=True).weights
  squared = attention.attend(score, *inputs[:3], normalizer=Squared(), return_weights=True).weights
  assert_close(squared, plain**2, FLOAT32)
  squared = attention.attend(score, *inputs[:3], normalizer=Squared(), implementation="blockwise")
  assert_close(squared, np.einsum("BTS,BSD->BTD", plain**2, inputs.values), FLOAT32)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class ByHead(attention.Normalizer):
  """Softmax weights times a number per head."""

  axes = {"factors": ""}
  factors: jax.Array

  def row_state(self, rows):
    return attention.Softmax().row_state(rows)

  def weights(self, tile, state):
    softmax = attention.Softmax().weights(tile, state)
    return softmax * self.factors


def test_normalizer_parameters_per_grouped_head():
  queries, keys, values = (jnp.asarray(draw_heads(heads)) for heads in (4, 2, 2))
  result = attention.attend_heads(queries, keys, values, normalizer=ByHead(jnp.arange(1.0, 5)))
  plain = attention.attend_heads(queries, keys, values)
  assert_close(result, plain * np.arange(1, 5, dtype=np.float32)[:, None, None], FLOAT32)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Tempered(attention.Normalizer):
  """A softmax of scores times a number, whose weights divide by a sum that is 0 in empty rows."""

  axes = {"factor": ""}
  factor: jax.Array

  def row_state(self, rows):
    row_max = rows.max()
    return row_max, rows.sum(lambda tile: jnp.exp(self.factor * tile.shifted(row_max)))

  def weights(self, tile, state):
    return jnp.exp(self.factor * tile.shifted(state[0])) / state[1]


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_empty_rows_of_dividing_normalizers_have_finite_gradients(implementation):
  vectors = np.random.default_rng(0).standard_normal((3, 11, 5), dtype=np.float32)
  options = {"implementation": implementation, "block_sizes": (4, 4)}

  def loss(factor, vectors, length):
    mask = attention.masks.lengths(source=length, target=length)
    context = attention.attend(
      attention.ScaledDotProduct(), *vectors, mask=mask, normalizer=Tempered(factor), **options
    )
    return jnp.sum(context**2)

  actual = jax.grad(loss, (0, 1))(jnp.float32(1.5), vectors, 9)
  desired = jax.grad(loss, (0, 1))(jnp.float32(1.5), vectors[:, :9], 9)
  assert_close(actual[0], desired[0], FLOAT32)
  assert_close(actual[1][:, :9], desired[1], FLOAT32)
  assert_close(actual[1][:, 9:], np.zeros((3, 2, 5)), 0.0)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class WithoutAxis(Exponentials):
  def row_state(self, rows):
    return rows.max()[:, 0]


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_states_need_two_axes(implementation):
  vectors = np.ones((7, 3), np.float32)
  message = r"the state of WithoutAxis must be arrays \[T 1\] = \(7, 1\), got shape \(7,\)"
  with pytest.raises(ValueError, match=message):
    attention.attend(
      attention.ScaledDotProduct(), *[vectors] * 3, normalizer=WithoutAxis(), implementation=implementation
    )


def draw_heads(count):
  return np.random.default_rng(count).standard_normal((count, S, 3))


@pytest.mark.parametrize("implementation", ENGINES)
def test_logsumexp_contains_the_sink(implementation):
  inputs, (sink,) = draw_inputs("scaled_dot_product", "sink")
  score, options = attention.ScaledDotProduct(), {"implementation": implementation, "return_logsumexp": True}
  plain = attention.attend(score, *inputs[:3], mask=draw_mask(), **options).logsumexp
  actual = attention.attend(
    score, *inputs[:3], mask=draw_mask(), normalizer=attention.Softmax(sink), **options
  ).logsumexp
  desired = np.where(np.isfinite(plain), np.logaddexp(plain, sink[:, None]), -np.inf)
  assert_close(actual, desired, FLOAT32)


@pytest.mark.parametrize("implementation", ENGINES)
@pytest.mark.parametrize("normalizer", [attention.Softmax(), attention.Sparsemax(), attention.Entmax15()])
def test_rows_of_the_lowest_scores_are_equal_scores(normalizer, implementation):
  lowest = np.finfo(np.float32).min
  bias = np.zeros((2, 3), np.float32)
  bias[1] = lowest
  values = np.float32([[1], [2], [6]])
  context = attention.attend(
    attention.ScaledDotProduct(1.0),
    np.ones((2, 2), np.float32),
    np.float32([[1, 0], [2, 1], [-1, 3]]),
    values,
    bias=bias,
    normalizer=normalizer,
    implementation=implementation,
    block_sizes=BLOCK_SIZES,
  )
  assert_close(context[1], [3.0], FLOAT32)


@pytest.mark.parametrize("engine", ENGINES)
def test_slopes_of_softpick_fit_at_zero(engine):
  """At a score of 0, the slope lies between the slopes on both sides."""

  def context(score):
    keys = jnp.stack([jnp.ones(1), score[None]])
    values = jnp.array([[1.0], [5.0]])
    options = {"normalizer": attention.Softpick(), "implementation": engine}
    return attention.attend(attention.ScaledDotProduct(), jnp.ones((1, 1)), keys, values, **options)[0, 0]

  slopes = jax.jit(jax.vmap(jax.grad(context)))(jnp.array([-1e-3, 0.0, 1e-3], jnp.float32))
  assert min(slopes[0], slopes[2]) - 1e-2 <= slopes[1] <= max(slopes[0], slopes[2]) + 1e-2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sink", [np.inf, np.nan])
def test_non_finite_sinks_give_nan(engine, sink):
  inputs = jnp.ones((3, 2)), jnp.ones((5, 2)), jnp.ones((5, 7))

  def context(sink):
    options = {"normalizer": attention.Softmax(sink), "implementation": engine}
    return attention.attend(attention.ScaledDotProduct(), *inputs, **options)

  assert np.isnan(jax.jit(context)(np.float32(sink))).all()
