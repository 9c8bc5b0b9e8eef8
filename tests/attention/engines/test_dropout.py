"""The random bits of dropout: frequency, independence, and equality for tiles and whole arrays.

tests/contract/test_dropout.py tests the dropout of weights. Seeds are fixed, so a bound of five standard
deviations always holds or always fails.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention.engines import dropout

T, S = 401, 503


def draw(rate, rows=T, columns=S, first_row=0, first_column=0, seed=0):
  """Returns which pairs of a tile are kept, [T S]."""
  t = jnp.arange(first_row, first_row + rows, dtype=jnp.uint32)[:, None]
  s = jnp.arange(first_column, first_column + columns, dtype=jnp.uint32)[None, :]
  return np.asarray(dropout.keep(dropout.seeds(jax.random.key(seed)), rate, t, s))


def assert_unrelated(*signs):
  """Asserts that products of arrays of random signs sum to at most what a random walk reaches."""
  product = np.prod(np.broadcast_arrays(*signs), axis=0)
  assert abs(product.sum()) < 5 * np.sqrt(product.size)


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("seed", [0, 1])
def test_kept_share_matches_the_rate(rate, seed):
  kept = draw(rate, seed=seed)
  deviation = np.sqrt(kept.size * rate * (1 - rate))
  assert abs(kept.sum() - kept.size * (1 - rate)) <= 5 * deviation


@pytest.mark.parametrize(("down", "across"), [(1, 0), (0, 1), (1, 1), (1, -1), (16, 0), (0, 256)])
def test_pairs_at_fixed_distances_are_independent(down, across):
  signs = 2 * draw(0.5) - 1
  shifted = np.roll(signs, (down, across), axis=(0, 1))
  top, left, right = down, max(across, 0), min(across, 0)
  inner = (slice(top, None), slice(left, S + right))
  assert_unrelated(signs[inner], shifted[inner])


@pytest.mark.parametrize("distance", [1, 2, 64])
def test_rectangle_corners_are_independent(distance):
  # If the choice were a product of one of the row and one of the column, this product would be 1 everywhere.
  signs = 2 * draw(0.5) - 1
  assert_unrelated(
    signs[:-distance, :-distance],
    signs[distance:, :-distance],
    signs[:-distance, distance:],
    signs[distance:, distance:],
  )


def test_mirrored_pairs_are_independent():
  signs = 2 * draw(0.5, rows=T, columns=T) - 1
  upper = np.triu_indices(T, 1)
  assert_unrelated(signs[upper], signs.T[upper])


def test_higher_rates_drop_a_superset():
  lower, higher = draw(0.2), draw(0.6)
  assert not np.any(higher & ~lower)
  assert np.any(lower & ~higher)


def test_distant_rows_are_equally_random():
  kept = draw(0.5, first_row=2**32 - 2 * T)
  assert abs(kept.sum() - kept.size / 2) < 5 * np.sqrt(kept.size / 4)
