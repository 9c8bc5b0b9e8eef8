"""Dropout: its rate, and what the dropped weights depend on."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, FLOAT32, Inputs, attend, attend_fully, draw, expected
from helpers import reference

import attention
from attention import masks

B, T, S = DIMS["BTS"]

each_engine = pytest.mark.parametrize("implementation", ["dense", "blockwise"])


def factors(rng, shape, rate, implementation):
  """Returns the dropout factor of each weight, from uniform attention to unit vectors."""
  *leading, T, S = shape
  zeros = np.zeros((*leading, T, 1), np.float32), np.zeros((S, 1), np.float32)
  inputs = Inputs(attention.ScaledDotProduct(), *zeros, np.eye(S, dtype=np.float32))
  context = attend(inputs, dropout_rate=rate, dropout_rng=rng, implementation=implementation)
  return np.asarray(context) * S


@pytest.mark.parametrize("rate", [0.25, 0.9])
@each_engine
def test_dropped_share_matches_the_rate(rate, implementation):
  kept = factors(jax.random.key(0), (101, 103), rate, implementation)
  is_dropped = kept == 0
  np.testing.assert_allclose(kept[~is_dropped] * (1 - rate), 1, rtol=4e-6)
  # The number of dropped weights is binomial; five standard deviations.
  assert abs(np.mean(is_dropped) - rate) < 5 * np.sqrt(rate * (1 - rate) / is_dropped.size)
  # Each row and each column has the same rate, and neighbors are dropped independently.
  for axis in (0, 1):
    deviation = np.sqrt(rate * (1 - rate) / is_dropped.shape[axis])
    assert np.max(np.abs(np.mean(is_dropped, axis=axis) - rate)) < 5 * deviation
    both = is_dropped & np.roll(is_dropped, 1, axis=axis)
    assert abs(np.mean(both) - rate**2) < 5 * np.sqrt(rate**2 / both.size)


@each_engine
def test_dropout_depends_on_key_and_position(implementation):
  rate, shape = 0.5, (B, 7, 11, 13)
  once = factors(jax.random.key(0), shape, rate, implementation)
  again = factors(jax.random.key(0), shape, rate, implementation)
  other = factors(jax.random.key(1), shape, rate, implementation)
  np.testing.assert_array_equal(once, again)
  # Keys, batches, heads and rows are independent: half of the weights agree by chance.
  for one, two in [
    (once, other),
    (once[0], once[1]),
    (once[:, 0], once[:, 1]),
    (once[:, :, 0], once[:, :, 1]),
  ]:
    agreement = np.mean((one == 0) == (two == 0))
    assert abs(agreement - 0.5) < 5 * np.sqrt(0.25 / one.size)


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive"])
@each_engine
def test_dropout_depends_on_no_inputs(kind, implementation):
  rng, rate, inputs = jax.random.key(3), 0.3, draw(kind)
  dropped = factors(rng, (B, T, S), rate, "dense")
  assert 0 < np.sum(dropped == 0) < B * T * S
  options = {"mask": masks.causal(1), "dropout_rate": rate, "dropout_rng": rng}
  actual = attend_fully(inputs, implementation=implementation, **options)
  # Weights and logsumexp are those before dropout.
  desired = expected(kind, inputs, mask=np.tri(T, S, 1, dtype=bool), factors=dropped)
  chex.assert_trees_all_close(actual, desired, rtol=8e-6, atol=8e-6)


@each_engine
def test_dropout_with_another_normalizer(implementation):
  inputs, rng, rate = draw("scaled_dot_product"), jax.random.key(3), 0.3
  options = {"dropout_rate": rate, "dropout_rng": rng, "implementation": implementation}
  actual = attend(inputs, normalizer=attention.Sigmoid(), **options)
  dropped = factors(rng, (B, T, S), rate, implementation)
  desired = expected("scaled_dot_product", inputs, normalize=reference.sigmoid, factors=dropped).context
  chex.assert_trees_all_close(actual, desired, **FLOAT32)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
@each_engine
def test_typed_and_raw_keys_are_accepted(make, implementation):
  def run(rng):
    return factors_of(rng, implementation)

  keys = jax.random.split(make(0), 3)
  together = jax.jit(jax.vmap(run))(keys)
  for rng, one in zip(keys, together, strict=True):
    np.testing.assert_array_equal(np.asarray(run(rng)) == 0, np.asarray(one) == 0)
  assert not np.array_equal(together[0], together[1])


def factors_of(rng, implementation):
  options = {"dropout_rate": 0.5, "dropout_rng": rng, "implementation": implementation}
  return attention.scaled_dot_product_attention(jnp.zeros((T, 1)), jnp.zeros((S, 1)), jnp.eye(S), **options)


@each_engine
def test_traced_and_zero_rates(implementation):
  rng = jax.random.key(4)

  @jax.jit
  def context(rate):
    return attend(draw("cosine"), dropout_rate=rate, dropout_rng=rng, implementation=implementation)

  for rate in (0.2, 0.7):
    desired = attend(draw("cosine"), dropout_rate=rate, dropout_rng=rng, implementation=implementation)
    chex.assert_trees_all_close(context(rate), desired, **FLOAT32)
  chex.assert_trees_all_close(context(0.0), attend(draw("cosine")), **FLOAT32)
  without_rng = attend(draw("cosine"), dropout_rate=0.0, dropout_rng=None, implementation=implementation)
  chex.assert_trees_all_close(without_rng, attend(draw("cosine")), **FLOAT32)


@each_engine
def test_rate_of_one_drops_everything(implementation):
  @jax.jit
  @jax.value_and_grad
  def total(inputs, rate):
    options = {"dropout_rate": rate, "dropout_rng": jax.random.key(4), "implementation": implementation}
    return jnp.sum(attend(inputs, **options))

  inputs = draw("cosine")
  actual = total(inputs, 1.0)
  chex.assert_trees_all_equal(actual, jax.tree.map(np.zeros_like, (np.float32(0), inputs)))


@each_engine
def test_changed_rate_does_not_recompile(implementation):
  queries = jnp.ones((T, 19))
  compiled = []
  jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))

  def run(rate):
    compiled.clear()
    options = {"dropout_rng": jax.random.key(0), "implementation": implementation}
    attention.scaled_dot_product_attention(queries, queries, queries, dropout_rate=rate, **options)
    return [event for event in compiled if "compile" in event]

  try:
    assert run(0.5)
    assert not run(0.25)
  finally:
    jax.monitoring.clear_event_listeners()
