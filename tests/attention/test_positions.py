"""Sinusoidal position encodings, and positions within segments."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import FLOAT32, assert_close

from attention import positions

DIMS = chex.Dimensions(T=5, D=14)


def test_sinusoidal_matches_hand_value():
  # The rates are 1 and 10000^(-2/4) = 1/100; at position 1: sin 1, cos 1, sin 0.01, cos 0.01.
  desired = [[0, 1, 0, 1], [0.841470985, 0.540302306, 0.009999833, 0.999950000]]
  assert_close(positions.sinusoidal(2, 4), desired, FLOAT32)


def test_channels_alternate_sine_and_cosine():
  (T, D) = DIMS["TD"]
  desired = np.zeros((T, D))
  for t in range(T):
    for i in range(D // 2):
      desired[t, 2 * i] = math.sin(t / 10000 ** (2 * i / D))
      desired[t, 2 * i + 1] = math.cos(t / 10000 ** (2 * i / D))
  assert_close(positions.sinusoidal(T, D), desired, FLOAT32)


def test_far_positions_are_exact():
  # In float32 the angle alone would be off by 2e-3 here.
  t = 30011
  encoding = positions.sinusoidal(t + 1, 2)[t]
  assert_close(encoding, [math.sin(t), math.cos(t)], FLOAT32)


def test_similarity_depends_on_distance_only():
  encodings = np.asarray(positions.sinusoidal(*DIMS["TD"])).astype(np.float64)
  likeness = encodings @ encodings.T
  rates = [10000 ** (-2 * i / DIMS.D) for i in range(DIMS.D // 2)]
  for distance in range(DIMS.T):
    # sin a sin b + cos a cos b = cos(a - b)
    desired = sum(math.cos(distance * rate) for rate in rates)
    diagonal = np.diagonal(likeness, distance)
    assert_close(diagonal, np.full_like(diagonal, desired), DIMS.D * FLOAT32)


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
