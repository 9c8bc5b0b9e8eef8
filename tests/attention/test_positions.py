"""Position encodings: sinusoidal, biases and rotations; and positions within segments."""

import functools
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
CLOSE = {"rtol": 4e-6, "atol": 4e-6}


def test_sinusoidal_matches_hand_value():
  # The rates are 1 and 10000^(-2/4) = 1/100; at position 1: sin 1, cos 1, sin 0.01, cos 0.01.
  desired = [[0, 1, 0, 1], [0.841470985, 0.540302306, 0.009999833, 0.999950000]]
  np.testing.assert_allclose(positions.sinusoidal(2, 4), desired, **CLOSE)


def test_channels_alternate_sine_and_cosine():
  # The encoding is exact far away, where the angle alone would be off by 2e-3 in float32.
  t = np.array([0, 1, 2, 3, 30011])
  angles = t[:, None] / 10000 ** (np.arange(0, 14, 2) / 14)
  desired = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(5, 14)
  np.testing.assert_allclose(positions.sinusoidal(30012, 14)[t], desired, **CLOSE)


# Positions within segments.


@pytest.mark.parametrize("shape", [(13,), (2, 3, 13), (2, 0)])
def test_positions_restart_in_each_segment(shape):
  ids = np.random.default_rng(0).integers(0, 3, size=shape)
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


# Biases of positions.


def test_alibi_slopes_match_the_paper():
  # By hand: 2^-2, 2^-4, 2^-6, 2^-8, and every second of 2^-1, 2^-2, ... 2^-8.
  np.testing.assert_array_equal(positions.alibi_slopes(6), 2.0 ** -np.array([2, 4, 6, 8, 1, 3], np.float32))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_distances_are_not_rounded(dtype):
  bias = positions.ALiBi(jnp.asarray(0.5, dtype))(jnp.array([[70001]]), jnp.array([[0, 69000]]))
  np.testing.assert_array_equal(bias, [[-35000.5, -500.5]])


def test_position_biases_match_formulas():
  N, T, S = 7, 3, 5
  rng = np.random.default_rng(0)
  vectors = [rng.normal(size=(N, length, 11)).astype(np.float32) for length in (T, S, S)]
  slopes, table = np.float32(rng.normal(size=N)), np.float32(rng.normal(size=(N, 4)))
  distance = np.abs(np.arange(T)[:, None] - np.arange(S)).astype(np.float32)
  buckets = np.array([[bucket(s - t, 4, 8, False) for s in range(S)] for t in range(T)])

  @jax.jit
  def run(slopes, table):
    def results(function, implementation):
      def total(slopes, table):
        options = {"implementation": implementation, "block_sizes": (2, 2)}
        attend = functools.partial(attention.scaled_dot_product_attention, *vectors, **options)
        return sum(jnp.sum(attend(bias=bias) ** 2) for bias in function(slopes, table))

      return jax.value_and_grad(total, argnums=(0, 1))(slopes, table)

    def of_positions(slopes, table):
      return positions.ALiBi(slopes), positions.RelativePositionBias(table, 8, False)

    def of_arrays(slopes, table):
      return -slopes[:, None, None] * distance[None], table[:, buckets]

    return results(of_arrays, "dense"), [results(of_positions, name) for name in ("dense", "blockwise")]

  desired, actual = run(slopes, table)
  chex.assert_trees_all_close(actual, [desired] * 2, rtol=2e-5, atol=2e-5)


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
@pytest.mark.parametrize(("rows", "columns"), [(1, 7), (40, 50)])
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


def test_rotation_by_hand_and_by_batch():
  # Width 4: per position, the first pair rotates by 1, the second by 1/100.
  vectors = np.float32([1.0, 0.0, 0.0, 1.0])
  turned = positions.rotary(np.broadcast_to(vectors, (2, 3, 4)), np.array([[0, 1, 2], [3, 4, 5]]))
  angles = np.arange(6).reshape(2, 3, 1) * np.array([1.0, 0.01])
  desired = np.stack(
    [np.cos(angles[..., 0]), -np.sin(angles[..., 1]), np.sin(angles[..., 0]), np.cos(angles[..., 1])], axis=-1
  )
  np.testing.assert_allclose(turned, desired, **CLOSE)


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


def test_rotation_by_rows_and_columns():
  turned = positions.rotary_2d(VECTORS[:, :8], np.array([[5, 2], [3, 7], [3, 0]]))
  rows, columns = VECTORS[:, :4], VECTORS[:, 4:8]
  np.testing.assert_array_equal(turned[:, :4], positions.rotary(rows, np.array([5, 3, 3])))
  np.testing.assert_array_equal(turned[:, 4:], positions.rotary(columns, np.array([2, 7, 0])))


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: positions.sinusoidal(3, 7), "width must be even, got 7"),
    (lambda: positions.segment_positions(np.ones(3, np.float32)), "an array of integers, got float32"),
    (lambda: positions.segment_positions(np.int32(1)), r"segments must .*axes \[... T\], got shape \(\)"),
    (lambda: positions.alibi_slopes(0), "num_heads must be an integer of at least 1, got 0"),
    (lambda: positions.rotary(jnp.ones((3, 5))), r"width of the vectors must be even, got shape \(3, 5\)"),
    (
      lambda: positions.rotary(jnp.ones((3, 4)), frequencies=np.ones(3)),
      "at most half as many entries .* H=4",
    ),
    *(
      (
        lambda wrong=wrong: positions.rotary(jnp.ones((3, 4)), wrong),
        rf"positions must be broadcastable to \[\.\.\. T\] = \(3,\), got {shape}",
      )
      for wrong, shape in ((np.arange(2), r"\(2,\)"), (np.int32(1), r"\(\)"))
    ),
    (lambda: positions.rotary_2d(jnp.ones((1, 6)), np.ones((1, 2), int)), "multiple of 4"),
    (
      lambda: positions.rotary_2d(jnp.ones((1, 8)), np.ones((1, 3), int)),
      r"positions must have axes \[... T 2\]",
    ),
  ],
)
def test_invalid_arguments_raise(call, message):
  with pytest.raises(ValueError, match=message):
    call()


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


def test_defaults_are_those_of_llama():
  # f = 500,000^(-1/2) makes 1.8438 turns in 8,192 positions: of it, s = (1.8438 - 1) / (4 - 1) stays, and
  # 1 - s is divided by 8.
  np.testing.assert_allclose(positions.llama3_frequencies(4), [1, 5.248462e-4], rtol=1e-5)


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


@pytest.mark.parametrize("name", ["t5_buckets/8_800", "t5_buckets/32_128"])
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
