"""The contract for normalizers of users."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, FLOAT32, draw

import attention

T, S = DIMS["TS"]

pytestmark = pytest.mark.slow

each_engine = pytest.mark.parametrize("implementation", ["dense", "blockwise"])


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Exponentials(attention.Normalizer):
  """A normalizer with a state."""

  def row_state(self, rows):
    return rows.max()

  def weights(self, tile, state):
    return jnp.exp(tile.shifted(state))


@each_engine
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_nan_rows_reach_no_others(bad, implementation):
  rng = np.random.default_rng(11)
  queries, keys, values = (rng.standard_normal(shape) for shape in ((T, 3), (S, 3), (S, 2)))
  queries[1] = bad

  @jax.jit
  def context_of(queries, values):
    options = {"normalizer": Exponentials(), "implementation": implementation}
    return attention.attend(attention.ScaledDotProduct(), queries, keys, values, **options)

  others = np.delete(np.arange(T), 1)
  gradient = jax.grad(lambda values: jnp.sum(context_of(queries, values)[others]))(values)
  alone = jax.grad(lambda values: jnp.sum(context_of(queries[others], values)))(values)
  chex.assert_trees_all_close(gradient, alone, **FLOAT32)
  assert np.all(np.isnan(context_of(queries, values)[1]))


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Squared(attention.Softmax):
  def weights(self, tile, state):
    return super().weights(tile, state) ** 2


@each_engine
def test_softmax_subclasses_are_used(implementation):
  _, *vectors, _ = draw("scaled_dot_product")
  plain = attention.scaled_dot_product_attention(*vectors, return_weights=True).weights
  context = attention.scaled_dot_product_attention(
    *vectors, normalizer=Squared(), implementation=implementation
  )
  np.testing.assert_allclose(context, np.einsum("BTS,BSD->BTD", plain**2, vectors[2]), **FLOAT32)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class ByHead(attention.Normalizer):
  """Softmax weights times a number per head."""

  axes = {"factors": ""}
  factors: jax.Array

  def row_state(self, rows):
    return attention.Softmax().row_state(rows)

  def weights(self, tile, state):
    return attention.Softmax().weights(tile, state) * self.factors


@each_engine
def test_parameters_per_grouped_head(implementation):
  rng = np.random.default_rng(4)
  vectors = [rng.normal(size=(heads, S, 3)).astype(np.float32) for heads in (4, 2, 2)]
  factors = np.arange(1, 5, dtype=np.float32)
  result = attention.attend_heads(*vectors, normalizer=ByHead(factors), implementation=implementation)
  chex.assert_trees_all_close(result, attention.attend_heads(*vectors) * factors[:, None, None], **FLOAT32)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Tempered(attention.Normalizer):
  """A softmax of scores times a number, whose weights divide by a sum that is 0 in empty rows."""

  axes = {"factor": ""}
  factor: jax.Array

  def row_state(self, rows):
    row_max = rows.max()
    return row_max, rows.sum(lambda tile: jnp.exp(self.factor * tile.shifted(row_max)))

  def weights(self, tile, state):
    return jnp.exp(self.factor * tile.shifted(state[0])) / state[1]


@each_engine
def test_empty_rows_may_divide_by_zero(implementation):
  vectors = np.random.default_rng(0).standard_normal((3, 11, 5), dtype=np.float32)

  def loss(factor, vectors, length):
    mask = attention.masks.lengths(source=length, target=length)
    options = {"normalizer": Tempered(factor), "implementation": implementation, "block_sizes": (4, 4)}
    return jnp.sum(attention.scaled_dot_product_attention(*vectors, mask=mask, **options) ** 2)

  gradients = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)
  factor = jnp.float32(1.5)
  of_factor, of_vectors = gradients(factor, vectors, 9)
  desired = gradients(factor, vectors[:, :9], 9)
  chex.assert_trees_all_close((of_factor, of_vectors[:, :9]), desired, **FLOAT32)
  assert not np.any(of_vectors[:, 9:])


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class WithoutAxis(Exponentials):
  def row_state(self, rows):
    return rows.max()[:, 0]


@each_engine
def test_states_need_two_axes(implementation):
  vectors = np.ones((7, 3), np.float32)
  message = r"the state of WithoutAxis must be arrays \[T 1\] = \(7, 1\), got shape \(7,\)"
  with pytest.raises(ValueError, match=message):
    attention.scaled_dot_product_attention(
      *[vectors] * 3, normalizer=WithoutAxis(), implementation=implementation
    )
