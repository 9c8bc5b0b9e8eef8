"""Rotary embeddings and relative positions equal those of Transformers; see data/make_references.py."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import positions

REFERENCES = np.load(pathlib.Path(__file__).parents[1] / "data" / "references.npz")
VECTORS = np.random.default_rng(0).normal(size=(3, 10)).astype(np.float32)


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
