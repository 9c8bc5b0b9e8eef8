"""Custom scores, masks and biases, in both engines."""

import dataclasses
import functools

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
  draw,
  mostly_blockwise,
)

import attention
from attention import masks, positions
from attention.arrays.shapes import same_rank

T, S = DIMS["TS"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedByHead(attention.Score):
  """A wrong score: it returns the scores of several heads."""

  num_heads: int = dataclasses.field(default=DIMS.N, metadata={"static": True})

  def scores(self, query_features, key_features):
    scores = jnp.einsum("...TH,...SH->...TS", query_features, key_features)
    factors = jnp.linspace(0.1, 0.7, self.num_heads, dtype=scores.dtype)[:, None, None]
    return jnp.multiply(*same_rank(scores, factors))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedMask(masks.Mask):
  """A mask in which each head allows one key less than the previous one."""

  num_heads: int = dataclasses.field(default=DIMS.N, metadata={"static": True})

  def mask_mod(self, t, s):
    return s[None] < S - np.arange(self.num_heads)[:, None, None] % 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedBias(positions.PositionBias):
  """A bias whose heads differ by something other than its arrays."""

  num_heads: int = dataclasses.field(default=DIMS.N, metadata={"static": True})

  def __call__(self, t, s):
    return (
      np.arange(self.num_heads, dtype=np.float32)[:, None, None] * jnp.abs(t - s).astype(jnp.float32)[None]
    )


@pytest.mark.parametrize(
  "rules",
  [
    {"mask": FixedMask()},
    {"bias": FixedBias()},
    {"bias": lambda t, s: (t - s).astype(jnp.float32)[None, None]},
    {"bias": positions.ALiBi([0.1 * n for n in range(DIMS.N)])},
  ],
  ids=["mask", "bias", "function", "list"],
)
def test_rules_may_add_leading_axes(rules):
  vectors = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")[:3]
  arguments = {"score": attention.ScaledDotProduct(), **rules}
  score = arguments.pop("score")

  @jax.jit
  def run(vectors):
    options = arguments | {"block_sizes": BLOCK_SIZES}
    return [attention.attend(score, *vectors, **options, implementation=engine) for engine in ENGINES]

  assert_close(*run(vectors), FLOAT32)


@mostly_blockwise
@pytest.mark.parametrize("num_key_heads", always(2, of=[1, 2, 3]))
@pytest.mark.parametrize(
  "rules",
  [{"mask": FixedMask(6)}, {"bias": FixedBias(6)}],
  ids=["mask", "bias"],
)
def test_rules_may_add_axes_to_groups(rules, num_key_heads, implementation):
  rng = np.random.default_rng(0)
  queries = rng.normal(size=(6, T, 11)).astype(np.float32)
  keys = rng.normal(size=(num_key_heads, S, 11)).astype(np.float32)
  options = {"implementation": implementation, "block_sizes": BLOCK_SIZES}
  actual = attention.attend_heads(queries, keys, keys, **rules, **options)
  repeated = np.repeat(keys, 6 // num_key_heads, axis=0)
  assert_close(actual, attention.attend_heads(queries, repeated, repeated, **rules, **options), FLOAT32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decaying(attention.ScaledDotProduct):
  """Scores plus bias, halved every `half_life` positions between query and key, then capped."""

  axes = {"scale": "", "half_life": ""}
  half_life: jax.Array | float = 2.0

  def score_mod(self, scores, t, s):
    distance = abs(t - s).astype(scores.dtype)
    half_life = jnp.asarray(self.half_life, scores.dtype)[..., None, None]
    distance, half_life, scores = same_rank(distance, half_life, scores)
    return 3 * jnp.tanh(scores * 2 ** (-distance / half_life) / 3)


def decayed(scores, half_life):
  distance = np.abs(np.arange(T)[:, None] - np.arange(S))
  return 3 * np.tanh(scores * 2 ** (-distance / half_life) / 3)


@mostly_blockwise
def test_scores_may_depend_on_positions(implementation):
  queries, keys, values, _, bias = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD", bias="TS")
  half_lives = np.linspace(1, 5, DIMS.N, dtype=np.float32)
  allowed = np.tri(T, S, 1, dtype=bool)

  def context(half_lives):
    return attention.attend(
      Decaying(1.0, half_lives),
      queries,
      keys,
      values,
      bias=bias,
      mask=masks.causal(1),
      implementation=implementation,
      block_sizes=BLOCK_SIZES,
    )

  def expected(half_lives):
    scores = np.einsum("bnth,bnsh->bnts", np.float64(queries), np.float64(keys)) + bias
    scores = np.where(allowed, decayed(scores, half_lives[:, None, None]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bnts,bnsd->bntd", weights / weights.sum(-1, keepdims=True), values)

  assert_close(context(half_lives), expected(np.float64(half_lives)), FLOAT32)
  of_loss = np.random.default_rng(1).normal(size=expected(half_lives).shape)
  slopes = jax.grad(lambda half_lives: jnp.sum(of_loss.astype(np.float32) * context(half_lives)))(half_lives)
  for n in range(DIMS.N):
    step = 1e-5 * np.eye(DIMS.N)[n]
    ahead, behind = (np.sum(of_loss * expected(half_lives + sign * step)) for sign in (1, -1))
    assert_close(slopes[n], (ahead - behind) / 2e-5, 32 * FLOAT32)


@mostly_blockwise
def test_minus_infinity_bias_and_modified_scores(implementation):
  queries, keys, values, *_ = draw("scaled_dot_product")
  allowed = np.tri(T, S, 1, dtype=bool)

  @functools.partial(jax.jit, static_argnums=1)
  def context_and_slope(half_life, by_bias):
    def context(half_life):
      mask, bias = (None, np.where(allowed, 0, -np.inf).astype(np.float32)) if by_bias else (allowed, None)
      score = Decaying(1.0, half_life)
      options = {"implementation": implementation, "block_sizes": BLOCK_SIZES}
      return attention.attend(score, queries, keys, values, mask=mask, bias=bias, **options)

    return context(half_life), jax.jacrev(context)(half_life)

  # tanh(-infinity) is -1; its derivative is 0 times infinity.
  for actual, desired in zip(*(context_and_slope(2.0, by_bias) for by_bias in (True, False)), strict=True):
    assert np.all(np.isfinite(desired))
    assert_close(actual, desired, 8 * FLOAT32)


@mostly_blockwise
def test_lists_of_numbers_have_gradients(implementation):
  vectors = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")[:3]

  def loss(slopes):
    options = {"bias": positions.ALiBi(slopes), "implementation": implementation}
    return jnp.sum(attention.scaled_dot_product_attention(*vectors, **options) ** 2)

  slopes = [0.1 * n for n in range(DIMS.N)]
  desired = jax.grad(loss)(jnp.asarray(slopes))
  assert_close(jnp.stack(jax.grad(loss)(slopes)), desired, 8 * FLOAT32)
  assert_close(jnp.stack(jax.jit(jax.grad(loss))(slopes)), desired, 8 * FLOAT32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Flagged(attention.Score):
  """A score with boolean features."""

  def key_features(self, keys):
    return {"keys": keys, "flag": keys[..., :1] > 0}

  def scores(self, query_features, key_features):
    scores = jnp.einsum("...TH,...SH->...TS", query_features, key_features["keys"])
    return jnp.where(jnp.swapaxes(~key_features["flag"], -1, -2), scores, 0)


@mostly_blockwise
def test_features_may_be_flags(implementation):
  queries, keys, values = draw("scaled_dot_product")[:3]
  actual = attention.attend(
    Flagged(), queries, keys, values, implementation=implementation, block_sizes=(2, 2)
  )
  scores = np.where(keys[:, 0] > 0, 0, queries @ keys.T)
  weights = np.exp(scores) / np.sum(np.exp(scores), axis=-1, keepdims=True)
  assert_close(actual, weights @ values, FLOAT32)


@mostly_blockwise
def test_values_may_have_extra_leading_axes(implementation):
  rng = np.random.default_rng(0)
  queries, keys, values = (np.float32(rng.normal(size=shape)) for shape in ((3, 4), (5, 4), (7, 5, 2)))
  allowed = rng.random((3, 5)) < 0.6
  actual = attention.scaled_dot_product_attention(
    queries, keys, values, mask=allowed, bias=np.ones((3, 5), np.float32), implementation=implementation
  )
  item = [attention.scaled_dot_product_attention(queries, keys, one, mask=allowed) for one in values]
  assert_close(actual, np.stack(item), FLOAT32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class All(masks.Mask):
  """A mask that contains several masks."""

  parts: tuple[masks.Mask, ...]

  def mask_mod(self, t, s):
    return self.parts[0].mask_mod(t, s) & self.parts[1].mask_mod(t, s)


@mostly_blockwise
def test_nested_masks_and_scores_are_cut(implementation):
  queries, keys, values = draw("additive", "BTH", "BSH", "BSD")[:3]
  ids = np.arange(S) // 2
  mask = All((masks.causal(2), masks.segments(ids[:T], ids)))
  vector = [0.1] * DIMS.H
  actual = attention.attend(
    attention.SoftCap(attention.Additive(vector), 5.0),
    queries,
    keys,
    values,
    mask=mask,
    implementation=implementation,
    block_sizes=BLOCK_SIZES,
  )

  def capped(query, key):
    return 5 * np.tanh(np.sum(0.1 * np.tanh(query + key)) / 5)

  allowed = np.tri(T, S, 2, dtype=bool) & (ids[:T, None] == ids)
  assert_close(actual, reference.attend(capped, queries, keys, values, mask=allowed).context, FLOAT32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Numbers(masks.Mask):
  def mask_mod(self, t, s):
    return (s <= t).astype(jnp.int32)


@mostly_blockwise
@pytest.mark.parametrize("mask", [Numbers(), ~Numbers(), Numbers() & masks.causal()])
def test_non_boolean_custom_masks_raise(mask, implementation):
  vectors = jnp.ones((T, 2))
  with pytest.raises(ValueError, match=r"Numbers.mask_mod must return booleans, got int32"):
    attention.scaled_dot_product_attention(
      vectors, vectors, vectors, mask=mask, implementation=implementation
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ManyRows(attention.Score):
  def scores(self, queries, keys):
    return jnp.zeros((5, keys.shape[-2]), queries.dtype)


@mostly_blockwise
def test_too_many_score_rows_raise(implementation):
  query, keys = jnp.ones((1, 2)), jnp.ones((3, 2))  # the rows of one query would broadcast to any number
  with pytest.raises(ValueError, match=r"ManyRows.scores must return .* \(1, 3\), got shape \(5, 3\)"):
    attention.attend(ManyRows(), query, keys, keys, implementation=implementation)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Unfinished(attention.Normalizer):
  def weights(self, tile, state):
    return None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowSums(attention.Normalizer):
  def weights(self, tile, state):
    return tile.scores.sum(-1)


@mostly_blockwise
@pytest.mark.parametrize(("normalizer", "got"), [(Unfinished(), "None"), (RowSums(), r"shape \(3,\)")])
def test_weights_of_other_shapes_raise(normalizer, got, implementation):
  queries, keys = jnp.ones((3, 2)), jnp.ones((5, 2))
  name = type(normalizer).__name__
  with pytest.raises(ValueError, match=rf"{name}.weights must return weights .* = \(3, 5\), got {got}"):
    attention.scaled_dot_product_attention(
      queries, keys, keys, normalizer=normalizer, implementation=implementation
    )


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class WithKeyFeature(attention.Score):
  """A score whose keys have another feature, an array with an entry per key."""

  axes = {"feature": "SE"}
  feature: jax.Array

  def query_features(self, queries):
    return jnp.pad(queries, [(0, 0)] * (queries.ndim - 1) + [(0, 1)], constant_values=1)

  def key_features(self, keys):
    feature = jnp.broadcast_to(self.feature, (*keys.shape[:-1], 1))
    return jnp.concatenate([keys, feature], axis=-1)

  def scores(self, queries, keys):
    return jnp.einsum("...TH,...SH->...TS", queries, keys)


@mostly_blockwise
def test_key_arrays_in_features_of_groups(implementation):
  feature = np.linspace(-1, 1, S, dtype=np.float32)
  queries, keys, values = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")[:3]
  options = {"implementation": implementation, "block_sizes": BLOCK_SIZES}
  actual = attention.attend_heads(
    queries, keys[:, :1], values[:, :1], score=WithKeyFeature(feature[:, None]), **options
  )
  desired = attention.scaled_dot_product_attention(
    queries, keys[:, :1], values[:, :1], scale=1.0, bias=feature, **options
  )
  assert_close(actual, desired, FLOAT32)


def test_boolean_operators_on_masks_raise():
  with pytest.raises(ValueError, match="masks must be combined with &"):
    masks.causal() and masks.prefix(2)


class NoTree(masks.Mask):
  def mask_mod(self, t, s):
    return s <= t


@mostly_blockwise
def test_custom_mask_must_be_a_pytree(implementation):
  vectors = jnp.ones((T, 2))
  with pytest.raises(ValueError, match="NoTree must be registered as a pytree"):
    attention.scaled_dot_product_attention(
      vectors, vectors, vectors, mask=NoTree(), implementation=implementation
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ScaledByHead(attention.Score):
  """A dot product times a factor per head."""

  axes = {"factor": ""}
  factor: jax.Array

  def scores(self, query_features, key_features):
    assert query_features.shape == (S, 11)
    return self.factor * (query_features @ key_features.T)


@mostly_blockwise
def test_scores_see_one_head(implementation):
  vectors = np.random.default_rng(0).normal(size=(S, S, 11)).astype(np.float32)
  factors = np.linspace(0.1, 0.5, S, dtype=np.float32)
  options = {"implementation": implementation}
  actual = attention.attend(ScaledByHead(factors), *[vectors] * 3, **options)
  desired = [
    attention.attend(attention.ScaledDotProduct(factor), *[head] * 3)
    for factor, head in zip(factors, vectors, strict=True)
  ]
  assert_close(actual, np.stack(desired), FLOAT32)


@mostly_blockwise
def test_scores_of_several_heads_raise(implementation):
  vectors = draw("scaled_dot_product", "BNTH", "BNSH", "BNSD")[:3]
  with pytest.raises(ValueError, match=r"FixedByHead.scores must return scores \[T S\] = .* got shape \(7, "):
    attention.attend(FixedByHead(), *vectors, implementation=implementation)


def test_non_dataclasses_raise_by_name():
  class Mine(attention.Score):
    pass

  with pytest.raises(TypeError, match=r"^Mine must be a dataclass: add @dataclasses\.dataclass"):
    attention.register_pytree(Mine)


class Diagonal(masks.Mask):
  """A mask that is not registered."""

  def mask_mod(self, t, s):
    return t == s


class Constant(attention.Score):
  """A score that is not registered."""


def test_unregistered_rules_raise():
  with pytest.raises(ValueError, match=r"^Diagonal must be registered as a pytree"):
    Diagonal().materialize(2, 3)
  array = jnp.ones((2, 3))
  with pytest.raises(ValueError, match=r"^Diagonal must be registered as a pytree"):
    attention.scaled_dot_product_attention(array, array, array, mask=Diagonal() & masks.causal())
  with pytest.raises(ValueError, match=r"^Constant must be registered as a pytree"):
    attention.attend(attention.SoftCap(Constant(), 5.0), array, array, array)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class FirstColumn(masks.Mask):
  """A mask of the first of two columns for each key; the second forbids all."""

  axes = {"columns": "SX"}
  columns: jax.Array

  def mask_mod(self, t, s):
    return self.columns[:, 0][None] & (t >= 0)

  def block_summary(self, t, s):
    return masks.BlockSummary(any=self.columns[..., 0].any(-1), all=False)


def test_summaries_see_arrays_as_they_are():
  # Derivatives store keys, and all arrays [S X], transposed.
  rng = np.random.default_rng(0)
  vectors = rng.normal(size=(3, 12, 4)).astype(np.float32)
  columns = np.stack([np.arange(12) % 6 != 0, np.zeros(12, bool)], axis=-1)

  @functools.partial(jax.jit, static_argnums=1)
  @functools.partial(jax.grad)
  def gradient(vectors, engine, columns):
    options = {"mask": FirstColumn(columns), "implementation": engine, "block_sizes": (4, 3)}
    return jnp.sum(attention.scaled_dot_product_attention(vectors, vectors, vectors, **options) ** 2)

  assert_close(*(gradient(vectors, engine, columns) for engine in ("blockwise", "dense")), FLOAT32)


@pytest.mark.parametrize("register", [attention.register_pytree, jax.tree_util.register_dataclass])
@pytest.mark.parametrize("implementation", ENGINES)
def test_post_init_only_sees_arrays(register, implementation):
  @register
  @dataclasses.dataclass(frozen=True)
  class Doubled(attention.Score):
    axes = {"factor": ""}
    factor: jax.Array

    def __post_init__(self):
      object.__setattr__(self, "doubled", 2 * jnp.asarray(self.factor))  # fails for anything but an array

    def scores(self, query_features, key_features):
      return self.doubled * query_features @ key_features.T

  vectors = jnp.asarray(np.random.default_rng(0).normal(size=(3, 11, 5)), jnp.float32)
  options = {"mask": masks.causal(), "implementation": implementation, "block_sizes": (4, 3)}

  def context(factor):
    return attention.attend(Doubled(factor), vectors, vectors, vectors, **options)

  def expected(factor):
    scaled = vectors * 2 * factor[:, None, None]
    return attention.scaled_dot_product_attention(scaled, vectors, vectors, scale=1.0, **options)

  factors = jnp.array([0.3, -0.7, 1.1])
  assert_close(context(factors), expected(factors), FLOAT32)
  assert_close(jax.jacfwd(context)(factors), jax.jacfwd(expected)(factors), FLOAT32)
