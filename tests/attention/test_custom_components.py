"""Scores, masks and biases of users, in both engines."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference

import attention
from attention import masks, positions
from attention.arrays.named_axes import leaf_axes
from attention.arrays.shapes import same_rank

pytestmark = pytest.mark.slow

B, N, T, S, H, D = 2, 7, 3, 5, 11, 13
CLOSE = {"rtol": 2e-5, "atol": 2e-5}

each_engine = pytest.mark.parametrize("implementation", ["dense", "blockwise"])


def draw(*leading):
  rng = np.random.default_rng(0)
  return [rng.normal(size=(*leading, *shape)).astype(np.float32) for shape in ((T, H), (S, H), (S, D))]


def static(default):
  return dataclasses.field(default=default, metadata={"static": True})


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class FixedMask(masks.Mask):
  """A mask in which each head allows one key less than the previous one."""

  num_heads: int = static(N)

  def mask_mod(self, t, s):
    return s[None] < S - np.arange(self.num_heads)[:, None, None] % 3


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class FixedBias(positions.PositionBias):
  """A bias whose heads differ by something other than its arrays."""

  num_heads: int = static(N)

  def __call__(self, t, s):
    slopes = np.arange(self.num_heads, dtype=np.float32)[:, None, None]
    return slopes * jnp.abs(t - s).astype(jnp.float32)[None]


@pytest.mark.parametrize(
  "options",
  [
    {"mask": FixedMask()},
    {"bias": FixedBias()},
    {"bias": lambda t, s: (t - s).astype(jnp.float32)[None, None]},
    {"bias": positions.ALiBi([0.1 * n for n in range(N)])},
  ],
  ids=["mask", "bias", "function", "list"],
)
def test_components_may_add_leading_axes(options):
  def run(implementation):
    return attention.scaled_dot_product_attention(
      *draw(B, N), **options, implementation=implementation, block_sizes=(2, 2)
    )

  chex.assert_trees_all_close(run("blockwise"), run("dense"), **CLOSE)


@each_engine
@pytest.mark.parametrize("options", [{"mask": FixedMask(6)}, {"bias": FixedBias(6)}], ids=["mask", "bias"])
def test_components_may_add_axes_to_groups(options, implementation):
  queries, _, _ = draw(6)
  _, keys, _ = draw(2)
  options = options | {"implementation": implementation, "block_sizes": (2, 2)}
  actual = attention.attend_heads(queries, keys, keys, **options)
  repeated = np.repeat(keys, 3, axis=0)
  chex.assert_trees_all_close(actual, attention.attend_heads(queries, repeated, repeated, **options), **CLOSE)


@attention.register_pytree
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


@each_engine
def test_scores_may_depend_on_positions(implementation):
  queries, keys, values = draw(B, N)
  bias = np.random.default_rng(1).normal(size=(T, S)).astype(np.float32)

  @jax.jit
  def context(half_lives):
    options = {"bias": bias, "mask": masks.causal(1), "implementation": implementation, "block_sizes": (2, 2)}
    return attention.attend(Decaying(1.0, half_lives), queries, keys, values, **options)

  def formula(half_lives):
    distance = np.abs(np.arange(T)[:, None] - np.arange(S)).astype(np.float32)
    scores = jnp.einsum("BNTH,BNSH->BNTS", queries, keys) + bias[None, None]
    decay = 2 ** (-distance[None] / half_lives[:, None, None])
    scores = 3 * jnp.tanh(scores * decay[None] / 3)
    weights = jax.nn.softmax(jnp.where(np.tri(T, S, 1, dtype=bool)[None, None], scores, -jnp.inf))
    return jnp.einsum("BNTS,BNSD->BNTD", weights, values)

  half_lives = np.linspace(1, 5, N, dtype=np.float32)
  np.testing.assert_allclose(context(half_lives), formula(half_lives), **CLOSE)
  slopes, desired = (jax.grad(lambda x, f=f: jnp.sum(f(x) ** 2))(half_lives) for f in (context, formula))
  np.testing.assert_allclose(slopes, desired, rtol=1e-3, atol=1e-4)


@each_engine
def test_minus_infinity_bias_and_modified_scores(implementation):
  queries, keys, values = draw()
  allowed = np.tri(T, S, 1, dtype=bool)

  @jax.jit
  def context_and_slope(mask, bias):
    def context(half_life):
      options = {"implementation": implementation, "block_sizes": (2, 2), "mask": mask, "bias": bias}
      return attention.attend(Decaying(1.0, half_life), queries, keys, values, **options)

    return context(2.0), jax.jacrev(context)(2.0)

  # tanh(-infinity) is -1; its derivative is 0 times infinity.
  actual = context_and_slope(None, np.where(allowed, 0, -np.inf).astype(np.float32))
  chex.assert_tree_all_finite(actual)
  chex.assert_trees_all_close(actual, context_and_slope(allowed, None), **CLOSE)


@each_engine
def test_lists_of_numbers_have_gradients(implementation):
  vectors = draw(N)

  def loss(slopes):
    options = {"bias": positions.ALiBi(slopes), "implementation": implementation}
    return jnp.sum(attention.scaled_dot_product_attention(*vectors, **options) ** 2)

  slopes = [0.1 * n for n in range(N)]
  chex.assert_trees_all_close(
    jnp.stack(jax.jit(jax.grad(loss))(slopes)), jax.grad(loss)(jnp.asarray(slopes)), **CLOSE
  )


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Flagged(attention.Score):
  """A score with boolean features, and an array with an entry per key."""

  axes = {"feature": "SE"}
  feature: jax.Array

  def key_features(self, keys):
    return {"keys": keys, "flag": keys[..., :1] > 0, "bias": self.feature}

  def scores(self, query_features, key_features):
    scores = jnp.einsum("...TH,...SH->...TS", query_features, key_features["keys"])
    scores = jnp.where(jnp.swapaxes(~key_features["flag"], -1, -2), scores, 0)
    return scores + jnp.swapaxes(key_features["bias"], -1, -2)


@each_engine
def test_features_may_be_any_tree(implementation):
  queries, keys, values = draw()
  feature = np.linspace(-1, 1, S, dtype=np.float32)[:, None]
  options = {"score": Flagged(feature), "implementation": implementation, "block_sizes": (2, 2)}
  actual = attention.attend_heads(np.stack([queries, -queries]), keys[None], values[None], **options)
  for i, factor in enumerate((1, -1)):
    scores = np.where(keys[:, 0] > 0, 0, factor * queries @ keys.T) + feature[:, 0]
    weights = np.exp(scores) / np.sum(np.exp(scores), axis=-1, keepdims=True)
    np.testing.assert_allclose(actual[i], weights @ values, **CLOSE)


@each_engine
def test_values_may_have_extra_leading_axes(implementation):
  queries, keys, _ = draw()
  values = draw(B)[2]
  mask = np.random.default_rng(0).random((T, S)) < 0.6
  options = {"mask": mask, "bias": np.ones((T, S), np.float32), "implementation": implementation}
  actual = attention.scaled_dot_product_attention(queries, keys, values, **options)
  alone = [attention.scaled_dot_product_attention(queries, keys, one, mask=mask) for one in values]
  chex.assert_trees_all_close(actual, jnp.stack(alone), **CLOSE)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class All(masks.Mask):
  """A mask that contains several masks."""

  parts: tuple[masks.Mask, ...]

  def mask_mod(self, t, s):
    return self.parts[0].mask_mod(t, s) & self.parts[1].mask_mod(t, s)


@each_engine
def test_nested_masks_and_scores_are_cut(implementation):
  queries, keys, values = draw(B)
  ids = np.arange(S) // 2
  score = attention.SoftCap(attention.Additive([0.1] * H), 5.0)
  mask = All((masks.causal(2), masks.segments(ids[:T], ids)))
  options = {"mask": mask, "implementation": implementation, "block_sizes": (2, 2)}
  actual = attention.attend(score, queries, keys, values, **options)

  def capped(query, key):
    return 5 * np.tanh(np.sum(0.1 * np.tanh(query + key)) / 5)

  allowed = np.tri(T, S, 2, dtype=bool) & (ids[:T, None] == ids)
  desired = reference.attend(capped, queries, keys, values, mask=allowed).context
  np.testing.assert_allclose(actual, desired, **CLOSE)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Tilted(attention.Score):
  """A dot product with a named vector per head; it sees one head."""

  axes = {"tilt": "H"}
  tilt: jax.Array

  def scores(self, query_features, key_features):
    assert query_features.ndim == key_features.ndim == 2
    return (query_features * self.tilt[None]) @ key_features.T


@each_engine
def test_scores_see_one_head(implementation):
  queries, keys, values = draw(B, N)
  tilt = (0.3 * np.random.default_rng(0).normal(size=(N, H))).astype(np.float32)
  options = {"implementation": implementation, "block_sizes": (2, 2)}
  actual = attention.attend(Tilted(tilt), queries, keys, values, **options)
  desired = attention.scaled_dot_product_attention(queries * tilt[:, None], keys, values, scale=1.0)
  chex.assert_trees_all_close(actual, desired, **CLOSE)


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
  vectors = np.random.default_rng(0).normal(size=(3, 12, 4)).astype(np.float32)
  columns = np.stack([np.arange(12) % 6 != 0, np.zeros(12, bool)], axis=-1)

  @functools.partial(jax.jit, static_argnums=1)
  @jax.grad
  def gradient(vectors, implementation, columns):
    options = {"mask": FirstColumn(columns), "implementation": implementation, "block_sizes": (4, 3)}
    return jnp.sum(attention.scaled_dot_product_attention(*[vectors] * 3, **options) ** 2)

  chex.assert_trees_all_close(
    gradient(vectors, "blockwise", columns), gradient(vectors, "dense", columns), **CLOSE
  )


@pytest.mark.parametrize("register", [attention.register_pytree, jax.tree_util.register_dataclass])
@each_engine
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

  vectors = draw(3)
  options = {"mask": masks.causal(), "implementation": implementation, "block_sizes": (2, 2)}

  @jax.jit
  def slopes(factors):
    return jax.jacfwd(lambda factors: attention.attend(Doubled(factors), *vectors, **options))(factors)

  factors = jnp.array([0.3, -0.7, 1.1])
  desired = jax.jacfwd(
    lambda factors: attention.scaled_dot_product_attention(*vectors, scale=2 * factors, **options)
  )(factors)
  chex.assert_trees_all_close(slopes(factors), desired, **CLOSE)


def test_nested_score_axes_are_known():
  assert leaf_axes(attention.SoftCap(attention.Additive(jnp.ones((N, H))), 5.0)) == ["A", ""]


def test_capped_score_trees_hold_any_leaves():
  score = attention.SoftCap(attention.ScaledDotProduct(2.0), 5.0)
  assert jax.tree.leaves(jax.tree.map(np.ndim, score)) == [0, 0]
  assert jax.tree.leaves(jax.tree.map(lambda number: np.float32(-number), score)) == [-2, -5]


@each_engine
def test_soft_cap_matches_formula(implementation):
  queries, keys, values = draw(N)
  vectors = (0.4 * np.random.default_rng(2).normal(size=(N, H))).astype(np.float32)

  @jax.jit
  def context(caps):
    score = attention.SoftCap(attention.Additive(vectors), caps)
    options = {"mask": masks.causal(1), "implementation": implementation, "block_sizes": (2, 2)}
    return attention.attend(score, queries, keys, values, **options)

  def formula(caps):
    scores = jnp.einsum("NH,NTSH->NTS", vectors, jnp.tanh(queries[:, :, None] + keys[:, None]))
    scores = caps[:, None, None] * jnp.tanh(scores / caps[:, None, None])
    return jax.nn.softmax(jnp.where(np.tri(T, S, 1, dtype=bool)[None], scores, -jnp.inf)) @ values

  caps = np.linspace(0.5, 3.0, N).astype(np.float32)
  np.testing.assert_allclose(context(caps), formula(caps), **CLOSE)
  slopes, desired = (jax.grad(lambda x, f=f: jnp.sum(f(x) ** 2))(caps) for f in (context, formula))
  np.testing.assert_allclose(slopes, desired, rtol=1e-4, atol=1e-4)
