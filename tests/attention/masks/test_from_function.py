"""Masks that are functions of positions."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import (
  BLOCK_SIZES,
  DIMS,
  ENGINES,
  FLOAT32,
  always,
  assert_close,
  assert_trees_close,
  draw,
  mostly_blockwise,
)
from jax.sharding import AxisType, PartitionSpec

import attention
from attention import masks

B, N, T, S = DIMS["BNTS"]

TABLE = np.random.default_rng(1).random((T, S)) < 0.6
TABLES = np.random.default_rng(2).random((B, N, T, S)) < 0.6
DOCUMENTS = np.array([0, 0, 1, 1, 1])
DOCUMENTS_OF_BATCH = np.array([[3, 3, 1, 1, 0], [0, 2, 2, 0, 0]])
LENGTHS = np.array([2, 5])


def of_table(table):
  return masks.from_function(lambda t, s: table[t, s])


def of_tables(tables):
  return masks.from_function(lambda t, s: tables[:, :, t, s])


def of_documents(documents):
  return masks.from_function(lambda t, s: documents[t] == documents[s])


def of_documents_of_batch(documents):
  return masks.from_function(lambda t, s: (documents[:, t] == documents[:, s])[:, None])


def of_lengths(lengths):
  return masks.from_function(lambda t, s: s[None, None] < lengths[:, None, None, None])


def of_lengths_with_block_mask(lengths):
  return masks.from_function(
    lambda t, s: s[None, None] < lengths[:, None, None, None],
    lambda t, s: (s[0] < lengths[:, None], s[1] < lengths[:, None]),
  )


# Functions that create a mask, the array that its function closes over, and whether t may attend to s.
CLOSING_OVER = {
  "table": (of_table, TABLE, lambda b, n, t, s: TABLE[t, s]),
  "tables_of_heads": (of_tables, TABLES, lambda b, n, t, s: TABLES[b, n, t, s]),
  "documents": (of_documents, DOCUMENTS, lambda b, n, t, s: DOCUMENTS[t] == DOCUMENTS[s]),
  "documents_of_batch": (
    of_documents_of_batch,
    DOCUMENTS_OF_BATCH,
    lambda b, n, t, s: DOCUMENTS_OF_BATCH[b, t] == DOCUMENTS_OF_BATCH[b, s],
  ),
  "lengths": (of_lengths, LENGTHS, lambda b, n, t, s: s < LENGTHS[b]),
  "lengths_with_block_mask": (of_lengths_with_block_mask, LENGTHS, lambda b, n, t, s: s < LENGTHS[b]),
  "joined": (
    lambda documents: (of_documents(documents) & masks.causal(1)) | ~masks.from_function(lambda t, s: s < 4),
    DOCUMENTS,
    lambda b, n, t, s: (DOCUMENTS[t] == DOCUMENTS[s] and s <= t + 1) or not s < 4,
  ),
  "not": (lambda table: ~of_table(table), TABLE, lambda b, n, t, s: not TABLE[t, s]),
}

closing_over = pytest.mark.parametrize("name", CLOSING_OVER)


def pairs(may_attend, shape=(B, N, T, S)):
  return np.array([bool(may_attend(*index)) for index in np.ndindex(*shape)]).reshape(shape)


def expected(*vectors, mask=True):
  """Returns the reference's context."""
  scale = vectors[0].shape[-1] ** -0.5
  return reference.attend(reference.dot_product, *vectors, mask=mask, scale=scale).context


def context(inputs, mask, implementation):
  queries, keys, values = inputs[:3]
  return attention.attend(
    attention.ScaledDotProduct(),
    queries,
    keys,
    values,
    mask=mask,
    implementation=implementation,
    block_sizes=BLOCK_SIZES,
  )


@pytest.mark.parametrize(
  ("name", "implementation"),
  always(
    *(("tables_of_heads", "dense"), ("lengths_with_block_mask", "blockwise")),
    of=list(itertools.product(CLOSING_OVER, ENGINES)),
  ),
)
def test_functions_mask_in_every_derivative(name, implementation):
  make, array, may_attend = CLOSING_OVER[name]
  inputs = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")[:3]
  allowed = pairs(may_attend)

  def derivatives(mask, implementation):
    def loss(inputs):
      return jnp.sum(context(inputs, mask, implementation) ** 2)

    return context(inputs, mask, implementation), jax.jvp(jax.grad(loss), (inputs,), (inputs,))

  with jax.checking_leaks():
    actual = jax.jit(lambda array: derivatives(make(array), implementation))(array)
  desired = expected(*inputs, mask=allowed)
  assert_close(actual[0], desired, FLOAT32)
  of_array = jax.jit(lambda allowed: derivatives(masks.from_array(allowed), "dense"))(allowed)
  # Second derivatives sum more terms of order one than first derivatives.
  assert_trees_close(actual[1], of_array[1], 16 * FLOAT32)


@closing_over
@mostly_blockwise
def test_closures_over_concrete_arrays(name, implementation):
  make, array, may_attend = CLOSING_OVER[name]
  inputs = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")[:3]
  actual = jax.jit(lambda mask: context(inputs, mask, implementation))(make(jnp.asarray(array)))
  desired = expected(*inputs, mask=pairs(may_attend))
  assert_close(actual, desired, FLOAT32)


