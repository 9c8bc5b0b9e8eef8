"""Point 2 of the contract: masks in all forms. Biases: test_contract_biases.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import (
  BLOCK_SIZES,
  DIMS,
  FLOAT32,
  Inputs,
  assert_close,
  assert_trees_close,
  attend,
  attend_fully,
  draw,
  engines,
  expected,
  few_kinds,
  replaced,
  results,
)

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
  "sliding_window": (
    lambda: masks.sliding_window(1, 2),
    lambda b, n, t, s: t - 1 <= s <= t + 2,
  ),
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
  "from_array": (
    lambda: masks.from_array(jnp.asarray(ALLOWED)),
    lambda b, n, t, s: ALLOWED[b, n, t, s],
  ),
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
  "array_of_sources": (
    lambda: jnp.asarray(ALLOWED[0, 0, 0]),
    lambda b, n, t, s: ALLOWED[0, 0, 0, s],
  ),
  "array_of_targets": (
    lambda: jnp.asarray(ALLOWED[:, :1, :, :1]),
    lambda b, n, t, s: ALLOWED[b, 0, t, 0],
  ),
  "and": (
    lambda: masks.causal(1) & masks.lengths(source=over_heads(SOURCE_LENGTHS)),
    lambda b, n, t, s: s <= t + 1 and s < SOURCE_LENGTHS[b],
  ),
  "or": (
    lambda: masks.prefix(2) | masks.sliding_window(0, 1),
    lambda b, n, t, s: s < 2 or t <= s <= t + 1,
  ),
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
  np.testing.assert_array_equal(np.broadcast_to(array, (B, N, T, S)), allowed_pairs(may_attend))


# One mask of each kind. "dense" materializes masks first, so that few are enough.
ATTENDED = [
  *((name, "dense") for name in ("causal_behind", "from_function_of_arrays", "array_of_sources")),
  *((name, "blockwise") for name in ("causal", "causal_behind", "sliding_window", "prefix", "both_lengths")),
  *((name, "blockwise") for name in ("segments", "from_array", "from_function", "from_function_of_arrays")),
  *((name, "blockwise") for name in ("all_together", "array", "array_of_batches", "array_of_targets")),
]


@functools.cache
def results_of_every_mask():
  """Returns the inputs, and results by mask and engine, compiled as one program to save time."""
  inputs = draw("scaled_dot_product", "BNTH", "BNSH", "NSD")

  @jax.jit
  def run(inputs, every_mask):
    return {
      (name, engine): attend_fully(
        "scaled_dot_product", inputs, mask=every_mask[name], implementation=engine, block_sizes=BLOCK_SIZES
      )
      for name, engine in ATTENDED
    }

  return inputs, run(inputs, {name: MASKS[name][0]() for name, _ in ATTENDED})


@pytest.mark.parametrize(("name", "implementation"), ATTENDED)
def test_queries_attend_to_what_masks_allow(name, implementation):
  inputs, every_result = results_of_every_mask()
  actual = every_result[name, implementation]
  desired = expected("scaled_dot_product", inputs, mask=allowed_pairs(MASKS[name][1]))
  assert_trees_close(actual, tuple(desired), FLOAT32)
  np.testing.assert_array_equal(actual[1] == 0, desired.weights == 0)


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
      np.testing.assert_array_equal(array, allowed_pairs(may_attend, (T, S)))


def test_joined_masks_broadcast():
  mask = masks.lengths(source=jnp.asarray(SOURCE_LENGTHS)[:, None]) & masks.from_array(
    jnp.asarray(ALLOWED[0])
  )
  desired = allowed_pairs(lambda b, n, t, s: s < SOURCE_LENGTHS[b] and ALLOWED[0, n, t, s])
  np.testing.assert_array_equal(mask.materialize(T, S), desired)


def test_lengths_make_a_batch_of_masks():
  array = masks.lengths(source=jnp.asarray(SOURCE_LENGTHS)).materialize(T, S)
  desired = allowed_pairs(lambda b, t, s: s < SOURCE_LENGTHS[b], (B, T, S))
  np.testing.assert_array_equal(np.broadcast_to(array, (B, T, S)), desired)


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
    np.testing.assert_array_equal(mask.materialize(T, S), desired)


@few_kinds
@engines
def test_masked_keys_equal_deleted_keys(kind, implementation):
  kept = np.array([True, False, True, True, False])
  inputs = draw(kind, bias="TS")
  mask = np.broadcast_to(kept, (T, S))
  context, weights, logsumexp = results(kind, inputs, mask=mask, implementation=implementation)
  deleted = inputs._replace(keys=inputs.keys[kept], values=inputs.values[kept], bias=inputs.bias[:, kept])
  desired = expected(kind, deleted)
  assert_close(context, desired.context, FLOAT32)
  assert_close(weights[:, kept], desired.weights, FLOAT32)
  np.testing.assert_array_equal(weights[:, ~kept], np.zeros((T, 2)))
  assert_close(logsumexp, desired.logsumexp, FLOAT32)


@engines
def test_large_masked_scores_are_ignored(implementation):
  # The masked score is 2e4 above the allowed ones; it must not be the maximum that is subtracted.
  inputs = Inputs(
    np.float32([[1.0]]),
    np.float32([[0.0], [1.0], [20_000.0]]),
    np.float32([[1.0], [1.0], [1.0]]),
    parameters={"scale": np.float32(1.0)},
  )
  mask = np.array([True, True, False])
  _, weights, _ = results("scaled_dot_product", inputs, mask=mask, implementation=implementation, alone=True)
  assert_close(weights, [[0.268941421, 0.731058579, 0.0]], FLOAT32)


@pytest.mark.parametrize("score", [-1e4, -1e10, -1e30, -3e38])
@engines
def test_lowest_scores_are_not_masked(score, implementation):
  # Masking must not use a finite score: a single allowed key with any score has weight 1.
  inputs = Inputs(
    np.float32([[1.0]]),
    np.float32([[score], [0.0]]),
    np.float32([[7.0], [11.0]]),
    parameters={"scale": np.float32(1.0)},
  )
  mask = np.array([True, False])
  context, weights, logsumexp = results(
    "scaled_dot_product", inputs, mask=mask, implementation=implementation, alone=True
  )
  np.testing.assert_array_equal(weights, [[1.0, 0.0]])
  np.testing.assert_array_equal(context, [[7.0]])
  np.testing.assert_array_equal(logsumexp, np.float32([score]))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
def test_masks_must_be_boolean(dtype):
  inputs = draw("cosine")
  with pytest.raises(ValueError, match=r"mask[\s\S]*bias"):
    attend("cosine", inputs, mask=jnp.zeros(DIMS["TS"], dtype))
  with pytest.raises(ValueError, match="bool"):
    masks.from_array(jnp.zeros(DIMS["TS"], dtype))
  with pytest.raises(ValueError, match=r"mask[\s\S]*bool"):
    attention.masked_softmax(jnp.zeros(DIMS["TS"]), jnp.zeros(DIMS["TS"], dtype))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_masked_softmax_ignores_masked_scores(dtype):
  mask = ALLOWED[0, 0] & np.array([[True], [False], [True]])
  scores = np.random.default_rng(0).normal(size=(B, N, T, S)).astype(dtype)
  exponentials = np.where(mask, np.exp(scores.astype(np.float64)), 0)
  totals = exponentials.sum(axis=-1, keepdims=True)
  desired = exponentials / np.where(totals == 0, 1, totals)
  for given in (scores, replaced(scores, np.broadcast_to(~mask, scores.shape), np.nan)):
    weights = jax.jit(attention.masked_softmax)(given, mask)
    assert weights.dtype == dtype
    assert_close(weights, desired, FLOAT32 if dtype == jnp.float32 else 2.0**-8)


def test_masked_softmax_empty_row_gradient():
  mask = (np.arange(T) != 1)[:, None]
  scores = np.random.default_rng(0).normal(size=(T, S)).astype(np.float32)

  @jax.jit
  @jax.grad
  def slopes(scores):
    return jnp.sum(attention.masked_softmax(scores, mask) ** 2)

  p = np.exp(scores.astype(np.float64))
  p = np.where(mask, p / p.sum(axis=-1, keepdims=True), 0)
  # d sum(p^2) / d score_j = 2 p_j (p_j - sum(p^2)).
  assert_close(slopes(scores), 2 * p * (p - np.sum(p**2, axis=-1, keepdims=True)), FLOAT32)
  np.testing.assert_array_equal(slopes(scores)[1], np.zeros(S))


def test_bounds_of_any_integer_dtype():
  desired = masks.sliding_window(1, 0).materialize(3, 3)
  for kind in (np.uint8, np.int8, np.uint32):
    np.testing.assert_array_equal(masks.sliding_window(kind(1), kind(0)).materialize(3, 3), desired)
    bounds = np.array([1], kind), np.array([0], kind)
    np.testing.assert_array_equal(masks.sliding_window(*bounds).materialize(3, 3)[0], desired)
  assert not np.any(masks.sliding_window(-(2**31), 2**31 - 1).materialize(3, 3))


def test_largest_bounds_allow_everything():
  greatest = np.iinfo(np.int32).max
  np.testing.assert_array_equal(masks.causal(greatest).materialize(3, 5), np.ones((3, 5)))
  np.testing.assert_array_equal(masks.causal(-greatest).materialize(3, 5), np.zeros((3, 5)))
  window = masks.sliding_window(greatest, greatest)
  np.testing.assert_array_equal(window.materialize(3, 5), np.ones((3, 5)))
  np.testing.assert_array_equal(masks.sliding_window(0, greatest).materialize(3, 5), np.triu(np.ones((3, 5))))


def test_masks_accept_lists():
  np.testing.assert_array_equal(
    masks.lengths(source=[1, 2]).materialize(1, 3), masks.lengths(source=np.array([1, 2])).materialize(1, 3)
  )
  np.testing.assert_array_equal(
    (masks.segments([0, 1], [0, 0, 1]) & [True, False, True]).materialize(2, 3), [[1, 0, 0], [0, 0, 1]]
  )
