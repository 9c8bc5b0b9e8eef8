"""Multi-head attention as a pure function of its weights."""

import dataclasses
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import BLOCK_SIZES, ENGINES, always, assert_close, mostly_blockwise
from helpers.model_reference import MODEL

import attention
from attention import masks, positions
from attention.arrays.shapes import same_rank
from attention.linear import merge_heads, project_heads

# The number of key heads must divide N. D, E, M: widths of queries, sources and result; W: of a value head.
DIMS = chex.Dimensions(B=2, T=3, S=5, N=6, H=7, D=11, E=13, W=17, M=19)
key_heads = pytest.mark.parametrize("K", always(3, of=[6, 3, 1]))
LENGTHS = np.array([4, 2])


def array(*shape, seed=0):
  return jnp.asarray(np.random.default_rng(seed).normal(scale=0.5, size=shape), jnp.float32)


def draw(K=6, has_biases=True):
  """Returns queries [B T D], sources [B S E] and weights with K key and value heads."""
  N, H, D, E, W, M = DIMS["NHDEWM"]
  kernels = array(D, N, H, seed=1), array(E, K, H, seed=2), array(E, K, W, seed=3)
  biases = array(N, H, seed=5), array(K, H, seed=6), array(K, W, seed=7), array(M, seed=8)
  weights = attention.MultiHeadWeights(*kernels, array(N, W, M, seed=4), *(biases if has_biases else ()))
  return array(*DIMS["BTD"], seed=9), array(*DIMS["BSE"], seed=10), weights


def fields(weights):
  return tuple(
    getattr(weights, kernel + kind)
    for kind in ("", "_bias")
    for kernel in ("query", "key", "value", "output")
  )


def random_mask(axes, seed=11):
  return np.random.default_rng(seed).random(DIMS[axes]) < 0.6


def alibi(t, s):
  """Press et al. 2022: a slope per head, [N 1 1]."""
  slopes = jnp.exp2(-jnp.arange(1.0, DIMS.N + 1))[:, None, None]
  return -slopes * jnp.abs(t - s).astype(jnp.float32)[None]


def alibi_array():
  distance = np.abs(np.arange(DIMS.T)[:, None] - np.arange(DIMS.S)[None])
  return -np.stack([2.0**-n * distance for n in range(1, DIMS.N + 1)])


real = np.arange(DIMS.S) < LENGTHS[:, None, None, None]
causal = np.arange(DIMS.S)[None] <= np.arange(DIMS.T)[:, None]

# Masks and biases, and the arrays [... N T S] that they represent.
MASKS = {
  "none": (None, np.array(True)),
  "pairs": (jnp.asarray(random_mask("TS")), random_mask("TS")),
  "keys": (jnp.asarray(random_mask("S")), random_mask("S")),
  "sentences": (jnp.asarray(random_mask("B1TS")), random_mask("B1TS")),
  "heads": (jnp.asarray(random_mask("NTS")), random_mask("NTS")),
  "heads_of_keys": (jnp.asarray(random_mask("BN1S")), random_mask("BN1S")),
  "lengths": (masks.lengths(source=jnp.asarray(LENGTHS)[:, None]), real),
  "causal_and_heads": (masks.causal() & jnp.asarray(random_mask("BNTS")), causal & random_mask("BNTS")),
}
BIASES = {
  "pairs": (array(*DIMS["TS"]), array(*DIMS["TS"])),
  "heads": (array(*DIMS["NTS"]), array(*DIMS["NTS"])),
  "heads_of_sentences": (array(*DIMS["BN1S"]), array(*DIMS["BN1S"])),
  "function": (lambda t, s: (s - t).astype(jnp.float32), np.arange(5)[None] - np.arange(3)[:, None]),
  "function_of_heads": (alibi, alibi_array()),
}


