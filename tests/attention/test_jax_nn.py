"""The replacement of `jax.nn.dot_product_attention` returns the same results, and satisfies the contract."""

import functools
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import replaced

from attention import jax_nn, masks

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

# The number of query heads is a multiple of that of key heads, so N is not prime.
B, T, S, N, K, H = 2, 5, 7, 6, 3, 11
# Rounding of a result of order one to each dtype, for equal inputs. Sums are in float32 in both.
ROUNDING = {jnp.float32: 4e-6, jnp.bfloat16: 2.0**-8}


def draw(batch=(B,), key_heads=K, dtype=np.float32):
  """Returns a query, a key, a value and random factors of the result in the loss."""
  rng = np.random.default_rng(0)
  shapes = (T, N), (S, key_heads), (S, key_heads), (T, N)
  return [rng.normal(size=(*batch, *shape, H)).astype(np.float32).astype(dtype) for shape in shapes]


def of_jax(query, key, value, **options):
  """Returns `jax.nn.dot_product_attention` in float32, since in half precision it rounds the weights."""
  vectors = (jnp.asarray(array, jnp.float32) for array in (query, key, value))
  return jax.nn.dot_product_attention(*vectors, **options)


def with_gradients(function, vectors, slopes, bias=None, **traced):
  """Returns the result, and the gradients of sum(slopes * result) by query, key, value and bias."""

  @jax.jit
  def run(vectors, slopes, bias, traced):
    result, pull = jax.vjp(lambda vectors, bias: function(*vectors, bias=bias, **traced), vectors, bias)
    return result, pull(jnp.asarray(slopes, result.dtype))

  return run(vectors, slopes, bias, traced)


def test_arguments_match_jax():
  functions = jax_nn.dot_product_attention, jax.nn.dot_product_attention
  ours, theirs = (inspect.signature(function).parameters.values() for function in functions)
  ours, theirs = (
    [(each.name, each.kind, each.default) for each in arguments] for arguments in (ours, theirs)
  )
  assert sorted(ours) == sorted(theirs)
  assert [name for name, *_ in ours[:5]] == [name for name, *_ in theirs[:5]]


