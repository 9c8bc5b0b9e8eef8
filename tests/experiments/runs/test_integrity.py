"""Tests of experiments/runs/integrity.py: the number that any damage to arrays changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.checkpoint_files import state_of
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.runs.integrity import integrity


def reference_integrity(words):
  """Returns the number of arrays whose elements are given as unsigned integers."""

  def mix(x):
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16

  return (
    sum(
      mix(word ^ mix((position + mix(leaf)) % 2**32))
      for leaf, array in enumerate(words)
      for position, word in enumerate(array)
    )
    % 2**32
  )


def test_the_number_is_the_sum_of_mixed_words():
  state = state_of(3, size=(5, 17))
  kernel, scale = np.asarray(state.params["kernel"]), np.asarray(state.params["scale"])
  words = [
    [3],
    np.asarray(state.params["counts"][0]).tolist(),
    np.asarray(state.params["is_used"]).tolist(),
    kernel.ravel().view(np.uint32).tolist(),
    scale.view(np.uint16).tolist(),
    np.asarray(state.rng).tolist(),
  ]
  assert integrity(state) == reference_integrity(words)


def test_the_number_of_one_word_by_hand():
  # 2^16 ^ 1 = 65537; 65537 * 0x7FEB352D is 0xB518352D modulo 2^32, for 0x352D + 0x7FEB = 0xB518;
  # 0xB518352D >> 15 = 0x16A30, and 0xB518352D ^ 0x16A30 = 0xB5195F1D; times 0x846CA68B, modulo 2^32:
  product = 0xB5195F1D * 0x846CA68B % 2**32
  assert integrity([jnp.array([2**16], jnp.uint32)]) == product ^ (product >> 16)
  assert integrity([jnp.array([0], jnp.uint32)]) == 0  # mix(0) is 0, of the word, its place and its leaf
  assert integrity([]) == 0


def test_64_bits_are_two_words(float64):
  del float64
  value = np.array([1.5, -np.pi])
  assert integrity([jnp.asarray(value)]) == reference_integrity([value.view(np.uint32).tolist()])


def test_every_bit_changes_the_number():
  kernel = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
  numbers = [integrity([kernel])]
  for position in range(kernel.size):
    for bit in range(32):
      words = kernel.copy().view(np.uint32)
      words.ravel()[position] ^= np.uint32(1) << np.uint32(bit)
      numbers.append(integrity([words.view(np.float32)]))
  assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint8, jnp.bool])
def test_elements_and_leaves_that_change_places_change_the_number(dtype):
  zeros, ones = jnp.zeros((2, 3), dtype), jnp.ones((2, 3), dtype)
  states = [
    [zeros, ones],
    [ones, zeros],
    [zeros.at[0, 0].set(ones[0, 0]), zeros],
    [zeros.at[0, 1].set(ones[0, 0]), zeros],
    [zeros.at[1, 0].set(ones[0, 0]), zeros],
    [zeros, zeros.at[0, 0].set(ones[0, 0])],
  ]
  assert len(set(map(integrity, states))) == len(states)


def test_minus_zero_and_another_nan_change_the_number():
  words = np.array([0, 1 << 31, 0x7FC00000, 0x7FC00001], np.uint32)
  assert len({integrity([word.view(np.float32)[None]]) for word in words}) == 4


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [("rows", "columns"), ("columns", None), (("rows", "columns"), None), ()])
def test_the_number_is_the_same_however_arrays_are_spread(axis_type, spec):
  mesh = jax.make_mesh((2, 4), ("rows", "columns"), axis_types=(axis_type, axis_type))
  array = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
  spread = jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
  assert (
    integrity([spread]) == integrity([array]) == reference_integrity([array.ravel().view(np.uint32).tolist()])
  )