@closing_over
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
    (lambda t, s: s != 3, lambda t, s: s != 3),
    (lambda t, s: s[0] <= 2, lambda t, s: s <= 2),
    (lambda t, s: True, lambda t, s: True),
    (lambda t, s: np.bool_(False), lambda t, s: False),
  ],
  ids=["of_queries", "of_keys", "without_axis", "true", "false"],
)
@mostly_blockwise
def test_function_results_broadcast(function, allowed, implementation):
  mask = masks.from_function(function)
  np.testing.assert_array_equal(mask.materialize(T, S), pairs(allowed, (T, S)))
  inputs = draw("scaled_dot_product")[:3]
  desired = expected(*inputs, mask=pairs(allowed, (T, S)))
  assert_close(context(inputs, mask, implementation), desired, FLOAT32)


def test_function_results_may_have_leading_axes():
  lengths = jnp.asarray(LENGTHS)
  with jax.numpy_rank_promotion("allow"):
    array = masks.from_function(lambda t, s: s < lengths[:, None, None]).materialize(T, S)
  np.testing.assert_array_equal(array, pairs(lambda b, t, s: s < LENGTHS[b], (B, T, S)))


@mostly_blockwise
def test_closures_may_be_batched(implementation):
  inputs = draw("scaled_dot_product", "BTH", "BSH", "BSD")[:3]

  def one(inputs, documents):
    return context(inputs, of_documents(documents), implementation)

  actual = jax.jit(jax.vmap(one))(inputs, jnp.asarray(DOCUMENTS_OF_BATCH))
  allowed = pairs(lambda b, t, s: DOCUMENTS_OF_BATCH[b, t] == DOCUMENTS_OF_BATCH[b, s], (B, T, S))
  assert_close(actual, expected(*inputs, mask=allowed), FLOAT32)


@mostly_blockwise
def test_masks_made_inside_loops(implementation):
  inputs = draw("scaled_dot_product")[:3]

  def total(inputs, masks_of):
    def step(total, limit):
      mask = masks_of(limit)
      return total + jnp.sum(context(inputs, mask, implementation) ** 2), None

    return jax.lax.scan(jax.checkpoint(step), 0.0, jnp.array([2, 5]))[0]

  of_function = jax.jit(jax.grad(lambda i: total(i, lambda n: masks.from_function(lambda t, s: s < n))))
  of_lengths = jax.jit(jax.grad(lambda i: total(i, lambda n: masks.lengths(source=n))))
  assert_trees_close(of_function(inputs), of_lengths(inputs), 8 * FLOAT32)


@mostly_blockwise
def test_masks_cross_jit_boundaries(implementation):
  inputs = draw("scaled_dot_product")[:3]
  mask = jax.jit(lambda documents: of_documents(documents) & masks.causal(1))(DOCUMENTS)
  actual = jax.jit(lambda mask: context(inputs, mask, implementation))(mask)
  allowed = pairs(lambda t, s: DOCUMENTS[t] == DOCUMENTS[s] and s <= t + 1, (T, S))
  assert_close(actual, expected(*inputs, mask=allowed), FLOAT32)


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


@mostly_blockwise
def test_masks_have_no_derivative(implementation):
  inputs = draw("scaled_dot_product")[:3]

  @jax.jit
  @jax.grad
  def slopes(limits):
    mask = masks.from_function(lambda t, s: s.astype(jnp.float32) < limits[t])
    return jnp.sum(context(inputs, mask, implementation) ** 2)

  np.testing.assert_array_equal(slopes(jnp.array([1.5, 2.5, 3.5])), np.zeros(T))


