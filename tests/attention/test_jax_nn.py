"""The replacement of `jax.nn.dot_product_attention` returns the same results, and satisfies the contract."""

import functools
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import jax_nn, masks

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

# The number of query heads is a multiple of that of key heads, so N is not prime.
B, T, S, N, K, H = 2, 5, 7, 6, 3, 11
# Rounding of a result of order one to each dtype, for equal inputs. Sums are in float32 in both.
ROUNDING = {jnp.float32: 4e-6, jnp.float16: 2.0**-11, jnp.bfloat16: 2.0**-8}


def draw(batch=(B,), targets=T, sources=S, heads=N, key_heads=K, width=H, dtype=np.float32):
  """Returns a query, a key, a value and random factors of the result in the loss."""
  rng = np.random.default_rng(0)
  shapes = [(targets, heads), (sources, key_heads), (sources, key_heads), (targets, heads)]
  return [rng.normal(size=(*batch, *shape, width)).astype(np.float32).astype(dtype) for shape in shapes]


def of_jax(query, key, value, **options):
  """Returns `jax.nn.dot_product_attention` in float32, since in half precision it rounds the weights."""
  vectors = (jnp.asarray(array, jnp.float32) for array in (query, key, value))
  return jax.nn.dot_product_attention(*vectors, **options)


def replaced(array, index, value):
  """Returns a copy of the array with `value` at `index`."""
  array = np.array(array)
  array[index] = value
  return array


def with_gradients(function, vectors, slopes, **traced):
  """Returns the result, and the gradients of sum(slopes * result) by query, key, value and bias."""

  @jax.jit
  def run(vectors, slopes, traced):
    trained = {name: array for name, array in traced.items() if name == "bias"}
    others = {name: array for name, array in traced.items() if name != "bias"}
    result, pull = jax.vjp(lambda vectors, trained: function(*vectors, **trained, **others), vectors, trained)
    return result, pull(jnp.asarray(slopes, result.dtype))

  return run(vectors, slopes, traced)


def test_arguments_match_jax():
  ours, theirs = (
    [
      (name, argument.kind, argument.default)
      for name, argument in inspect.signature(function).parameters.items()
    ]
    for function in (jax_nn.dot_product_attention, jax.nn.dot_product_attention)
  )
  assert sorted(ours) == sorted(theirs)
  assert [name for name, *_ in ours[:5]] == [name for name, *_ in theirs[:5]]