@pytest.mark.parametrize(
  ("dtype", "key_heads", "by_example"), [(jnp.float32, 2, True), (jnp.bfloat16, 3, False)]
)
def test_grouped_heads_match_jax(dtype, key_heads, by_example):
  *vectors, slopes = draw(key_heads=key_heads, dtype=dtype)
  function = jax_nn.dot_product_attention
  actual = with_gradients(jax.vmap(function) if by_example else function, vectors, slopes)
  desired = with_gradients(of_jax, *jax.tree.map(lambda array: array.astype(np.float32), (vectors, slopes)))
  assert all(array.dtype == dtype for array in jax.tree.leaves(actual))
  # Gradients of keys and values are sums over all queries of a group, of size up to 8.
  np.testing.assert_allclose(actual[0], desired[0], rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
  chex.assert_trees_all_close(actual[1], desired[1], rtol=2 * ROUNDING[dtype], atol=2 * ROUNDING[dtype])


RNG = np.random.default_rng(1)
TARGETS, SOURCES = np.int32([4, 2]), np.int32([3, 6])
BIAS = RNG.normal(size=(1, N, T, S)).astype(np.float32)
OF_HEADS, OF_KEYS = RNG.random((B, N, T, S)) < 0.7, RNG.random((B, 1, 1, S)) < 0.7
LENGTHS = {"query_seq_lengths": TARGETS, "key_value_seq_lengths": SOURCES}
t, s = np.arange(T)[:, None], np.arange(S)
IS_TARGET, IS_SOURCE = t < TARGETS[:, None, None, None], s < SOURCES[:, None, None, None]


@pytest.mark.parametrize(
  ("implementation", "fixed", "traced", "allowed"),
  [
    ("dense", {}, {"bias": BIAS, "mask": OF_HEADS, **LENGTHS}, OF_HEADS & IS_TARGET & IS_SOURCE),
    (
      "blockwise",
      {"is_causal": True},
      {"mask": np.tri(T, S, 2, dtype=bool)[None, None], "query_seq_lengths": TARGETS},
      (s <= t) & IS_TARGET,
    ),
    (
      "dense",
      {"local_window_size": 1, "scale": 1},
      {"mask": OF_KEYS, "key_value_seq_lengths": SOURCES},
      OF_KEYS & IS_SOURCE & (abs(t - s) <= 1),
    ),
    (
      "blockwise",
      {"is_causal": True, "local_window_size": (2, 1), "scale": 0.3},
      {"bias": BIAS, **LENGTHS},
      (s <= t) & (t - s <= 2) & IS_TARGET & IS_SOURCE,
    ),
  ],
  ids=["lengths", "causal", "window", "causal_window"],
)
def test_options_match_jax(implementation, fixed, traced, allowed):
  *vectors, slopes = draw()
  empty = np.moveaxis(~np.any(np.broadcast_to(allowed, (B, N, T, S)), axis=-1), 1, 2)
  slopes = replaced(slopes, empty, 0.0)
  ours = functools.partial(jax_nn.dot_product_attention, implementation=implementation, **fixed)
  context, gradients = with_gradients(ours, vectors, slopes, **traced)
  desired = with_gradients(functools.partial(of_jax, **fixed), vectors, slopes, **traced)
  np.testing.assert_allclose(context, replaced(desired[0], empty, 0.0), **CLOSE)
  chex.assert_trees_all_close(gradients, desired[1], rtol=8e-06, atol=8e-06)


def test_arrays_may_have_no_batch_axis():
  *vectors, slopes = draw(batch=())
  options = {"bias": BIAS[0], "mask": OF_HEADS[0], "key_value_seq_lengths": np.int32([6])}
  actual, desired = (
    with_gradients(function, vectors, slopes, **options)
    for function in (jax_nn.dot_product_attention, of_jax)
  )
  chex.assert_trees_all_close(actual, desired, rtol=8e-06, atol=8e-06)


@pytest.mark.parametrize("batch", [(B,), ()], ids=["batch", "no_batch"])
def test_residual_matches_jax(batch):
  options = {"is_causal": True, "return_residual": True}

  @jax.jit
  def run(vectors, lengths):
    functions = functools.partial(jax_nn.dot_product_attention, implementation="blockwise"), of_jax
    return [function(*vectors, key_value_seq_lengths=lengths, **options) for function in functions]

  actual, desired = run(draw(batch=batch)[:3], np.resize(np.int32([3, 0]), batch or 1))
  assert actual[1].shape == (*batch, T, N)
  first = 0 if batch else np.s_[:]
  chex.assert_trees_all_close(
    *([array[first] for array in results] for results in (actual, desired)), **CLOSE
  )
  if batch:
    np.testing.assert_array_equal(actual[1][1], np.full((T, N), -np.inf))


def test_half_precision_residual_is_float32():
  *vectors, _ = draw(dtype=jnp.bfloat16)

  @jax.jit
  @jax.value_and_grad
  def run(query):
    return jnp.sum(jax_nn.dot_product_attention(query, *vectors[1:], return_residual=True)[1])

  actual, slopes = run(vectors[0])
  assert actual.dtype == jnp.float32
  # The derivative of the logsumexp is the mean of the scaled keys: attention with these as values.
  desired = of_jax(vectors[0], vectors[1], vectors[1]) * H**-0.5
  np.testing.assert_allclose(slopes, desired, rtol=ROUNDING[jnp.bfloat16], atol=ROUNDING[jnp.bfloat16])


@pytest.mark.usefixtures("float64")
def test_float64_is_float64_throughout():
  query, key, value, _ = draw(dtype=np.float64, key_heads=N)
  scores = np.einsum("btnh,bsnh->bnts", query, key) * H**-0.5
  weights = np.exp(scores) / np.sum(np.exp(scores), axis=-1, keepdims=True)
  actual = jax_nn.dot_product_attention(query, key, value)
  np.testing.assert_allclose(actual, np.einsum("bnts,bsnh->btnh", weights, value), rtol=1e-14, atol=1e-14)


def test_differences_from_jax():
  query, key, value, slopes = draw()
  mask = np.ones((B, 1, T, S), bool)
  mask[0, :, :, 4:] = mask[1, :, 3] = False
  spoiled = query, replaced(key, (0, np.s_[4:]), np.nan), replaced(value, (0, np.s_[4:]), np.nan)
  desired = with_gradients(jax_nn.dot_product_attention, [query, key, value], slopes, mask=mask)
  actual = with_gradients(jax_nn.dot_product_attention, [*spoiled], slopes, mask=mask)
  chex.assert_trees_all_equal(actual, desired)
  assert not np.any(actual[0][1, 3])
  theirs = of_jax(*spoiled, mask=mask)
  assert np.any(np.isnan(theirs[0]))
  np.testing.assert_allclose(theirs[1, 3], np.repeat(np.mean(value[1], axis=0), N // K, axis=0), **CLOSE)


def test_library_masks_and_biases_are_accepted():
  @jax.jit
  def run(*vectors):
    return jax_nn.dot_product_attention(
      *vectors,
      bias=lambda t, s: 0.1 * (t - s).astype(jnp.float32),
      mask=masks.segments(np.arange(T) // 3, np.arange(S) // 3),
      is_causal=True,
      implementation="xla",
    )

  bias, mask = (0.1 * (t - s)).astype(np.float32), (t // 3 == s // 3) & (s <= t)
  np.testing.assert_allclose(run(*draw()[:3]), of_jax(*draw()[:3], bias=bias, mask=mask), **CLOSE)


GOOD = dict(zip(("query", "key", "value"), draw()[:3], strict=True))
Q, KEYS, VALUES = GOOD.values()


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"mask": np.ones((B, N, T, S), np.float32)}, r"mask must be boolean.*float32.*bias"),
    ({"mask": np.ones((B, N, S, T), bool)}, r"mask must be broadcastable .* got shape \(2, 6, 7, 5\)"),
    ({"bias": np.ones((K, T, S), np.float32)}, r"bias must be .* \(2, 6, 5, 7\), got shape \(3, 5, 7\)"),
    ({"bias": np.ones((T, S), bool)}, r"bias must be floating-point, got bool"),
    ({"implementation": "cudnn"}, r"implementation must be one of auto, dense, blockwise, got 'cudnn'"),
    ({"query_seq_lengths": np.int32([1, 2, 3])}, r"query_seq_lengths .*B=2, got shape \(3,\)"),
    ({"key_value_seq_lengths": np.float32([1, 2])}, r"key_value_seq_lengths .*integers.*float32"),
    ({"local_window_size": (1, 2, 3)}, r"local_window_size must be .* a pair of integers.*\(1, 2, 3\)"),
    ({"local_window_size": 1.5}, r"before must be an integer.*float"),
    ({"query": Q[0]}, r"must have axes \[B T N H\], or \[T N H\].*\(5, 6, 11\)"),
    ({"query": Q[None], "key": KEYS[None], "value": VALUES[None]}, r"must have axes \[B T N H\]"),
    ({"key": KEYS[:1], "value": VALUES[:1]}, r"query must have axes.*same B, S, K and H.*\(1, 7, 3, 11\)"),
    ({"value": VALUES[:, 1:]}, r"same B, S, K and H.*\(2, 6, 3, 11\)"),
    ({"query": Q[..., 1:]}, r"same B, S, K and H.*query \(2, 5, 6, 10\)"),
    ({"query": Q[:, :, 1:]}, r"query heads must be a multiple of the number of key heads"),
    ({"query": Q.astype(jnp.bfloat16)}, r"one dtype.*bfloat16"),
  ],
)
def test_mismatched_arguments_raise(changes, words):
  with pytest.raises(ValueError, match=words):
    jax_nn.dot_product_attention(**(GOOD | changes))
