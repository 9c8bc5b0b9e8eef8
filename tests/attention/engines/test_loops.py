"""Arrays cut into tiles by their named axes."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import DIMS, FLOAT32, always, assert_close, draw

import attention
from attention import masks

T, S = DIMS["TS"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnMask(masks.Mask):
  """A mask whose arrays have their position axes not first."""

  axes = {"of_queries": "AT", "of_pairs": "SAT", "of_both": "TS"}
  of_queries: jax.Array
  of_pairs: jax.Array
  of_both: jax.Array

  def mask_mod(self, t, s):
    allowed = jnp.all(self.of_queries, axis=-2)[..., :, None]
    return allowed & jnp.swapaxes(jnp.any(self.of_pairs, axis=-2), -1, -2) & self.of_both


@pytest.mark.parametrize(
  ("both", "block_sizes"),
  always(
    *(((T, S), (2, 2)), ((1, S), (T, 2)), ((T, 1), (2, S)), ((1, 1), (2, 2))),
    of=list(itertools.product([(T, S), (1, S), (T, 1), (1, 1)], [(2, 2), (T, 2), (2, S)])),
  ),
)
def test_arrays_are_cut_by_position(both, block_sizes):
  rng = np.random.default_rng(0)
  vectors = draw("scaled_dot_product", "BTH", "BSH", "BSD")[:3]
  B = vectors[0].shape[0]
  shapes = (B, 2, T), (B, S, 2, T), (B, *both)
  mask = OwnMask(*(jnp.asarray(rng.random(shape) < 0.9) for shape in shapes))

  def attend(implementation):
    options = {"implementation": implementation, "block_sizes": block_sizes}
    return attention.scaled_dot_product_attention(*vectors, mask=mask, **options)

  assert_close(attend("blockwise"), attend("dense"), FLOAT32)
