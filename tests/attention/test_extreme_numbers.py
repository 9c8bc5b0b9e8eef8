"""Numbers at the edge of their range, and positions beyond the end of the last block, in both engines."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import (
  BLOCK_SIZES,
  DIMS,
  FLOAT32,
  always,
  assert_close,
  assert_trees_close,
  draw,
  mostly_blockwise,
  replaced,
)

import attention
from attention import masks, positions

T, S = DIMS["TS"]


TABLE = np.float32([1, -2, 3, -4, 5, -6, 7, -8])  # a bias for each of 8 buckets of distances


# Biases that are large, infinite or undefined at positions beyond the end of the last block.
BEYOND = {
  "number": np.float32(300),
  "large": lambda t, s: 300 * s.astype(jnp.float32) + 0 * t.astype(jnp.float32),
  "infinite": lambda t, s: 1 / (T - t).astype(jnp.float32) + 1 / (S - s).astype(jnp.float32),
  "undefined": lambda t, s: jnp.take(np.ones((T, 1), np.float32), t[:, 0], axis=0),
  "alibi": positions.ALiBi(np.float32(-300)),
  "relative": positions.RelativePositionBias(TABLE, 4),
  "relative_function": lambda t, s: (
    positions.RelativePositionBias(TABLE, 4)(t, s) + 0 * (t + s).astype(jnp.float32)
  ),
}


def test_positions_beyond_the_end_are_ignored():
  inputs = draw("scaled_dot_product")[:3]

  def context_and_gradients(engine, bias):
    def loss(queries, keys, values):
      context = attention.scaled_dot_product_attention(
        queries, keys, values, bias=bias, implementation=engine, block_sizes=BLOCK_SIZES
      )
      return jnp.sum(context**2), context

    return jax.grad(loss, (0, 1, 2), has_aux=True)(*inputs)

  @functools.partial(jax.jit, static_argnums=0)
  def every_bias(engine):
    return {name: context_and_gradients(engine, bias) for name, bias in BEYOND.items()}

  blockwise, dense = every_bias("blockwise"), every_bias("dense")
  for name in BEYOND:
    assert_trees_close(blockwise[name], dense[name], 8 * FLOAT32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Distance(attention.Score):
  """A score without a derivative where query and key are equal."""

  def scores(self, query_features, key_features):
    difference = query_features[..., :, None, :] - key_features[..., None, :, :]
    return -jnp.sqrt(jnp.sum(difference**2, axis=-1))


@pytest.mark.parametrize("name", ["queries", "keys"])
def test_block_padding_does_not_meet_zeros(name):
  queries, keys, values = draw("scaled_dot_product")[:3]
  arrays = {"queries": queries, "keys": keys}
  arrays[name] = replaced(arrays[name], 0, 0.0)

  def gradients(engine):
    def loss(arrays):
      return jnp.sum(
        attention.attend(
          Distance(),
          arrays["queries"],
          arrays["keys"],
          values,
          implementation=engine,
          block_sizes=BLOCK_SIZES,
        )
        ** 2
      )

    return jax.jit(jax.grad(loss))(arrays)

  assert_trees_close(gradients("blockwise"), gradients("dense"), 8 * FLOAT32)


@mostly_blockwise
def test_lowest_finite_bias(implementation):
  queries, keys, values = draw("scaled_dot_product")[:3]
  bias = np.full((T, S), np.finfo(np.float32).min, np.float32)
  actual = attention.scaled_dot_product_attention(
    queries, keys, values, bias=bias, implementation=implementation, block_sizes=BLOCK_SIZES
  )
  assert_close(actual, np.broadcast_to(np.mean(values, axis=0), actual.shape), FLOAT32)


@mostly_blockwise
@pytest.mark.parametrize("ulps", always(1, of=[0, 1, 2]))
def test_derivatives_near_lowest_finite_scores(implementation, ulps):
  queries, keys, values = draw("scaled_dot_product")[:3]
  number = np.finfo(np.float32).min
  for _ in range(ulps):
    number = np.nextafter(number, np.float32(0))

  def loss(arrays, bias, engine):
    options = {"implementation": engine, "block_sizes": BLOCK_SIZES}
    return jnp.sum(attention.scaled_dot_product_attention(*arrays, bias=bias, **options) ** 2)

  # This bias absorbs all digits of the scores, so derivatives are those of zero scores.
  def of_equal_weights(arrays):
    queries, keys, values = arrays
    scores = jnp.einsum("...TH,...SH->...TS", queries, keys) / np.sqrt(queries.shape[-1])
    scores -= jax.lax.stop_gradient(scores)
    return jnp.sum(jnp.einsum("...TS,...SD->...TD", jax.nn.softmax(scores), values) ** 2)

  arrays = queries, keys, values
  bias = np.full((T, S), number, np.float32)
  actual = jax.grad(loss)(arrays, bias, implementation)
  assert_trees_close(actual, jax.grad(of_equal_weights)(arrays), 8 * FLOAT32)


@mostly_blockwise
def test_huge_masked_keys_under_a_cap(implementation):
  rng = np.random.default_rng(0)
  queries, keys, values = (np.float32(rng.normal(size=(5, width))) for width in (16, 16, 3))
  mask = np.arange(5)[None] < 4

  def derivatives(last):
    def loss(arrays):
      *arrays, cap = arrays
      score = attention.SoftCap(attention.ScaledDotProduct(), cap)
      context = attention.attend(score, *arrays, mask=mask, implementation=implementation)
      return jnp.sum(context**2)

    arrays = 10 * queries, np.concatenate([keys[:4], np.full_like(keys[4:], last)]), values, np.float32(5.0)
    gradient, second = jax.jvp(jax.grad(loss), (arrays,), (arrays,))
    return gradient, second

  huge, small = derivatives(3e38), derivatives(1.0)
  for actual, desired in zip(jax.tree.leaves(huge), jax.tree.leaves(small), strict=True):
    assert np.all(np.isfinite(actual))
    if np.ndim(actual) != 2 or actual.shape[-1] != 16:
      assert_close(actual, desired, 8 * FLOAT32)


@mostly_blockwise
def test_huge_masked_values_and_second_derivatives(implementation):
  queries, keys, values = draw("scaled_dot_product")[:3]

  def second(values):
    def loss(queries):
      context = attention.scaled_dot_product_attention(
        queries,
        keys,
        values,
        mask=masks.prefix(S - 1),
        implementation=implementation,
        block_sizes=BLOCK_SIZES,
      )
      return 1e6 * jnp.sum(context**2)

    return jax.jit(jax.grad(lambda queries: jnp.sum(jax.grad(loss)(queries) ** 2)))(queries)

  huge = values.copy()
  huge[-1] = 3e38
  np.testing.assert_array_equal(second(huge), second(values))
