"""Position encodings: sinusoidal, biases and rotations; and positions within segments."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import positions

DIMS = chex.Dimensions(T=5, D=14)
RNG = np.random.default_rng(0)
CLOSE = {"rtol": 4e-6, "atol": 4e-6}


def test_sinusoidal_matches_hand_value():
  # The rates are 1 and 10000^(-2/4) = 1/100; at position 1: sin 1, cos 1, sin 0.01, cos 0.01.
  desired = [[0, 1, 0, 1], [0.841470985, 0.540302306, 0.009999833, 0.999950000]]
  np.testing.assert_allclose(positions.sinusoidal(2, 4), desired, **CLOSE)


def test_channels_alternate_sine_and_cosine():
  (T, D) = DIMS["TD"]
  desired = np.zeros((T, D))
  for t in range(T):
    for i in range(D // 2):
      desired[t, 2 * i] = math.sin(t / 10000 ** (2 * i / D))
      desired[t, 2 * i + 1] = math.cos(t / 10000 ** (2 * i / D))
  np.testing.assert_allclose(positions.sinusoidal(T, D), desired, **CLOSE)


def test_far_positions_are_exact():
  # In float32 the angle alone would be off by 2e-3 here.
  t = 30011
  encoding = positions.sinusoidal(t + 1, 2)[t]
  np.testing.assert_allclose(encoding, [math.sin(t), math.cos(t)], **CLOSE)


def test_similarity_depends_on_distance_only():
  encodings = np.asarray(positions.sinusoidal(*DIMS["TD"])).astype(np.float64)
  likeness = encodings @ encodings.T
  rates = [10000 ** (-2 * i / DIMS.D) for i in range(DIMS.D // 2)]
  for distance in range(DIMS.T):
    # sin a sin b + cos a cos b = cos(a - b)
    desired = sum(math.cos(distance * rate) for rate in rates)
    diagonal = np.diagonal(likeness, distance)
    np.testing.assert_allclose(diagonal, desired, rtol=6e-5, atol=6e-5)


def test_longer_encodings_begin_with_the_shorter():
  shorter, longer = positions.sinusoidal(3, DIMS.D), positions.sinusoidal(DIMS.T, DIMS.D)
  np.testing.assert_array_equal(longer[:3], shorter)


def test_an_odd_width_is_an_error():
  with pytest.raises(ValueError, match="width must be even, got 7"):
    positions.sinusoidal(3, 7)


# Positions within segments.


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_positions_restart_in_each_segment(leading):
  ids = np.random.default_rng(0).integers(0, 3, size=(*leading, 13))
  desired = np.zeros_like(ids)
  for *row, t in np.ndindex(*ids.shape):
    before = (*row, t - 1)
    if t > 0 and ids[before] == ids[(*row, t)]:
      desired[(*row, t)] = desired[before] + 1
  np.testing.assert_array_equal(jax.jit(positions.segment_positions)(ids), desired)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32])
def test_segments_of_any_integer_dtype(dtype):
  # More positions than the dtype can represent.
  result = positions.segment_positions(np.repeat(np.array([1, 0, 5], dtype), (300, 2, 1)))
  np.testing.assert_array_equal(result, [*range(300), 0, 1, 0])


def test_there_may_be_no_position():
  assert positions.segment_positions(jnp.zeros((2, 0), int)).shape == (2, 0)


@pytest.mark.parametrize(
  ("segments", "words"),
  [
    (np.ones(3, np.float32), "an array of integers, got float32"),
    (np.int32(1), r"axes \[... T\], got shape \(\)"),
  ],
)
def test_invalid_segments_raise(segments, words):
  with pytest.raises(ValueError, match=f"segments must .*{words}"):
    positions.segment_positions(segments)


# Biases of positions.


def test_alibi_slopes_match_the_paper():
  # By hand: 2^-2, 2^-4, 2^-6, 2^-8, and every second of 2^-1, 2^-2, ... 2^-8.
  np.testing.assert_array_equal(positions.alibi_slopes(6), 2.0 ** -np.array([2, 4, 6, 8, 1, 3], np.float32))
  with pytest.raises(ValueError, match="num_heads must be an integer of at least 1, got 0"):
    positions.alibi_slopes(0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_distances_are_not_rounded(dtype):
  bias = positions.ALiBi(jnp.asarray(0.5, dtype))(jnp.array([[70001]]), jnp.array([[0, 69000]]))
  np.testing.assert_array_equal(bias, [[-35000.5, -500.5]])


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_position_biases_match_formulas(implementation):
  N, T, S = 7, 3, 5
  vectors = [RNG.normal(size=(N, length, 11)).astype(np.float32) for length in (T, S, S)]
  slopes, table = np.float32(RNG.normal(size=N)), np.float32(RNG.normal(size=(N, 4)))
  distance = np.abs(np.arange(T)[:, None] - np.arange(S)).astype(np.float32)
  buckets = np.array([[bucket(s - t, 4, 8, False) for s in range(S)] for t in range(T)])

  def total(bias, implementation):
    options = {"bias": bias, "implementation": implementation, "block_sizes": (2, 2)}
    return jnp.sum(attention.scaled_dot_product_attention(*vectors, **options) ** 2)

  for of_positions, of_arrays, parameters in (
    (positions.ALiBi, lambda slopes: -slopes[:, None, None] * distance[None], slopes),
    (lambda table: positions.RelativePositionBias(table, 8, False), lambda table: table[:, buckets], table),
  ):
    actual = jax.value_and_grad(lambda x, f=of_positions: total(f(x), implementation))(parameters)
    desired = jax.value_and_grad(lambda x, f=of_arrays: total(f(x), "dense"))(jnp.asarray(parameters))
    chex.assert_trees_all_close(actual, desired, rtol=2e-5, atol=2e-5)


def bucket(distance, count, max_distance, bidirectional):
  """The bucket of a distance: T5's rule for a single pair."""
  ahead = 0
  if bidirectional:
    count //= 2
    ahead = count if distance > 0 else 0
  elif distance > 0:
    distance = 0
  distance = abs(distance)
  if distance < count // 2:
    return ahead + distance
  share = np.log(distance / (count // 2)) / np.log(max_distance / (count // 2))
  return ahead + min(count // 2 + int(share * (count - count // 2)), count - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (1, 7), (7, 1), (40, 50)])
def test_relative_positions_for_each_distance(bidirectional, rows, columns):
  table = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
  bias = positions.RelativePositionBias(table, max_distance=30, bidirectional=bidirectional)
  t, s = np.arange(17, 17 + rows), np.arange(11, 11 + columns)
  desired = [[[row[bucket(j - i, 8, 30, bidirectional)] for j in s] for i in t] for row in table]
  np.testing.assert_array_equal(bias(jnp.asarray(t)[:, None], jnp.asarray(s)[None]), np.float32(desired))


def test_relative_positions_of_empty_tiles():
  bias = positions.RelativePositionBias(np.ones((7, 8), np.float32))
  for T, S in ((0, 5), (3, 0)):
    queries, keys = np.ones((7, T, 2), np.float32), np.ones((S, 2), np.float32)
    context = attention.scaled_dot_product_attention(queries, keys, keys, bias=bias)
    np.testing.assert_array_equal(context, np.zeros((7, T, 2)))


@pytest.mark.parametrize(
  ("count", "max_distance", "bidirectional", "words"),
  [
    (3, 128, True, "number of buckets must be at least 4, got 3"),
    (1, 128, False, "number of buckets must be at least 2, got 1"),
    (32, 8, True, "max_distance must be more than 8 with 32 buckets, got 8"),
  ],
)
def test_relative_positions_need_buckets(count, max_distance, bidirectional, words):
  bias = positions.RelativePositionBias(jnp.zeros(count), max_distance, bidirectional)
  with pytest.raises(ValueError, match=words):
    attention.scaled_dot_product_attention(*[jnp.ones((3, 2))] * 3, bias=bias)


# Rotations.


def test_rotation_depends_on_position_differences():
  query, key = RNG.normal(size=(2, 1, 6)).astype(np.float32)
  turned = positions.rotary(query, np.array([13]))
  np.testing.assert_allclose(np.linalg.norm(turned), np.linalg.norm(query), rtol=1e-5)
  products = [
    float(jnp.sum(positions.rotary(query, np.array([t])) * positions.rotary(key, np.array([s]))))
    for t, s in ((0, 5), (3, 8), (100, 105))
  ]
  np.testing.assert_allclose(products, products[0], rtol=1e-4, atol=1e-4)
  assert abs(products[0] - float(np.sum(query * key))) > 1e-2


def test_rotation_by_hand_and_by_batch():
  # Width 4: per position, the first pair rotates by 1, the second by 1/100.
  vectors = np.float32([1.0, 0.0, 0.0, 1.0])
  turned = positions.rotary(np.broadcast_to(vectors, (2, 3, 4)), np.array([[0, 1, 2], [3, 4, 5]]))
  angles = np.arange(6).reshape(2, 3, 1) * np.array([1.0, 0.01])
  desired = np.stack(
    [np.cos(angles[..., 0]), -np.sin(angles[..., 1]), np.sin(angles[..., 0]), np.cos(angles[..., 1])], axis=-1
  )
  np.testing.assert_allclose(turned, desired, **CLOSE)


def test_rotation_needs_an_even_width():
  with pytest.raises(ValueError, match=r"the width of the vectors must be even, got shape \(3, 5\)"):
    positions.rotary(jnp.ones((3, 5)))
