"""Masks that are functions of positions."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import masks

CLOSE = {"rtol": 4e-6, "atol": 4e-6}

B, N, T, S, H = 2, 7, 3, 5, 11

TABLE = np.random.default_rng(1).random((T, S)) < 0.6
TABLES = np.random.default_rng(2).random((B, N, T, S)) < 0.6
DOCUMENTS = np.array([0, 0, 1, 1, 1])
DOCUMENTS_OF_BATCH = np.array([[3, 3, 1, 1, 0], [0, 2, 2, 0, 0]])
LENGTHS = np.array([2, 5])


def of_documents(documents):
  return masks.from_function(lambda t, s: documents[t] == documents[s])


def of_lengths(lengths):
  return masks.from_function(
    lambda t, s: s[None, None] < lengths[:, None, None, None],
    lambda t, s: (s[0] < lengths[:, None], s[1] < lengths[:, None]),
  )


# Functions that create a mask, the array that its function closes over, and whether t may attend to s.
CLOSING_OVER = {
  "not": (
    lambda table: ~masks.from_function(lambda t, s: table[t, s]),
    TABLE,
    lambda b, n, t, s: not TABLE[t, s],
  ),
  "tables_of_heads": (
    lambda tables: masks.from_function(lambda t, s: tables[:, :, t, s]),
    TABLES,
    lambda b, n, t, s: TABLES[b, n, t, s],
  ),
  "documents_of_batch": (
    lambda documents: masks.from_function(lambda t, s: (documents[:, t] == documents[:, s])[:, None]),
    DOCUMENTS_OF_BATCH,
    lambda b, n, t, s: DOCUMENTS_OF_BATCH[b, t] == DOCUMENTS_OF_BATCH[b, s],
  ),
  "lengths_with_block_mask": (of_lengths, LENGTHS, lambda b, n, t, s: s < LENGTHS[b]),
  "joined": (
    lambda documents: (of_documents(documents) & masks.causal(1)) | ~masks.from_function(lambda t, s: s < 4),
    DOCUMENTS,
    lambda b, n, t, s: (DOCUMENTS[t] == DOCUMENTS[s] and s <= t + 1) or not s < 4,
  ),
}


def pairs(may_attend, shape=(B, N, T, S)):
  return np.array([bool(may_attend(*index)) for index in np.ndindex(*shape)]).reshape(shape)


def draw(*leading):
  rng = np.random.default_rng(0)
  return [rng.normal(size=(*leading, length, H)).astype(np.float32) for length in (T, S, S)]


def attend(vectors, mask, implementation="dense"):
  options = {"implementation": implementation, "block_sizes": (2, 2)}
  return attention.scaled_dot_product_attention(*vectors, mask=mask, **options)


def in_both_engines(vectors, mask):
  return jnp.stack([attend(vectors, mask, implementation) for implementation in ("dense", "blockwise")])


@pytest.mark.parametrize(
  ("name", "implementation"),
  [("tables_of_heads", "dense"), ("lengths_with_block_mask", "blockwise"), ("joined", "blockwise")],
)
def test_functions_mask_in_every_derivative(name, implementation):
  make, array, may_attend = CLOSING_OVER[name]
  vectors = draw(B, N)

  @functools.partial(jax.jit, static_argnums=(1, 2))
  def derivatives(array, implementation, make):
    def loss(vectors):
      context = attend(vectors, make(array), implementation)
      return jnp.sum(context**2), context

    return jax.jvp(jax.grad(loss, has_aux=True), (vectors,), (vectors,))

  with jax.checking_leaks():
    actual = derivatives(array, implementation, make)
  desired = derivatives(pairs(may_attend), "dense", masks.from_array)
  # Second derivatives sum more terms of order one than first derivatives.
  chex.assert_trees_all_close(actual, desired, rtol=6e-5, atol=6e-5)


@pytest.mark.parametrize("name", CLOSING_OVER)
def test_function_masks_match_their_function(name):
  make, array, may_attend = CLOSING_OVER[name]
  whole = jax.jit(lambda array: make(array).materialize(T, S))(array)
  assert whole.dtype == bool and whole.ndim >= 2
  np.testing.assert_array_equal(np.broadcast_to(whole, (B, N, T, S)), pairs(may_attend))


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (1, 1), (1, 7)])
def test_function_masks_of_any_length(shape):
  array = masks.from_function(lambda t, s: s < t + 2).materialize(*shape)
  np.testing.assert_array_equal(array, pairs(lambda t, s: s < t + 2, shape))


@pytest.mark.parametrize(
  ("function", "allowed"),
  [
    (lambda t, s: t % 2 == 0, lambda t, s: t % 2 == 0),
    (lambda t, s: s[0] <= 2, lambda t, s: s <= 2),
    (lambda t, s: True, lambda t, s: True),
    (lambda t, s: np.bool_(False), lambda t, s: False),
  ],
  ids=["of_queries", "without_axis", "true", "false"],
)
def test_function_results_broadcast(function, allowed):
  mask, vectors, allowed = masks.from_function(function), draw(), pairs(allowed, (T, S))
  run = jax.jit(
    lambda: (mask.materialize(T, S), attend(vectors, mask, "blockwise"), attend(vectors, allowed))
  )
  whole, actual, desired = run()
  np.testing.assert_array_equal(whole, allowed)
  np.testing.assert_allclose(actual, desired, **CLOSE)


def test_function_results_may_have_leading_axes():
  lengths = jnp.asarray(LENGTHS)
  with jax.numpy_rank_promotion("allow"):
    array = masks.from_function(lambda t, s: s < lengths[:, None, None]).materialize(T, S)
  np.testing.assert_array_equal(array, pairs(lambda b, t, s: s < LENGTHS[b], (B, T, S)))


def test_closures_may_be_batched():
  @jax.jit
  @jax.vmap
  def run(vectors, documents):
    return in_both_engines(vectors, of_documents(documents))

  allowed = pairs(lambda b, t, s: DOCUMENTS_OF_BATCH[b, t] == DOCUMENTS_OF_BATCH[b, s], (B, T, S))
  desired = np.stack([attend(draw(B), allowed)] * 2, axis=1)
  np.testing.assert_allclose(run(draw(B), jnp.asarray(DOCUMENTS_OF_BATCH)), desired, **CLOSE)


def test_masks_made_inside_loops():
  @jax.jit
  def run(vectors):
    def total(vectors, mask_of):
      def step(total, limit):
        return total + jnp.sum(in_both_engines(vectors, mask_of(limit)) ** 2), None

      return jax.lax.scan(jax.checkpoint(step), 0.0, jnp.array([2, 5]))[0]

    def of_function(limit):
      return masks.from_function(lambda t, s: s < limit)

    return [jax.grad(total)(vectors, mask_of) for mask_of in (of_function, lambda n: masks.lengths(source=n))]

  chex.assert_trees_all_close(*run(draw()), rtol=3e-05, atol=3e-05)


def test_masks_cross_jit_boundaries():
  vectors = draw()
  mask = jax.jit(lambda documents: of_documents(documents) & masks.causal(1))(DOCUMENTS)
  actual = jax.jit(lambda mask: in_both_engines(vectors, mask))(mask)
  allowed = pairs(lambda t, s: DOCUMENTS[t] == DOCUMENTS[s] and s <= t + 1, (T, S))
  np.testing.assert_allclose(actual, np.stack([attend(vectors, allowed)] * 2), **CLOSE)


def test_equal_function_masks_compile_once():
  traces = []

  @jax.jit
  def array(mask):
    traces.append(mask)
    return mask.materialize(T, S)

  def is_near(t, s):
    return abs(t - s) <= 1

  for _ in range(2):
    array(masks.from_function(is_near))
  assert len(traces) == 1


def test_masks_have_no_derivative():
  @jax.jit
  @jax.grad
  def slopes(limits):
    mask = masks.from_function(lambda t, s: s.astype(jnp.float32) < limits[t])
    return jnp.sum(in_both_engines(draw(), mask) ** 2)

  np.testing.assert_array_equal(slopes(jnp.array([1.5, 2.5, 3.5])), np.zeros(T))


def test_grouped_heads_may_have_separate_masks():
  queries, keys, reach = draw(6)[0], draw(2)[1], np.array([0, 1, 2, 0, 1, 2])

  @jax.jit
  def run(reach):
    mask = masks.from_function(lambda t, s: (s - t)[None] <= reach[:, None, None])
    engines = {"implementation": "dense"}, {"implementation": "blockwise", "block_sizes": (2, 2)}
    return [attention.attend_heads(queries, keys, keys, mask=mask, **engine) for engine in engines]

  repeated = np.repeat(keys, 3, axis=0)
  desired = attend([queries, repeated, repeated], pairs(lambda n, t, s: s - t <= reach[n], (6, T, S)))
  np.testing.assert_allclose(np.stack(run(reach)), np.stack([desired] * 2), **CLOSE)


# Block summaries.


def test_empty_tiles_are_skipped():
  queries, keys, values = vectors = draw()
  # Tiles of two keys. The summary differs from the function, which shows that it is used.
  mask = masks.from_function(lambda t, s: s >= 0, lambda t, s: (s[0] < 2, False))
  # Full tiles of a mask are empty tiles of its opposite.
  opposite = ~masks.from_function(lambda t, s: s < 0, lambda t, s: (True, s[1] >= 2))
  actual = jax.jit(lambda: jnp.stack([attend(vectors, each, "blockwise") for each in (mask, opposite)]))()
  np.testing.assert_allclose(actual, np.stack([attend([queries, keys[:2], values[:2]], None)] * 2), **CLOSE)


def test_block_mask_gets_tile_bounds():
  def block_summary(t, s):
    return (s[0] <= t[1]) & (t[0] >= 0), (s[1] <= t[0]) & (s[0] >= 0)

  mask = masks.from_function(lambda t, s: s <= t, block_summary)
  for t0, t1, s0, s1 in [(0, 2, 3, 4), (0, 2, 2, 3), (3, 4, 0, 3), (3, 4, 0, 4), (5, 5, 5, 5)]:
    allowed = mask.mask_mod(jnp.arange(t0, t1 + 1)[:, None], jnp.arange(s0, s1 + 1)[None])
    ends = [tuple(np.full((1, 1), end) for end in pair) for pair in ((t0, t1), (s0, s1))]
    any_allowed, all_allowed = mask.block_summary(*ends)
    assert (bool(any_allowed), bool(all_allowed)) == (bool(np.any(allowed)), bool(np.all(allowed)))
    not_any, not_all = (~mask).block_summary(*ends)
    assert (bool(not_any), bool(not_all)) == (not bool(all_allowed), not bool(any_allowed))


# User errors.


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    ((lambda t, s: (s - t).astype(jnp.float32),), r"function must return booleans.*got float32"),
    ((lambda t, s: s - t,), r"function must return booleans.*got int32"),
    ((lambda t, s: None,), r"function must return booleans.*got None"),
    ((lambda t, s: [s <= t],), r"function must return booleans.*got \["),
    ((lambda t, s: np.ones((3, 5), bool),), r"broadcast to \[\.\.\. T S\], got shape \(3, 5\) for T=1"),
    ((lambda t, s: np.ones(5, bool),), r"broadcast to \[\.\.\. T S\], got shape \(5,\) for T=1"),
    ((lambda t, s: (s <= t)[None] & np.ones((1, 2, 1), bool),), r"got shape \(1, 2, 1\) for T=1"),
    ((None,), r"function must be a function of query and key positions, got None"),
    (
      (np.ones((3, 5), bool),),
      r"function must be a function of query and key positions, got an array; use from_array",
    ),
    ((lambda t, s: s <= t, True), r"block_summary must be a function of query and key positions, got True"),
    ((lambda t, s: s <= t, lambda t, s: s[0] <= t[1]), r"block_summary must return a pair, \(any, "),
    (
      (lambda t, s: s <= t, lambda t, s: (s[0], s[1] <= t[0])),
      r"block_summary must return booleans.*got int32",
    ),
    ((lambda t, s: s <= t, lambda t, s: (True, True, True)), r"must return a pair.*True, True, True"),
  ],
)
def test_invalid_functions_raise(arguments, words):
  with pytest.raises(ValueError, match=words):
    masks.from_function(*arguments)


def test_bare_function_has_a_hint():
  vectors = np.ones((3, 2), np.float32)
  with pytest.raises(ValueError, match=r"mask must be a mask such as .*from_function\(function\)"):
    attention.scaled_dot_product_attention(vectors, vectors, vectors, mask=lambda t, s: s <= t)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_a_batch_may_be_empty(implementation):
  mask = masks.from_function(lambda t, s: t >= s) & masks.lengths(source=jnp.zeros((0, 1), int))
  vectors = jnp.ones((0, N, T, H))
  context = attention.scaled_dot_product_attention(
    vectors, vectors, vectors, mask=mask, implementation=implementation
  )
  chex.assert_shape(context, (0, N, T, H))