def assert_attends(K, mask=(None, True), bias=(None, 0.0), has_biases=True, implementation="dense"):
  queries, sources, weights = draw(K, has_biases)

  @jax.jit
  def run(*arguments):
    return attention.multi_head_attention(
      *arguments,
      mask=mask[0],
      bias=bias[0],
      return_weights=True,
      return_logsumexp=True,
      implementation=implementation,
      block_sizes=BLOCK_SIZES,
    )

  actual = run(queries, sources, weights)
  desired = reference.multi_head_attention(queries, sources, fields(weights), mask=mask[1], bias=bias[1])
  for one, other in zip(actual, desired, strict=True):
    assert_close(one, other, MODEL)


def test_two_heads_match_hand_value():
  # One query, 1; two sources, 0 and 2; H = 1.
  # Head 1: scores (0, ln 3), weights (1/4, 3/4), context 2 * 3/4 = 3/2.
  # Head 2: keys 0, weights (1/2, 1/2), values 10 times the sources, context 10. 3/2 + 10 / 5 = 7/2.
  half = np.log(3) / 2
  weights = attention.MultiHeadWeights(
    query=jnp.asarray([[[half], [half]]], jnp.float32),
    key=jnp.asarray([[[1.0], [0.0]]]),
    value=jnp.asarray([[[1.0], [10.0]]]),
    output=jnp.asarray([[[1.0]], [[0.2]]]),
  )
  result, pairs, _ = attention.multi_head_attention(
    jnp.asarray([[1.0]]), jnp.asarray([[0.0], [2.0]]), weights, return_weights=True
  )
  assert_close(result, [[3.5]], MODEL)
  assert_close(pairs, [[[0.25, 0.75]], [[0.5, 0.5]]], MODEL)


@pytest.mark.parametrize(("K", "has_biases"), [(3, True), (1, False)])
def test_consecutive_heads_share_keys(K, has_biases):
  assert_attends(K, has_biases=has_biases)


@pytest.mark.parametrize(
  ("mask", "K", "implementation"),
  always(
    *(("keys", 3, "dense"), ("sentences", 3, "blockwise"), ("heads", 3, "blockwise")),
    *(("heads_of_keys", 1, "blockwise"), ("lengths", 3, "dense")),
    of=list(itertools.product(MASKS, (3, 1), ENGINES)),
  ),
)
def test_masks_belong_to_query_heads(K, mask, implementation):
  assert_attends(K, mask=MASKS[mask], implementation=implementation)


@pytest.mark.parametrize(
  ("bias", "K", "implementation"),
  always(
    *(("pairs", 3, "dense"), ("heads", 3, "blockwise"), ("heads_of_sentences", 1, "dense")),
    *(("function", 1, "dense"), ("function_of_heads", 3, "blockwise")),
    of=list(itertools.product(BIASES, (3, 1), ENGINES)),
  ),
)
def test_biases_belong_to_query_heads(K, bias, implementation):
  assert_attends(K, mask=MASKS["causal_and_heads"], bias=BIASES[bias], implementation=implementation)


@mostly_blockwise
def test_batch_size_equal_to_key_heads(implementation):
  queries, keys = array(3, 6, 5, 7), array(3, 3, 11, 7, seed=1)
  lengths = np.array([3, 11, 7])
  actual = attention.attend_heads(
    queries,
    keys,
    keys,
    mask=masks.lengths(source=lengths[:, None]),
    implementation=implementation,
    block_sizes=BLOCK_SIZES,
  )
  repeated = np.repeat(keys, 2, axis=1)
  desired = reference.attend(
    reference.dot_product,
    queries,
    repeated,
    repeated,
    scale=7**-0.5,
    mask=np.arange(11) < lengths[:, None, None, None],
  )
  assert_close(actual, desired.context, MODEL)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Nearby(masks.Mask):
  """A custom mask without named axes."""

  distance: jax.Array

  def mask_mod(self, t, s):
    return jnp.abs(t - s)[None] <= self.distance[:, None, None]


