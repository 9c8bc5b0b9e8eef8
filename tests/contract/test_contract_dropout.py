"""Dropout, part of point 7 of the contract."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import (
  DIMS,
  ENGINES,
  FLOAT32,
  SCORES,
  Inputs,
  always,
  assert_close,
  assert_trees_close,
  attend,
  attend_fully,
  draw,
  draw_loss,
  engines,
  expected,
  expected_gradients,
  in_turn,
  results,
)

import attention
from attention import masks

B, T, S = DIMS["BTS"]


def factors(rng, shape, rate, implementation):
  """Returns the dropout factor of each weight, from uniform attention to unit vectors."""
  *leading, T, S = shape
  inputs = Inputs(
    np.zeros((*leading, T, 1), np.float32),
    np.zeros((S, 1), np.float32),
    np.eye(S, dtype=np.float32),
    parameters={"scale": np.float32(1)},
  )
  options = {"dropout_rate": rate, "implementation": implementation}
  context = jax.jit(functools.partial(attend, "scaled_dot_product", **options))(inputs, dropout_rng=rng)
  return np.asarray(context) * S


@pytest.mark.parametrize("rate", [0.25, 0.5, 0.9])
@engines
def test_dropped_share_matches_the_rate(rate, implementation):
  kept = factors(jax.random.key(0), (101, 103), rate, implementation)
  is_dropped = kept == 0
  assert_close(kept[~is_dropped] * (1 - rate), np.ones(np.sum(~is_dropped)), FLOAT32)
  # The number of dropped weights is binomial; five standard deviations.
  assert abs(np.mean(is_dropped) - rate) < 5 * np.sqrt(rate * (1 - rate) / is_dropped.size)
  # The same for each row and column. Neighbors are independent: the number of pairs dropped together is
  # binomial.
  for axis in (0, 1):
    deviation = np.sqrt(rate * (1 - rate) / is_dropped.shape[axis])
    assert np.max(np.abs(np.mean(is_dropped, axis=axis) - rate)) < 5 * deviation
    both = is_dropped & np.roll(is_dropped, 1, axis=axis)
    assert abs(np.mean(both) - rate**2) < 5 * np.sqrt(rate**2 / both.size)


@engines
def test_dropout_depends_on_key_and_position(implementation):
  rate, shape = 0.5, (B, 7, 11, 13)
  once = factors(jax.random.key(0), shape, rate, implementation)
  again = factors(jax.random.key(0), shape, rate, implementation)
  other = factors(jax.random.key(1), shape, rate, implementation)
  np.testing.assert_array_equal(once, again)
  # Half of the pairs agree by chance. The same between batches, heads and rows.
  count = np.prod(shape)
  for one, two in [
    (once, other),
    (once[0], once[1]),
    (once[:, 0], once[:, 1]),
    (once[:, :, 0], once[:, :, 1]),
  ]:
    agreement = np.mean((one == 0) == (two == 0))
    assert abs(agreement - 0.5) < 5 * np.sqrt(0.25 / one.size)
  assert 0.4 * count < np.sum(once == 0) < 0.6 * count


@pytest.mark.parametrize("implementation", always("blockwise", of=ENGINES))
def test_dropout_does_not_depend_on_inputs(implementation):
  # Dropout does not depend on the score, queries, keys, mask or bias.
  rng, rate = jax.random.key(3), 0.3
  dropped = factors(rng, (B, T, S), rate, implementation)
  for kind in SCORES:
    inputs = draw(kind, "BTH", "SH", "BSD", bias="TS")
    mask = masks.causal(1)
    actual = results(
      kind, inputs, mask=mask, dropout_rate=rate, dropout_rng=rng, implementation=implementation
    )
    # Weights and logsumexp are those before dropout.
    desired = expected(kind, inputs, mask=np.tri(T, S, 1, dtype=bool), factors=dropped)
    assert_trees_close(actual, tuple(desired), 2 * FLOAT32)


@engines
def test_dropout_with_another_normalizer(implementation):
  inputs = draw("scaled_dot_product")
  rng, rate = jax.random.key(3), 0.3
  options = {"dropout_rate": rate, "dropout_rng": rng, "implementation": implementation}
  actual = attend("scaled_dot_product", inputs, normalizer=attention.Sigmoid(), **options)
  dropped = factors(rng, (T, S), rate, implementation)
  desired = expected("scaled_dot_product", inputs, normalize=reference.sigmoid, factors=dropped).context
  assert_close(actual, desired, FLOAT32)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
@engines
def test_typed_and_raw_keys_are_accepted(make, implementation):
  def run(rng):
    return attention.scaled_dot_product_attention(
      jnp.zeros((T, 1)),
      jnp.zeros((S, 1)),
      jnp.eye(S),
      dropout_rate=0.5,
      dropout_rng=rng,
      implementation=implementation,
    )

  keys = jax.random.split(make(0), 3)
  together = jax.jit(jax.vmap(run))(keys)
  for rng, one in zip(keys, together, strict=True):
    np.testing.assert_array_equal(np.asarray(jax.jit(run)(rng)) == 0, np.asarray(one) == 0)
  assert not np.array_equal(together[0], together[1])


@in_turn(kind=["scaled_dot_product", "additive"])
def test_dropout_preserves_the_mean(kind, implementation):
  inputs = draw(kind)
  rate, count = 0.4, 4001

  @jax.jit
  @jax.vmap
  def run(rng):
    return attend(kind, inputs, dropout_rate=rate, dropout_rng=rng, implementation=implementation)

  contexts = np.asarray(run(jax.random.split(jax.random.key(0), count)), np.float64)
  deviation = np.std(contexts, axis=0) / np.sqrt(count)
  error = np.abs(np.mean(contexts, axis=0) - expected(kind, inputs).context)
  assert np.all(error < 5 * deviation)


@in_turn(kind=["scaled_dot_product", "additive"])
def test_dropout_gradients_match_reference(kind, implementation):
  inputs = draw(kind, bias="TS")
  rng, rate = jax.random.key(5), 0.4
  dropped = factors(rng, (T, S), rate, implementation)
  assert 0 < np.sum(dropped == 0) < T * S
  of_loss = draw_loss(expected(kind, inputs))

  @jax.jit
  def run(inputs):
    _, pull = jax.vjp(
      lambda inputs: attend_fully(
        kind, inputs, dropout_rate=rate, dropout_rng=rng, implementation=implementation
      ),
      inputs,
    )
    return pull(tuple(jnp.asarray(array, jnp.float32) for array in of_loss))[0]

  desired = expected_gradients(kind, inputs, of_loss, factors=dropped)
  assert_trees_close(run(inputs), desired, 16 * FLOAT32)


@engines
def test_zero_rate_is_identity(implementation):
  inputs = draw("cosine")
  desired = expected("cosine", inputs).context
  for rng in (None, jax.random.key(0)):
    actual = attend("cosine", inputs, dropout_rate=0.0, dropout_rng=rng, implementation=implementation)
    assert_close(actual, desired, FLOAT32)


@engines
def test_traced_rates_match_static_rates(implementation):
  inputs = draw("cosine")

  def context(rate):
    return attend("cosine", inputs, dropout_rate=rate, dropout_rng=rng, implementation=implementation)

  rng = jax.random.key(4)
  for rate in (0.2, 0.7):
    assert_close(jax.jit(context)(rate), context(rate), FLOAT32)


@engines
def test_changed_rate_does_not_recompile(fresh_programs, implementation):
  queries = jnp.ones((T, S))
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


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_invalid_rates_raise(rate):
  with pytest.raises(ValueError, match=rf"dropout_rate[\s\S]*{rate}"):
    attend("cosine", draw("cosine"), dropout_rate=rate, dropout_rng=jax.random.key(0))


def test_dropout_without_key_raises():
  with pytest.raises(ValueError, match=r"dropout_rng"):
    attend("cosine", draw("cosine"), dropout_rate=0.1)