@pytest.mark.parametrize(
  ("dtype", "key_heads", "by_example"),
  [(jnp.float32, 6, False), (jnp.float32, 2, True), (jnp.float32, 1, False), (jnp.bfloat16, 3, False)],
)
def test_grouped_heads_match_jax(dtype, key_heads, by_example):
  *vectors, slopes = draw(key_heads=key_heads, dtype=dtype)
  function = jax_nn.dot_product_attention
  actual = with_gradients(jax.vmap(function) if by_example else function, vectors, slopes)
  vectors_32, slopes_32 = jax.tree.map(lambda array: array.astype(np.float32), (vectors, slopes))
  desired = with_gradients(of_jax, vectors_32, slopes_32)
  assert all(array.dtype == dtype for array in jax.tree.leaves(actual))
  # Gradients of keys and values are sums over all queries of a group, of size up to 8.
  np.testing.assert_allclose(actual[0], desired[0], rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
  chex.assert_trees_all_close(actual[1], desired[1], rtol=2 * ROUNDING[dtype], atol=2 * ROUNDING[dtype])


RNG = np.random.default_rng(1)
TARGETS, SOURCES = np.int32([4, 2]), np.int32([3, 6])
OPTIONS = {
  "bias": {"bias": RNG.normal(size=(1, N, T, S)).astype(np.float32)},
  "causal": {"is_causal": True},
  "padding": {"query_seq_lengths": TARGETS, "key_value_seq_lengths": SOURCES},
  "padding_of_queries": {"query_seq_lengths": TARGETS},
  "padding_of_keys": {"key_value_seq_lengths": SOURCES},
  "custom": {"mask": np.tri(T, S, 2, dtype=bool)[None, None]},
  "custom_for_each_head": {"mask": RNG.random((B, N, T, S)) < 0.7},
  "custom_for_each_key": {"mask": RNG.random((B, 1, 1, S)) < 0.7},
  "window": {"local_window_size": (2, 1)},
  "window_of_one_size": {"local_window_size": 1},
  "scale": {"scale": 0.3},
  "scale_of_one": {"scale": 1},
}
COMBINED = [
  ("bias", "custom_for_each_head", "padding"),
  ("causal", "custom", "padding_of_queries"),
  ("custom_for_each_key", "padding_of_keys", "window_of_one_size", "scale_of_one"),
  ("causal", "window", "padding", "bias", "scale"),
]


def allowed_pairs(mask=None, is_causal=False, local_window_size=None, **lengths):
  """Returns which pairs may attend, [B N T S], as documented by JAX."""
  allowed = np.ones((B, N, T, S), bool) if mask is None else np.broadcast_to(mask, (B, N, T, S)).copy()
  size = local_window_size
  left, right = (S + T, S + T) if size is None else (size, size) if isinstance(size, int) else size
  targets, sources = (lengths.get(name) for name in ("query_seq_lengths", "key_value_seq_lengths"))
  for b, n, t, s in np.ndindex(B, N, T, S):
    allowed[b, n, t, s] &= (
      (s <= t or not is_causal)
      and t - left <= s <= t + right
      and (targets is None or t < targets[b])
      and (sources is None or s < sources[b])
    )
  return allowed


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize("names", COMBINED, ids="_and_".join)
def test_options_match_jax(names, implementation):
  *vectors, slopes = draw()
  options = {key: value for name in names for key, value in OPTIONS[name].items()}
  traced = {key: value for key, value in options.items() if isinstance(value, np.ndarray)}
  fixed = {key: value for key, value in options.items() if key not in traced}
  allowed = allowed_pairs(**{key: value for key, value in options.items() if key not in ("bias", "scale")})
  empty = np.moveaxis(~np.any(allowed, axis=-1), 1, 2)
  slopes = replaced(slopes, empty, 0.0)
  ours = functools.partial(jax_nn.dot_product_attention, implementation=implementation, **fixed)
  context, gradients = with_gradients(ours, vectors, slopes, **traced)
  of_jax_context, of_jax_gradients = with_gradients(
    functools.partial(of_jax, **fixed), vectors, slopes, **traced
  )
  np.testing.assert_allclose(context, replaced(of_jax_context, empty, 0.0), **CLOSE)
  chex.assert_trees_all_close(gradients, of_jax_gradients, rtol=8e-06, atol=8e-06)


@pytest.mark.parametrize(
  ("fixed", "first_empty"), [({"is_causal": True}, 523), ({"local_window_size": (307, 11)}, 113 + 307)]
)
def test_long_sequences_match_jax(fixed, first_empty):
  # More than one tile of 512 queries and keys.
  *vectors, slopes = draw(targets=523, sources=541, heads=2, key_heads=1, width=3)
  lengths = np.int32([113, 541])
  empty = np.s_[0, first_empty:]
  slopes = replaced(slopes, empty, 0.0)
  ours = functools.partial(jax_nn.dot_product_attention, implementation="blockwise", **fixed)
  theirs = functools.partial(of_jax, **fixed)
  context, gradients = with_gradients(ours, vectors, slopes, key_value_seq_lengths=lengths)
  desired, of_jax_gradients = with_gradients(theirs, vectors, slopes, key_value_seq_lengths=lengths)
  np.testing.assert_allclose(context, replaced(desired, empty, 0.0), **CLOSE)
  # Sums over 523 queries.
  chex.assert_trees_all_close(gradients, of_jax_gradients, rtol=3e-05, atol=3e-05)


@pytest.mark.parametrize(("batch", "by_example"), [(1, False), (3, True)])
def test_bias_gradient_matches_jax(batch, by_example):
  *vectors, slopes = draw(batch=(batch,))
  bias = np.random.default_rng(2).normal(size=(batch, N, T, S)).astype(np.float32)
  mask = np.ones((1, 1, S), bool)

  def run(function):
    def call(query, key, value, bias):
      return function(query, key, value, bias=bias, mask=mask)

    return with_gradients(jax.vmap(call) if by_example else call, vectors, slopes, bias=bias)

  chex.assert_trees_all_close(run(jax_nn.dot_product_attention), run(of_jax), rtol=8e-06, atol=8e-06)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_arrays_may_have_no_batch_axis(implementation):
  *vectors, slopes = draw(batch=())
  options = {
    "bias": OPTIONS["bias"]["bias"][0],
    "mask": np.random.default_rng(3).random((N, T, S)) < 0.8,
    "key_value_seq_lengths": np.int32([4]),
  }
  ours = functools.partial(jax_nn.dot_product_attention, implementation=implementation)
  chex.assert_trees_all_close(
    with_gradients(ours, vectors, slopes, **options),
    with_gradients(of_jax, vectors, slopes, **options),
    rtol=8e-06,
    atol=8e-06,
  )


@pytest.mark.parametrize("batch", [(B,), ()], ids=["batch", "no_batch"])
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_residual_matches_jax(implementation, batch):
  *vectors, _ = draw(batch=batch)
  lengths = {"key_value_seq_lengths": np.resize(np.int32([3, 0]), batch or 1)}
  options = {"is_causal": True, "return_residual": True, **lengths}
  context, residual = jax_nn.dot_product_attention(*vectors, implementation=implementation, **options)
  of_jax_context, desired = of_jax(*vectors, **options)
  assert residual.shape == (*batch, T, N)
  first = 0 if batch else np.s_[:]
  np.testing.assert_allclose(context[first], of_jax_context[first], **CLOSE)
  np.testing.assert_allclose(residual[first], desired[first], **CLOSE)
  if batch:
    np.testing.assert_array_equal(residual[1], np.full((T, N), -np.inf))


def test_half_precision_residual_is_float32():
  *vectors, _ = draw(dtype=jnp.bfloat16)

  def total(query, function, **options):
    return jnp.sum(function(query, *vectors[1:], return_residual=True, **options)[1])

  actual, slopes = jax.value_and_grad(total)(vectors[0], jax_nn.dot_product_attention)
  assert actual.dtype == jnp.float32
  vectors = [array.astype(np.float32) for array in vectors]
  # The derivative of the logsumexp is the mean of the scaled keys: attention with these as values.
  grouped = np.repeat(vectors[1], N // K, axis=2)
  desired = of_jax(vectors[0], grouped, grouped) * H**-0.5
  np.testing.assert_allclose(slopes, desired, rtol=ROUNDING[jnp.bfloat16], atol=ROUNDING[jnp.bfloat16])


@pytest.mark.usefixtures("float64")
def test_float64_is_float64_throughout():
  query, key, value, _ = draw(dtype=np.float64, key_heads=N)
  scores = np.einsum("btnh,bsnh->bnts", query, key) * H**-0.5
  weights = np.exp(scores) / np.sum(np.exp(scores), axis=-1, keepdims=True)
  actual = jax_nn.dot_product_attention(query, key, value)
  np.testing.assert_allclose(actual, np.einsum("bnts,bsnh->btnh", weights, value), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_empty_rows_differ_from_jax(implementation):
  *vectors, slopes = draw()
  mask = np.ones((B, 1, T, S), bool)
  mask[1, :, 3] = False
  ours = functools.partial(jax_nn.dot_product_attention, implementation=implementation)
  context, (gradients, _) = with_gradients(ours, vectors, slopes, mask=mask)
  np.testing.assert_array_equal(context[1, 3], np.zeros((N, H)))
  np.testing.assert_array_equal(gradients[0][1, 3], np.zeros((N, H)))
  mean = np.repeat(np.mean(vectors[2][1], axis=0), N // K, axis=0)
  np.testing.assert_allclose(of_jax(*vectors, mask=mask)[1, 3], mean, **CLOSE)


@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_masked_values_may_be_nan(name, implementation):
  query, key, value, slopes = draw()
  lengths = np.int32([4, 6])
  ours = functools.partial(jax_nn.dot_product_attention, implementation=implementation)
  desired = with_gradients(ours, (query, key, value), slopes, key_value_seq_lengths=lengths)
  vectors = {"query": query, "key": key, "value": value}
  vectors[name] = replaced(vectors[name], (0, np.s_[4:]), np.nan)
  actual = with_gradients(ours, tuple(vectors.values()), slopes, key_value_seq_lengths=lengths)
  chex.assert_trees_all_close(actual, desired, **CLOSE)
  of_jax_results = with_gradients(of_jax, tuple(vectors.values()), slopes, key_value_seq_lengths=lengths)
  assert any(np.any(np.isnan(array)) for array in jax.tree.leaves(of_jax_results))


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_library_masks_and_biases_are_accepted(implementation):
  *vectors, _ = draw()
  actual = jax_nn.dot_product_attention(
    *vectors,
    bias=lambda t, s: 0.1 * (t - s).astype(jnp.float32),
    mask=masks.segments(np.arange(T) // 3, np.arange(S) // 3),
    is_causal=True,
    implementation=implementation,
  )
  t, s = np.arange(T)[:, None], np.arange(S)[None]
  bias, mask = (0.1 * (t - s)).astype(np.float32), (t // 3 == s // 3) & (s <= t)
  np.testing.assert_allclose(actual, of_jax(*vectors, bias=bias, mask=mask), **CLOSE)


@pytest.mark.parametrize("implementation", [None, "xla", "auto"])
def test_jax_implementation_names_are_accepted(implementation):
  *vectors, _ = draw()
  actual = jax_nn.dot_product_attention(*vectors, implementation=implementation)
  np.testing.assert_allclose(actual, of_jax(*vectors, implementation="xla"), **CLOSE)


VECTORS = draw()[:3]


@pytest.mark.parametrize(
  ("vectors", "options", "words"),
  [
    (VECTORS, {"mask": np.ones((B, N, T, S), np.float32)}, r"mask must be boolean.*float32.*bias"),
    (
      VECTORS,
      {"mask": np.ones((B, N, S, T), bool)},
      r"mask must be broadcastable .*\(2, 6, 5, 7\), got shape \(2, 6, 7, 5\)",
    ),
    (
      VECTORS,
      {"bias": np.ones((K, T, S), np.float32)},
      r"bias must be .* \(2, 6, 5, 7\), got shape \(3, 5, 7\)",
    ),
    (VECTORS, {"bias": np.ones((T, S), bool)}, r"bias must be floating-point, got bool"),
    (
      VECTORS,
      {"implementation": "cudnn"},
      r"implementation must be one of auto, dense, blockwise, got 'cudnn'",
    ),
    (VECTORS, {"implementation": "pallas"}, r"implementation must be one of.*got 'pallas'"),
    (VECTORS, {"query_seq_lengths": np.int32([1, 2, 3])}, r"query_seq_lengths .*B=2, got shape \(3,\)"),
    (VECTORS, {"key_value_seq_lengths": np.float32([1, 2])}, r"key_value_seq_lengths .*integers.*float32"),
    (
      VECTORS,
      {"local_window_size": (1, 2, 3)},
      r"local_window_size must be an integer or a pair of integers.*\(1, 2, 3\)",
    ),
    (VECTORS, {"local_window_size": 1.5}, r"before must be an integer.*float"),
    (VECTORS, {"local_window_size": (1.5, 2)}, r"before must be an integer.*float"),
    ((VECTORS[0][0], *VECTORS[1:]), {}, r"must have axes \[B T N H\], or \[T N H\].*\(5, 6, 11\)"),
    ([array[None] for array in VECTORS], {}, r"must have axes \[B T N H\], or \[T N H\]"),
    (
      (VECTORS[0], VECTORS[1][:1], VECTORS[2][:1]),
      {},
      r"query must have axes.*same B, S, K and H.*\(1, 7, 3, 11\)",
    ),
    ((VECTORS[0], VECTORS[1], VECTORS[2][:, 1:]), {}, r"same B, S, K and H.*\(2, 6, 3, 11\)"),
    ((VECTORS[0], VECTORS[1], VECTORS[2][..., 1:]), {}, r"key and value \[B S K H\].*\(2, 7, 3, 10\)"),
    ((VECTORS[0][..., 1:], *VECTORS[1:]), {}, r"same B, S, K and H.*query \(2, 5, 6, 10\)"),
    (
      (VECTORS[0][:, :, 1:], *VECTORS[1:]),
      {},
      r"the number of query heads must be a multiple of the number of key heads",
    ),
    ((VECTORS[0].astype(jnp.bfloat16), *VECTORS[1:]), {}, r"one dtype.*bfloat16"),
  ],
)
def test_mismatched_arguments_raise(vectors, options, words):
  with pytest.raises(ValueError, match=words):
    jax_nn.dot_product_attention(*vectors, **options)