@mostly_blockwise
@key_heads
def test_custom_masks_may_differ_by_head(K, implementation):
  distance = np.arange(6) % 4
  allowed = np.abs(np.arange(3)[:, None] - np.arange(5)) <= distance[:, None, None]
  both = Nearby(distance) & masks.prefix(4), allowed & (np.arange(5) < 4)
  assert_attends(K, mask=both, implementation=implementation)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Listed(masks.Mask):
  """A custom mask that names the axes of one of its two arrays."""

  axes = {"listed": "S"}
  listed: jax.Array
  shortest: jax.Array

  def mask_mod(self, t, s):
    return jnp.logical_or(*same_rank(self.listed[..., None, :], s[None] < self.shortest[:, None, None]))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ListedTerms(positions.PositionBias):
  """A custom bias that names the axes of one of its two arrays."""

  axes = {"terms": "S"}
  terms: jax.Array
  slopes: jax.Array

  def __call__(self, t, s):
    slanted = self.slopes[:, None, None] * jnp.abs(t - s)[None].astype(jnp.float32)
    return jnp.add(*same_rank(self.terms[..., None, :], slanted))


@mostly_blockwise
@key_heads
def test_custom_rules_may_name_some_axes(K, implementation):
  listed, shortest = array(6, 5) > 0, np.arange(6) % 3
  terms, slopes = np.asarray(array(6, 5)), np.asarray(array(6, seed=1))
  T, S = np.arange(3)[:, None], np.arange(5)
  assert_attends(
    K,
    mask=(Listed(listed, shortest), listed[:, None] | (shortest[:, None, None] > S)),
    bias=(ListedTerms(terms, slopes), terms[:, None] + slopes[:, None, None] * np.abs(T - S)),
    implementation=implementation,
  )


@key_heads
@pytest.mark.parametrize("asked", ["nothing", "weights", "logsumexp"])
def test_requested_results_are_returned(K, asked):
  queries, sources, weights = draw(K)
  options = {"return_weights": asked == "weights", "return_logsumexp": asked == "logsumexp"}
  result = attention.multi_head_attention(queries, sources, weights, **options)
  desired = reference.multi_head_attention(queries, sources, fields(weights))
  if asked == "nothing":
    assert_close(result, desired.context, MODEL)
  else:
    assert_close(result.context, desired.context, MODEL)
    assert_close(getattr(result, asked), getattr(desired, asked), MODEL)
    assert [result.weights, result.logsumexp].count(None) == 1


@key_heads
def test_dropout_matches_repeated_heads(K):
  queries, sources, weights = draw(K)
  repeated = attention.MultiHeadWeights(
    *(
      leaf if leaf is None or name not in ("key", "value") else jnp.repeat(leaf, 6 // K, axis=-2)
      for leaf, name in zip(fields(weights), ("query", "key", "value", "output") * 2, strict=True)
    )
  )
  options = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}
  grouped = attention.multi_head_attention(queries, sources, weights, **options)
  whole = attention.multi_head_attention(queries, sources, repeated, **options)
  assert_close(grouped, whole, MODEL)
  undropped = attention.multi_head_attention(queries, sources, weights)
  assert np.max(np.abs(grouped - undropped)) > 0.1


@key_heads
def test_other_scores_are_accepted(K):
  queries, sources, weights = draw(K, has_biases=False)
  vector = array(DIMS.H, seed=12)
  _, pairs, _ = attention.multi_head_attention(
    queries, sources, weights, score=attention.Additive(vector), return_weights=True
  )
  queries, sources = np.float64(queries), np.float64(sources)
  for n in range(DIMS.N):
    k = n // (DIMS.N // K)
    desired = reference.attend(
      reference.additive,
      queries @ np.float64(weights.query[:, n]),
      sources @ np.float64(weights.key[:, k]),
      sources,
      score_vector=vector,
    )
    assert_close(pairs[:, n], desired.weights, MODEL)


