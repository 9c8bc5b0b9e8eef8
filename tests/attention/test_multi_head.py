"""Multi-head attention as a pure function, and grouped heads."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.model_reference import float64, softmax

import attention
from attention import masks, positions
from attention.arrays.shapes import same_rank

# Pairs of the N query heads share the K key heads. D, E, M: widths of queries, sources and result; H, W: of
# queries and values of one head.
DIMS = chex.Dimensions(B=2, T=3, S=5, N=6, K=3, H=7, D=11, E=13, W=17, M=19)
rng = np.random.default_rng(0)


def draw(rng, *shape):
  return rng.normal(scale=0.5, size=shape).astype(np.float32)


QUERIES, SOURCES = draw(rng, *DIMS["BTD"]), draw(rng, *DIMS["BSE"])
WEIGHTS = attention.MultiHeadWeights(
  *(draw(rng, *DIMS[axes]) for axes in ("DNH", "EKH", "EKW", "NWM", "NH", "KH", "KW", "M"))
)
LENGTHS = np.array([4, 2])
engines = pytest.mark.parametrize("implementation", ["dense", "blockwise"])
assert_close = functools.partial(chex.assert_trees_all_close, rtol=1e-4, atol=1e-4)


def formula(queries, sources, weights, mask=True, bias=0.0, scores=None):
  """Returns the context, weights and logsumexp in NumPy; each row must have an allowed key."""

  def heads(inputs, kernel, bias):
    projected = np.einsum("...TD,DNH->...NTH", inputs, kernel) + (0 if bias is None else bias[:, None])
    return np.repeat(projected, DIMS.N // projected.shape[-3], axis=-3)

  queries, sources, weights = float64((queries, sources, weights))
  q = heads(queries, weights.query, weights.query_bias)
  k = heads(sources, weights.key, weights.key_bias)
  v = heads(sources, weights.value, weights.value_bias)
  products = np.einsum("...TH,...SH->...TS", q, k) / np.sqrt(DIMS.H) if scores is None else scores(q, k)
  logits = np.where(mask, products + bias, -np.inf)
  pairs = softmax(logits)
  context = np.einsum("...NTW,NWM->...TM", pairs @ v, weights.output)
  context = context if weights.output_bias is None else context + weights.output_bias
  return context, pairs, np.log(np.exp(logits).sum(axis=-1))


def attend(queries=QUERIES, sources=SOURCES, weights=WEIGHTS, **options):
  """Returns the context, weights and logsumexp."""

  @jax.jit
  def run(*arguments):
    returned = {"return_weights": True, "return_logsumexp": True}
    return tuple(attention.multi_head_attention(*arguments, block_sizes=(2, 2), **returned, **options))

  return jax.device_get(run(queries, sources, weights))


def test_two_heads_match_hand_value():
  # One query, 1; two sources, 0 and 2; H = 1.
  # Head 1: scores (0, ln 3), weights (1/4, 3/4), context 2 * 3/4 = 3/2.
  # Head 2: keys 0, weights (1/2, 1/2), values 10 times the sources, context 10. 3/2 + 10 / 5 = 7/2.
  half = np.log(3) / 2
  weights = attention.MultiHeadWeights(
    query=jnp.array([[[half], [half]]]),
    key=jnp.array([[[1.0], [0.0]]]),
    value=jnp.array([[[1.0], [10.0]]]),
    output=jnp.array([[[1.0]], [[0.2]]]),
  )
  context, pairs, _ = attend(jnp.array([[1.0]]), jnp.array([[0.0], [2.0]]), weights)
  assert_close(context, np.array([[3.5]]))
  assert_close(pairs, np.array([[[0.25, 0.75]], [[0.5, 0.5]]]))


@pytest.mark.parametrize("K", [6, 1])
def test_consecutive_heads_share_keys(K):
  rng = np.random.default_rng(0)
  kernels = dataclasses.replace(
    WEIGHTS,
    key=draw(rng, DIMS.E, K, DIMS.H),
    value=draw(rng, DIMS.E, K, DIMS.W),
    key_bias=None,
    value_bias=None,
  )
  assert_close(attend(weights=kernels), formula(QUERIES, SOURCES, kernels))


def random_mask(rng, *shape):
  return (rng.random(shape) < 0.6) | (np.arange(DIMS.S) == 0)


B, T, S, N = DIMS["BTSN"]
t, s = np.arange(T)[:, None], np.arange(S)
OF_HEADS, OF_KEYS, OF_SENTENCES = (
  random_mask(rng, N, T, S),
  random_mask(rng, B, N, 1, S),
  random_mask(rng, B, 1, T, S),
)
TERMS, SLOPES = draw(rng, B, N, 1, S), 2.0 ** -np.arange(1, N + 1)


def alibi(t, s):
  """Press et al. 2022: a slope per head, [N 1 1]."""
  return jnp.asarray(-SLOPES, jnp.float32)[:, None, None] * jnp.abs(t - s).astype(jnp.float32)[None]


@pytest.mark.parametrize(
  ("mask", "allowed", "bias", "terms", "implementation"),
  [
    (OF_HEADS, OF_HEADS, TERMS, TERMS, "dense"),
    (OF_KEYS, OF_KEYS, lambda t, s: (s - t).astype(jnp.float32), s - t, "dense"),
    (OF_SENTENCES, OF_SENTENCES, alibi, -SLOPES[:, None, None] * np.abs(t - s), "blockwise"),
    (masks.lengths(source=LENGTHS[:, None]), s < LENGTHS[:, None, None, None], None, 0.0, "blockwise"),
    (masks.causal() & OF_KEYS, (s <= t) & OF_KEYS, TERMS[0], TERMS[0], "blockwise"),
  ],
  ids=["heads", "keys", "sentences", "lengths", "causal"],
)
def test_masks_and_biases_have_query_heads(mask, allowed, bias, terms, implementation):
  actual = attend(mask=mask, bias=bias, implementation=implementation)
  assert_close(actual, formula(QUERIES, SOURCES, WEIGHTS, allowed, terms))


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


@engines
def test_custom_rules_may_differ_by_head(implementation):
  rng = np.random.default_rng(0)
  listed, shortest = random_mask(rng, N, S), np.arange(N) % 3
  terms, slopes = np.float32(rng.normal(size=(N, S))), np.float32(SLOPES)
  rules = {"mask": Listed(listed, shortest) & masks.prefix(4), "bias": ListedTerms(terms, slopes)}
  allowed = (listed[:, None] | (shortest[:, None, None] > s)) & (s < 4)
  desired = formula(
    QUERIES, SOURCES, WEIGHTS, allowed, terms[:, None] + slopes[:, None, None] * np.abs(t - s)
  )
  assert_close(attend(implementation=implementation, **rules), desired)


def test_batch_size_equal_to_key_heads():
  rng = np.random.default_rng(0)
  queries, keys, lengths = draw(rng, 3, 6, 5, 7), draw(rng, 3, 3, 11, 7), np.array([3, 11, 7])
  mask = masks.lengths(source=lengths[:, None])
  actual = jax.jit(lambda: attention.attend_heads(queries, keys, keys, mask=mask))()
  q, k = np.asarray(queries), np.repeat(keys, 2, axis=1)
  scores = np.einsum("BNTH,BNSH->BNTS", q, k) / np.sqrt(7)
  assert_close(actual, softmax(np.where(np.arange(11) < lengths[:, None, None, None], scores, -np.inf)) @ k)


def test_scores_may_differ_by_head():
  scale = np.float32([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])

  def scores(queries, keys):
    return scale[:, None, None] * np.einsum("...TH,...SH->...TS", queries, keys)

  actual = attend(score=attention.ScaledDotProduct(scale))
  assert_close(actual, formula(QUERIES, SOURCES, WEIGHTS, scores=scores))


def test_requested_results_with_shared_sources():
  arguments = QUERIES, SOURCES[0], WEIGHTS

  @jax.jit
  def run():
    options = {}, {"return_weights": True}, {"return_logsumexp": True}
    return [attention.multi_head_attention(*arguments, **each) for each in options]

  context, weights, logsumexp = formula(*arguments)
  desired = context, (context, weights, None), (context, None, logsumexp)
  for actual, results in zip(run(), desired, strict=True):
    assert_close(jax.tree.leaves(actual), jax.tree.leaves(results))


@engines
def test_grouped_heads_equal_repeated_heads(implementation):
  rng = np.random.default_rng(0)
  names, random = ("key", "value", "key_bias", "value_bias"), draw(rng, *DIMS["BTM"])
  arrays = {name: np.repeat(getattr(WEIGHTS, name), DIMS.N // DIMS.K, axis=-2) for name in names}

  @jax.jit
  def run(inputs, weights):
    def loss(inputs):
      options = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0), "return_weights": True}
      options |= {"mask": masks.causal() & OF_KEYS, "implementation": implementation, "block_sizes": (2, 2)}
      context, pairs, _ = attention.multi_head_attention(*inputs, weights, **options)
      return jnp.sum(random * context), (context, pairs)

    return jax.grad(loss, has_aux=True)(inputs)

  grouped = run((QUERIES, SOURCES), WEIGHTS)
  assert_close(grouped, run((QUERIES, SOURCES), dataclasses.replace(WEIGHTS, **arrays)))
  without = formula(QUERIES, SOURCES, WEIGHTS, (s <= t) & OF_KEYS)
  assert np.max(np.abs(grouped[1][0] - without[0])) > 0.1


def test_half_precision_results():
  halves = QUERIES.astype(jnp.bfloat16), SOURCES.astype(jnp.bfloat16)
  context = attend(*halves)[0]
  assert context.dtype == jnp.bfloat16
  desired = formula(*halves, WEIGHTS)[0]
  # bfloat16 has 8 bits; four products follow each other.
  np.testing.assert_allclose(context.astype(jnp.float32), desired, rtol=4 * 2**-7, atol=4 * 2**-7)


def test_grouped_heads_take_half_precision():
  rng = np.random.default_rng(0)
  queries, keys = draw(rng, 4, 3, 7).astype(jnp.bfloat16), draw(rng, 2, 5, 7).astype(jnp.bfloat16)
  score, repeated = attention.Bilinear(draw(rng, 7, 7)), np.repeat(keys, 2, axis=0)  # with float32 parameters
  actual = attention.attend_heads(queries, keys, keys, score=score)
  chex.assert_trees_all_equal(actual, attention.attend(score, queries, repeated, repeated))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"bias": np.ones((5, T, S), np.float32)}, r"bias.*5, 3, 5\)"),
    ({"weights": WEIGHTS.query}, "weights must be MultiHeadWeights, got"),
    ({"nonsense": 1}, "nonsense"),
  ],
)
def test_invalid_arguments_raise(change, message):
  with pytest.raises((ValueError, TypeError), match=message):
    attention.multi_head_attention(QUERIES, SOURCES, **({"weights": WEIGHTS} | change))


@pytest.mark.parametrize(
  ("queries", "keys", "values", "message"),
  [
    ((4, 3, 7), (3, 5, 7), (3, 5, 7), "must be a multiple of the number of key heads, .* queries 4, keys 3"),
    ((4, 3, 7), (2, 5, 7), (4, 5, 7), r"same number of heads, got queries 4, keys 2, values 4(\n|$)"),
    ((4, 5, 7), (3, 5, 7), (3, 5, 7), "keys 3, values 3; .+"),  # perhaps [... T N H]
    ((2, 4, 3, 7), (3, 2, 5, 7), (2, 5, 7), r"leading axes .* must broadcast, got shapes \(2, 4, 3, 7\)"),
    ((3, 7), (5, 7), (5, 7), r"queries must have axes \[... N T H\]"),
  ],
)
def test_invalid_heads_raise(queries, keys, values, message):
  with pytest.raises(ValueError, match=message):
    attention.attend_heads(*(jnp.ones(shape) for shape in (queries, keys, values)))