@mostly_blockwise
@pytest.mark.parametrize("num_key_heads", [1, 2, 6])
def test_grouped_heads_may_have_separate_masks(num_key_heads, implementation):
  rng = np.random.default_rng(0)
  queries = rng.normal(size=(6, T, 11)).astype(np.float32)
  keys = rng.normal(size=(num_key_heads, S, 11)).astype(np.float32)
  reach = np.array([0, 1, 2, 0, 1, 2])

  @jax.jit
  def run(reach):
    mask = masks.from_function(lambda t, s: (s - t)[None] <= reach[:, None, None])
    return attention.attend_heads(
      queries, keys, keys, mask=mask, implementation=implementation, block_sizes=BLOCK_SIZES
    )

  repeated = np.repeat(keys, 6 // num_key_heads, axis=0)
  allowed = pairs(lambda n, t, s: s - t <= reach[n], (6, T, S))
  assert_close(run(reach), expected(queries, repeated, repeated, mask=allowed), FLOAT32)


# Block summaries.


def test_empty_tiles_are_skipped():
  inputs = draw("scaled_dot_product")[:3]
  # Tiles of two keys. The summary differs from the function, which shows that it is used.
  mask = masks.from_function(lambda t, s: s >= 0, lambda t, s: (s[0] < 2, False))
  desired = expected(inputs[0], inputs[1][:2], inputs[2][:2])
  assert_close(context(inputs, mask, "blockwise"), desired, FLOAT32)
  # Full tiles of a mask are empty tiles of its opposite.
  mask = ~masks.from_function(lambda t, s: s < 0, lambda t, s: (True, s[1] >= 2))
  assert_close(context(inputs, mask, "blockwise"), desired, FLOAT32)


def test_block_mask_gets_tile_bounds():
  def block_summary(t, s):
    return (s[0] <= t[1]) & (t[0] >= 0), (s[1] <= t[0]) & (s[0] >= 0)

  mask = masks.from_function(lambda t, s: s <= t, block_summary)
  for first_t, last_t, first_s, last_s in (
    (0, 2, 3, 4),
    (0, 2, 2, 3),
    (3, 4, 0, 3),
    (3, 4, 0, 4),
    (5, 5, 5, 5),
  ):
    tile = jnp.arange(first_t, last_t + 1)[:, None], jnp.arange(first_s, last_s + 1)[None]
    allowed = mask.mask_mod(*tile)
    ends = [tuple(np.full((1, 1), end) for end in pair) for pair in ((first_t, last_t), (first_s, last_s))]
    any_allowed, all_allowed = mask.block_summary(*ends)
    assert (bool(any_allowed), bool(all_allowed)) == (bool(np.any(allowed)), bool(np.all(allowed)))
    not_any, not_all = (~mask).block_summary(*ends)
    assert (bool(not_any), bool(not_all)) == (not bool(all_allowed), not bool(any_allowed))


# Sequences that are sharded over devices.

SHARDED, SAME = PartitionSpec("data", "ring"), PartitionSpec()
WHOLE = 12  # positions on 3 devices


def run_sharded(function, in_specs=(SHARDED,), **options):
  mesh = jax.make_mesh((2, 3), ("data", "ring"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:6])
  return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=SHARDED, **options))


def in_ring(vectors, mask):
  return attention.ring_attention(
    attention.ScaledDotProduct(), *[vectors] * 3, axis_name="ring", mask=mask, block_sizes=(3, 3)
  )


def vectors_and_documents():
  rng = np.random.default_rng(0)
  return rng.normal(size=(B, WHOLE, 11)).astype(np.float32), jnp.asarray(
    np.sort(rng.integers(0, 3, size=WHOLE))
  )


def causal_within(documents):
  return masks.from_function(
    lambda t, s: (documents[t] == documents[s]) & (s <= t), lambda t, s: (s[0] <= t[1], False)
  )


def expected_within(vectors, documents):
  allowed = pairs(lambda t, s: documents[t] == documents[s] and s <= t, (WHOLE, WHOLE))
  return expected(*[vectors] * 3, mask=allowed)


def test_ring_positions_are_global():
  vectors, documents = vectors_and_documents()
  actual = run_sharded(lambda vectors: in_ring(vectors, causal_within(documents)))(vectors)
  assert_close(actual, expected_within(vectors, documents), FLOAT32)


@pytest.mark.parametrize("check_vma", [True, False])
def test_ring_closures_vary_over_devices(check_vma):
  vectors, documents = vectors_and_documents()

  def run(vectors, documents, is_declared):
    if is_declared:
      documents = jax.lax.pcast(documents, ("data", "ring"), to="varying")
    return in_ring(vectors, causal_within(documents))

  def sharded(is_declared):
    function = functools.partial(run, is_declared=is_declared)
    return run_sharded(function, (SHARDED, SAME), check_vma=check_vma)(vectors, documents)

  desired = expected_within(vectors, documents)
  assert_close(sharded(True), desired, FLOAT32)
  if check_vma:
    with pytest.raises(ValueError, match=r"inside jax.shard_map, traced arrays .* jax.lax.pcast"):
      sharded(False)
  else:
    assert_close(sharded(False), desired, FLOAT32)


def test_mixed_device_variation_raises():
  vectors, documents = vectors_and_documents()

  def run(vectors, documents):
    other = jax.lax.pcast(documents, "ring", to="varying")
    return in_ring(vectors, masks.from_function(lambda t, s: documents[t] == other[s]))

  with pytest.raises(ValueError, match=r"inside jax.shard_map, traced arrays .* jax.lax.pcast"):
    run_sharded(run, (SHARDED, SAME))(vectors, documents)


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
    (
      (lambda t, s: s <= t, lambda t, s: s[0] <= t[1]),
      r"block_summary must return a pair, \(any, ",
    ),
    (
      (lambda t, s: s <= t, lambda t, s: (s[0], s[1] <= t[0])),
      r"block_summary must return booleans.*got int32",
    ),
    (
      (lambda t, s: s <= t, lambda t, s: (True, True, True)),
      r"must return a pair.*True, True, True",
    ),
  ],
)
def test_invalid_functions_raise(arguments, words):
  with pytest.raises(ValueError, match=words):
    masks.from_function(*arguments)


def test_bare_function_has_a_hint():
  vectors = np.ones((3, 2), np.float32)
  with pytest.raises(ValueError, match=r"mask must be a mask such as .*from_function\(function\)"):
    attention.scaled_dot_product_attention(vectors, vectors, vectors, mask=lambda t, s: s <= t)
