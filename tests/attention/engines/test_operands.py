"""Arrays sorted by what they follow, and put together again."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, draw

import attention
from attention import masks
from attention.engines.inputs import prepare
from attention.engines.operands import Form, Operands

T, S, H = DIMS["TSH"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnMask(masks.Mask):
  """A mask whose arrays have their positions in other places than first."""

  axes = {"of_queries": "AT", "of_pairs": "SAT", "of_both": "TS"}
  of_queries: jax.Array
  of_pairs: jax.Array
  of_both: jax.Array
  whole: jax.Array

  def tile(self, t, s):
    allowed = jnp.all(self.of_queries, axis=-2)[..., :, None]
    return allowed & jnp.swapaxes(jnp.any(self.of_pairs, axis=-2), -1, -2) & self.of_both


def inputs_of(mask):
  vectors = draw("scaled_dot_product", "BTH", "BSH", "BSD")[:3]
  return prepare(
    attention.ScaledDotProduct(), *vectors, mask=mask, bias=None, dropout_rate=0.0, dropout_rng=None
  )


def fields_of(form):
  """Returns the field of each array of the mask, in order."""
  return [place.field for place in form.places if place.axes not in ("TX", "SX", "SD", "T", "S")]


@pytest.mark.parametrize("both", [(T, S), (1, S), (T, 1), (1, 1)])
def test_sorted_arrays_are_put_together_again(both):
  rng = np.random.default_rng(0)
  mask = OwnMask(*(jnp.asarray(rng.random(shape) < 0.9) for shape in ((2, T), (S, 2, T), both, (7,))))
  inputs, _ = inputs_of(mask)
  form = Form.of(inputs, T, S)
  operands = form.sort(inputs, 1)
  for field, sizes in zip(Operands._fields, ((T,), (S,), (T, S), ()), strict=True):
    for array in jax.tree.leaves(getattr(operands, field)):
      assert array.shape[1 : 1 + len(sizes)] == sizes
  followed = {(T, S): "pairs", (1, S): "keys", (T, 1): "queries", (1, 1): "shared"}[both]
  assert fields_of(form) == ["queries", "pairs", followed, "shared"]
  for array, desired in zip(jax.tree.leaves(form.restore(operands)), jax.tree.leaves(inputs), strict=True):
    np.testing.assert_array_equal(array, np.reshape(desired, array.shape))
  np.testing.assert_array_equal(form.restore(operands).mask.tile(None, None)[0], mask.tile(None, None))


def test_only_vectors_are_made_finite():
  inputs, _ = inputs_of(None)
  queries = jnp.asarray(inputs.queries).at[0, 1, 2].set(jnp.nan)
  inputs = dataclasses.replace(inputs, queries=queries, bias=jnp.full((T, S), jnp.inf))
  form = Form.of(inputs, T, S)
  operands = form.sort(inputs, 1)
  cleaned = form.restore(form.finite(operands, operands))
  np.testing.assert_array_equal(cleaned.queries, queries.at[0, 1, 2].set(0))
  assert np.all(np.isinf(cleaned.bias))
  ones = jax.tree.map(lambda array: jnp.ones_like(array), operands)
  tangents = form.restore(form.finite(operands, ones))
  np.testing.assert_array_equal(tangents.queries, jnp.ones_like(queries).at[0, 1, 2].set(0))