@key_heads
def test_score_parameters_per_query_head(K):
  queries, sources, weights = draw(K, has_biases=False)
  scales = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
  _, pairs, _ = attention.multi_head_attention(
    queries, sources, weights, score=attention.ScaledDotProduct(scales), return_weights=True
  )
  queries, sources = np.float64(queries), np.float64(sources)
  for n in range(DIMS.N):
    desired = reference.attend(
      reference.dot_product,
      queries @ np.float64(weights.query[:, n]),
      sources @ np.float64(weights.key[:, n // (DIMS.N // K)]),
      sources,
      scale=scales[n],
    )
    assert_close(pairs[:, n], desired.weights, MODEL)


@key_heads
def test_sources_may_be_shared_by_sentences(K):
  queries, sources, weights = draw(K)
  actual = attention.multi_head_attention(queries, sources[0], weights)
  desired = reference.multi_head_attention(queries, sources[0], fields(weights)).context
  assert_close(actual, desired, MODEL)


@key_heads
def test_weight_gradients_match_formula(K):
  queries, sources, weights = draw(K)
  mask, allowed = MASKS["causal_and_heads"]
  random = array(*DIMS["BTM"], seed=13)

  @jax.jit
  def loss(weights, mask):
    return jnp.sum(random * attention.multi_head_attention(queries, sources, weights, mask=mask))

  gradients = jax.grad(loss)(weights, mask)
  rng = np.random.default_rng(14)
  direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), weights)

  def reference_loss(step):
    changed = jax.tree.map(lambda leaf, way: np.float64(leaf) + step * way, weights, direction)
    result = reference.multi_head_attention(queries, sources, fields(changed), mask=allowed)
    return np.sum(np.float64(random) * result.context)

  slope = reference.derivative(reference_loss, 0.0, 1.0)
  actual = sum(
    np.sum(np.float64(gradient) * way)
    for gradient, way in zip(jax.tree.leaves(gradients), jax.tree.leaves(direction), strict=True)
  )
  assert_close(actual / slope, 1.0, MODEL)


def test_half_precision_results():
  queries, sources, weights = draw(3)
  halves = queries.astype(jnp.bfloat16), sources.astype(jnp.bfloat16)
  result = attention.multi_head_attention(*halves, weights)
  assert result.dtype == jnp.bfloat16
  desired = reference.multi_head_attention(*halves, fields(weights)).context
  # bfloat16 has 8 bits; four products follow each other.
  assert_close(result, desired, 4 * 2.0**-7)


@key_heads
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_wrong_number_of_heads_raises(K, name):
  queries, sources, weights = draw(K)
  pairs = jnp.ones((5, DIMS.T, DIMS.S), bool if name == "mask" else jnp.float32)
  with pytest.raises(ValueError, match=rf"{name}.*5, 3, 5\)"):
    attention.multi_head_attention(queries, sources, weights, **{name: pairs})


def test_projection_and_merge_match_loops():
  inputs, kernel, bias = array(*DIMS["BTD"]), array(*DIMS["DNH"]), array(*DIMS["NH"])
  heads = project_heads(inputs, kernel, bias)
  output, output_bias = array(*DIMS["NHM"]), array(DIMS.M)
  merged = merge_heads(heads, output, output_bias)
  desired = np.float64(output_bias) + np.zeros(DIMS["BTM"])
  for n in range(DIMS.N):
    head = np.float64(inputs) @ np.float64(kernel[:, n]) + np.float64(bias[n])
    assert_close(heads[:, n], head, MODEL)
    desired += head @ np.float64(output[n])
  assert_close(merged, desired, MODEL)


def test_grouped_heads_take_half_precision_with_float32_parameters():
  rngs = jax.random.split(jax.random.key(0), 4)
  queries = jax.random.normal(rngs[0], (4, 3, 7), jnp.bfloat16)
  keys = jax.random.normal(rngs[1], (2, 5, 7), jnp.bfloat16)
  score = attention.Bilinear(jax.random.normal(rngs[2], (7, 7)))
  actual = attention.attend_heads(queries, keys, keys, score=score)
  repeated = jnp.repeat(keys, 2, axis=0)
  np.testing.assert_array_equal(actual, attention.attend(score, queries, repeated, repeated))
