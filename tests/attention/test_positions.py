"""Position encodings: sinusoidal, biases and rotations; and positions within segments."""

import math
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import positions

REFERENCES = np.load(pathlib.Path(__file__).parents[1] / "data" / "references.npz")
VECTORS = np.random.default_rng(0).normal(size=(3, 10)).astype(np.float32)

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


# Those of Transformers; see tests/data/make_references.py.


def test_interleaved_and_partial_rotation():
  frequencies = positions.rotary_frequencies(6, base=50.0)
  turned = np.asarray(positions.rotary(VECTORS, frequencies=frequencies, interleaved=True))
  pairs = VECTORS[:, :6:2] + 1j * VECTORS[:, 1:6:2]
  pairs = pairs * np.exp(1j * np.arange(3)[:, None] * 50.0 ** (-np.arange(0, 6, 2) / 6))
  np.testing.assert_allclose(turned[:, :6:2] + 1j * turned[:, 1:6:2], pairs, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(turned[:, 6:], VECTORS[:, 6:])
  halves = np.asarray(positions.rotary(VECTORS[:, [0, 2, 4, 1, 3, 5]], base=50.0))
  np.testing.assert_allclose(halves[:, :3] + 1j * halves[:, 3:], pairs, rtol=1e-5, atol=1e-6)
  with pytest.raises(ValueError, match=r"frequencies must have at most half as many entries .* H=4"):
    positions.rotary(VECTORS[:, :4], frequencies=frequencies)


def test_rotation_by_rows_and_columns():
  queries, keys = VECTORS[:1, :8], VECTORS[1:2, :8]

  def score(query_position, key_position):
    q, k = (
      positions.rotary_2d(vectors, np.array([position]))
      for vectors, position in ((queries, query_position), (keys, key_position))
    )
    return float(np.sum(np.asarray(q) * np.asarray(k)))

  assert score((5, 2), (3, 7)) == pytest.approx(score((2, 0), (0, 5)), abs=1e-5)  # the same differences
  assert abs(score((5, 2), (3, 7)) - score((5, 2), (2, 7))) > 1e-3
  assert abs(score((5, 2), (3, 7)) - score((5, 2), (3, 6))) > 1e-3
  rows = positions.rotary_2d(queries, np.array([[3, 0]]))
  np.testing.assert_array_equal(rows[:, :4], positions.rotary(queries[:, :4], np.array([3])))
  np.testing.assert_array_equal(rows[:, 4:], queries[:, 4:])


@pytest.mark.parametrize(
  ("width", "position", "message"),
  [(6, [[1, 2]], "multiple of 4"), (8, [[1, 2, 3]], r"positions must have axes \[... T 2\]")],
)
def test_invalid_rows_and_columns_raise(width, position, message):
  with pytest.raises(ValueError, match=message):
    positions.rotary_2d(VECTORS[:1, :width], np.array(position))


@pytest.mark.parametrize(
  ("name", "function", "options"),
  [
    ("llama3", positions.llama3_frequencies, {"factor": 8.0}),
    ("yarn", positions.yarn_frequencies, {"factor": 4.0}),
    ("yarn_without_truncation", positions.yarn_frequencies, {"factor": 4.0, "truncate": False}),
  ],
)
def test_frequencies_match_transformers(name, function, options):
  desired = REFERENCES[f"rope/{name}"]
  np.testing.assert_allclose(function(32, base=5e4, original_length=512, **options), desired, rtol=1e-6)
  plain = np.asarray(positions.rotary_frequencies(32, base=5e4))
  assert np.sum(desired != plain) in range(3, 16)  # otherwise the bounds are not tested


def test_scale_of_yarn_matches_transformers():
  assert positions.yarn_scale(4.0) == pytest.approx(float(REFERENCES["rope/yarn_scale"]), rel=1e-6)


FUNCTIONS = positions.llama3_frequencies, positions.yarn_frequencies
OF_BOTH = [
  ({"factor": 0.5}, "factor must be at least 1 and finite, got 0.5"),
  ({"factor": np.inf}, "factor must be at least 1 and finite, got inf"),
  ({"original_length": 0}, "original_length must be an integer"),
  ({"base": np.nan}, "base must be at least 1 and finite, got nan"),
]
OF_YARN = [
  ({"beta_slow": 0.0}, "beta_slow must be above 0 and finite, got 0"),
  ({"beta_slow": np.nan}, "beta_slow must be above 0 and finite, got nan"),
  ({"beta_fast": -1.0}, "beta_fast must be above beta_slow=1.0 and finite, got -1"),
  ({"beta_fast": 1.0, "beta_slow": 32.0}, "beta_fast must be above beta_slow=32.0 and finite, got 1"),
]


@pytest.mark.parametrize(
  ("function", "options", "message"),
  [
    *((function, *case) for function in FUNCTIONS for case in OF_BOTH),
    *((positions.yarn_frequencies, *case) for case in OF_YARN),
  ],
)
def test_invalid_frequencies_raise(function, options, message):
  with pytest.raises(ValueError, match=message):
    function(8, **{"factor": 2.0, "original_length": 16, **options})


@pytest.mark.parametrize("name", [name for name in REFERENCES if name.startswith("t5_buckets")])
def test_buckets_match_transformers(name):
  buckets, max_distance = map(int, name.split("/")[1].split("_"))
  for bidirectional, desired in enumerate(REFERENCES[name]):
    options = buckets, max_distance, bool(bidirectional)
    bucket = jax.jit(
      lambda distances, options=options: positions.relative_position_bucket(distances, *options)
    )
    np.testing.assert_array_equal(bucket(np.arange(-1000, 1000)), desired)


def test_buckets_of_any_integers_are_exact():
  near = jnp.arange(-100, 100)
  small = positions.relative_position_bucket(near.astype(jnp.int8), 32, 800, True)
  np.testing.assert_array_equal(small, positions.relative_position_bucket(near, 32, 800, True))
  sizes = np.int64(64), np.int64(10**5)
  of_numpy = positions.relative_position_bucket(near, *sizes, False)
  np.testing.assert_array_equal(of_numpy, positions.relative_position_bucket(near, 64, 10**5, False))
