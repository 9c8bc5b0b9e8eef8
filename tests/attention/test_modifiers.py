"""Modified scores: caps, position biases, rotary embeddings; combined, trained, in both engines."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import BLOCK_SIZES, DIMS, FLOAT32, assert_close, draw, mostly_blockwise

import attention
from attention import masks, positions
from attention.arrays.named_axes import leaf_axes

B, N, T, S, H = DIMS["BNTSH"]


def attend(score, inputs, implementation, **options):
  return attention.attend(
    score, *inputs[:3], implementation=implementation, block_sizes=BLOCK_SIZES, **options
  )


@mostly_blockwise
def test_soft_cap_matches_formula(implementation):
  inputs = draw("additive", "BNTH", "B1SH", "B1SD")
  vectors = np.random.default_rng(2).normal(size=(N, H)).astype(np.float32)
  caps = np.linspace(0.5, 3.0, N).astype(np.float32)

  def capped(query, key, score_vector, scale):
    return scale * np.tanh(reference.additive(query, key, score_vector) / scale)

  desired = reference.attend(
    capped, *inputs[:3], score_vector=vectors, scale=caps, mask=np.tri(T, S, 1, dtype=bool)
  )

  def context(caps):
    score = attention.SoftCap(attention.Additive(vectors), caps)
    return attend(score, inputs, implementation, mask=masks.causal(1))

  assert_close(jax.jit(context)(caps), desired.context, FLOAT32)
  of_loss = np.random.default_rng(1).normal(size=desired.context.shape).astype(np.float32)

  def loss(caps):
    return np.sum(
      of_loss
      * reference.attend(
        capped, *inputs[:3], score_vector=vectors, scale=caps, mask=np.tri(T, S, 1, dtype=bool)
      ).context
    )

  actual = jax.grad(lambda caps: jnp.sum(of_loss * context(caps)))(caps)
  assert_close(actual, reference.gradient(loss, caps), 8 * FLOAT32)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_distances_are_not_rounded(dtype):
  bias = positions.ALiBi(jnp.asarray(0.5, dtype))(jnp.array([[70001]]), jnp.array([[0, 69000]]))
  np.testing.assert_array_equal(bias, [[-35000.5, -500.5]])


@mostly_blockwise
@pytest.mark.parametrize("cap", [0, -1, 0.0, -1.0, float("nan"), np.float32(-1), np.float32([1, 0])])
def test_a_cap_is_positive(cap, implementation):
  with pytest.raises(ValueError, match="SoftCap takes a score and a cap"):
    attention.SoftCap(5.0, attention.ScaledDotProduct())

  def capped(vectors):
    score = attention.SoftCap(attention.ScaledDotProduct(), cap)
    return attention.attend(score, vectors, vectors, vectors, implementation=implementation)

  for function in (capped, jax.jit(capped)):  # inside jit it is known too
    with pytest.raises(ValueError, match="cap must be positive"):
      function(np.ones((2, T, H), np.float32))


def test_capped_score_trees_hold_any_leaves():
  score = attention.SoftCap(attention.ScaledDotProduct(2.0), 5.0)
  assert jax.tree.leaves(jax.tree.map(np.ndim, score)) == [0, 0]
  assert jax.tree.leaves(jax.tree.map(lambda number: np.float32(-number), score)) == [-2, -5]


@mostly_blockwise
@pytest.mark.parametrize("lengths", [(0, S), (T, 0)])
def test_relative_positions_of_empty_tiles(lengths, implementation):
  queries, keys = (np.ones((length, 2), np.float32) for length in lengths)
  bias = positions.RelativePositionBias(np.ones((N, 8), np.float32))
  context = attention.scaled_dot_product_attention(
    np.broadcast_to(queries, (N, *queries.shape)), keys, keys, bias=bias, implementation=implementation
  )
  np.testing.assert_array_equal(context, np.zeros((N, lengths[0], 2)))


@pytest.mark.parametrize(
  ("count", "max_distance", "bidirectional", "words"),
  [
    (3, 128, True, "number of buckets must be at least 4, got 3"),
    (1, 128, False, "number of buckets must be at least 2, got 1"),
    (32, 8, True, "max_distance must be more than 8 with 32 buckets, got 8"),
  ],
)
def test_relative_positions_need_buckets(count, max_distance, bidirectional, words):
  bias = positions.RelativePositionBias(jnp.zeros(count), max_distance, bidirectional)
  vectors = jnp.ones((T, H))
  with pytest.raises(ValueError, match=words):
    attention.scaled_dot_product_attention(vectors, vectors, vectors, bias=bias)


def test_alibi_slopes_match_the_paper():
  # By hand: 2^-2, 2^-4, 2^-6, 2^-8, and every second of 2^-1, 2^-2, ... 2^-8.
  np.testing.assert_array_equal(positions.alibi_slopes(6), 2.0 ** -np.array([2, 4, 6, 8, 1, 3], np.float32))
  with pytest.raises(ValueError, match="num_heads must be an integer of at least 1, got 0"):
    positions.alibi_slopes(0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Misnamed(attention.Score):
  """A score whose axes do not match its fields."""

  axes = {"scales": ""}
  scale: jax.Array


@mostly_blockwise
def test_missing_axes_raise(implementation):
  inputs = draw("additive")
  with pytest.raises(ValueError, match=r"Misnamed.axes must contain names of fields, got 'scales'"):
    attend(Misnamed(jnp.ones(())), inputs, implementation)


def test_arrays_with_too_few_axes_raise():
  inputs = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")
  bias = positions.RelativePositionBias(jnp.float32(1.0))
  with pytest.raises(
    ValueError, match=r"RelativePositionBias.table must have axes \[... R\], got shape \(\)"
  ):
    attend(attention.ScaledDotProduct(), inputs, "blockwise", bias=bias)


def test_nested_score_axes_are_known():
  score = attention.SoftCap(attention.Additive(jnp.ones((N, H))), 5.0)
  assert leaf_axes(score) == ["A", ""]


@mostly_blockwise
def test_alibi_matches_formula(implementation):
  inputs = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")
  slopes = np.asarray(positions.alibi_slopes(N))
  distance = np.abs(np.arange(T)[:, None] - np.arange(S))
  scale = {"scale": H**-0.5}

  def context(slopes):
    return attend(attention.ScaledDotProduct(), inputs, implementation, bias=positions.ALiBi(slopes))

  def desired(slopes):
    bias = -slopes[:, None, None] * distance
    return reference.attend(reference.dot_product, *inputs[:3], bias=bias, **scale).context

  assert_close(jax.jit(context)(slopes), desired(slopes), FLOAT32)
  of_loss = np.random.default_rng(1).normal(size=(B, N, T, DIMS.D)).astype(np.float32)
  actual = jax.grad(lambda slopes: jnp.sum(of_loss * context(slopes)))(slopes)
  assert_close(
    actual, reference.gradient(lambda slopes: np.sum(of_loss * desired(slopes)), slopes), 16 * FLOAT32
  )


def bucket(distance, count, max_distance, bidirectional):
  """The bucket of a distance: T5's rule for a single pair."""
  ahead = 0
  if bidirectional:
    count //= 2
    ahead = count if distance > 0 else 0
  elif distance > 0:
    distance = 0
  distance = abs(distance)
  if distance < count // 2:
    return ahead + distance
  share = np.log(distance / (count // 2)) / np.log(max_distance / (count // 2))
  return ahead + min(count // 2 + int(share * (count - count // 2)), count - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (1, 1), (1, 7), (7, 1), (40, 50)])
def test_relative_positions_for_each_distance(bidirectional, rows, columns):
  table = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
  bias = positions.RelativePositionBias(table, max_distance=30, bidirectional=bidirectional)
  t, s = np.arange(17, 17 + rows), np.arange(11, 11 + columns)
  desired = [[[row[bucket(j - i, 8, 30, bidirectional)] for j in s] for i in t] for row in table]
  np.testing.assert_array_equal(jax.jit(lambda t, s: bias(t, s))(t[:, None], s[None, :]), np.float32(desired))


@mostly_blockwise
def test_relative_positions_have_gradients(implementation):
  inputs = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")
  table = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
  buckets = np.array([[bucket(s - t, 4, 8, False) for s in range(S)] for t in range(T)])

  def context(table):
    bias = positions.RelativePositionBias(table, max_distance=8, bidirectional=False)
    return attend(attention.ScaledDotProduct(), inputs, implementation, bias=bias, mask=masks.causal(2))

  def desired(table):
    bias = table[:, buckets]
    mask = np.tri(T, S, 2, dtype=bool)
    return reference.attend(reference.dot_product, *inputs[:3], bias=bias, mask=mask, scale=H**-0.5).context

  assert_close(jax.jit(context)(table), desired(table), FLOAT32)
  of_loss = np.random.default_rng(1).normal(size=(B, N, T, DIMS.D)).astype(np.float32)
  actual = jax.grad(lambda table: jnp.sum(of_loss * context(table)))(table)
  assert_close(actual, reference.gradient(lambda table: np.sum(of_loss * desired(table)), table), 8 * FLOAT32)


def test_rotation_depends_on_position_differences():
  rng = np.random.default_rng(0)
  query, key = rng.normal(size=(2, 1, 6)).astype(np.float32)
  assert_close(np.linalg.norm(positions.rotary(query, np.array([13]))), np.linalg.norm(query), FLOAT32)
  products = [
    float(jnp.sum(positions.rotary(query, np.array([t])) * positions.rotary(key, np.array([s]))))
    for t, s in ((0, 5), (3, 8), (100, 105))
  ]
  assert_close(products, np.full(3, products[0]), 100 * FLOAT32)
  assert abs(products[0] - float(np.sum(query * key))) > 1e-2


def test_rotation_by_hand_and_by_batch():
  # Width 4: per position, the first pair rotates by 1, the second by 1/100.
  vectors = np.float32([1.0, 0.0, 0.0, 1.0])
  turned = positions.rotary(np.broadcast_to(vectors, (2, 3, 4)), np.array([[0, 1, 2], [3, 4, 5]]))
  angles = np.arange(6).reshape(2, 3, 1) * np.array([1.0, 0.01])
  desired = np.stack(
    [np.cos(angles[..., 0]), -np.sin(angles[..., 1]), np.sin(angles[..., 0]), np.cos(angles[..., 1])], axis=-1
  )
  assert_close(turned, desired, FLOAT32)


def test_rotation_needs_an_even_width():
  with pytest.raises(ValueError, match=r"the width of the vectors must be even, got shape \(3, 5\)"):
    positions.rotary(jnp.ones((3, 5)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tilted(attention.Score):
  """A user-defined score with a named vector per head."""

  axes = {"tilt": "H"}
  tilt: jax.Array

  def scores(self, query_features, key_features):
    tilted = query_features * self.tilt[..., None, :]
    return tilted @ key_features.swapaxes(-1, -2)


@mostly_blockwise
def test_custom_scores_are_cut_by_axes(implementation):
  inputs = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")
  tilt = np.random.default_rng(0).normal(size=(1, N, H)).astype(np.float32) * H**-0.5

  def tilted(query, key, score_vector):
    return np.sum(query * score_vector * key)

  desired = reference.attend(tilted, *inputs[:3], score_vector=tilt[0]).context
  assert_close(attend(Tilted(jnp.asarray(tilt)), inputs, implementation), desired, FLOAT32)
