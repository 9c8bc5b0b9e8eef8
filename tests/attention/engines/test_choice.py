"""The implementation that "auto" chooses."""

import jax.numpy as jnp

from attention.engines.choice import choose_implementation


def test_returned_weights_make_auto_dense():
  array = jnp.ones((1, 512, 2))
  assert choose_implementation(array, array, array, return_weights=True) == "dense"
  assert choose_implementation(array, array, array, return_weights=False) == "blockwise"


def test_many_scores_are_computed_in_blocks():
  few, many = (jnp.zeros((leading, 256, 1)) for leading in (256, 257))  # 2^24 scores, and more
  assert choose_implementation(few, few, few, return_weights=True) == "dense"
  assert choose_implementation(many, many, many, return_weights=True) == "blockwise"
