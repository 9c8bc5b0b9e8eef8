"""Scores, masks and biases of users, in both engines."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.model_reference import softmax

import attention
from attention import masks, positions
from attention.arrays.shapes import same_rank

pytestmark = pytest.mark.slow

B, N, T, S, H, D = 2, 7, 3, 5, 11, 13
DISTANCES = np.abs(np.arange(T)[:, None] - np.arange(S))
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


# In one program, since compilation is most of the time.
def in_both_engines(function, *arguments):
  """Returns the results of function(*arguments, **options) with the options of each engine."""

  @jax.jit
  def run(*arguments):
    engines = "dense", "blockwise"
    return [function(*arguments, implementation=engine, block_sizes=(2, 2)) for engine in engines]

  return run(*arguments)


def assert_both_close(function, desired, *arguments, rtol=2e-5, atol=2e-5):
  for actual in in_both_engines(function, *arguments):
    chex.assert_trees_all_close(actual, desired, rtol=rtol, atol=atol)


def with_slopes(function):
  """Returns a function of an array that returns another, and the gradient of its squared norm."""

  def results(array, **options):
    def loss(array):
      context = function(array, **options)
      return jnp.sum(context**2), context

    return jax.grad(loss, has_aux=True)(array)

  return results


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
  ("options", "arrays"),
  [
    ({"mask": FixedMask()}, {"mask": np.arange(S) < S - np.arange(N)[:, None, None] % 3}),
    ({"bias": FixedBias()}, {"bias": np.float32(np.arange(N)[:, None, None] * DISTANCES)}),
    (
      {"bias": lambda t, s: 0.5 * jnp.abs(t - s).astype(jnp.float32)[None, None]},
      {"bias": np.float32(0.5 * DISTANCES)},
    ),
  ],
  ids=["mask", "bias", "function"],
)
def test_components_may_add_leading_axes(options, arrays):
  run = functools.partial(attention.scaled_dot_product_attention, *draw(B, N))
  desired = run(**arrays, implementation="dense")
  for actual in in_both_engines(functools.partial(run, **options)):
    chex.assert_trees_all_close(actual, desired, **CLOSE)


@pytest.mark.parametrize("options", [{"mask": FixedMask(6)}, {"bias": FixedBias(6)}], ids=["mask", "bias"])
def test_components_may_add_axes_to_groups(options):
  queries, keys = draw(6)[0], draw(2)[1]

  def run(**engine):
    both = keys, np.repeat(keys, 3, axis=0)
    return [attention.attend_heads(queries, keys, keys, **options, **engine) for keys in both]

  for grouped, repeated in in_both_engines(run):
    chex.assert_trees_all_close(grouped, repeated, **CLOSE)


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


def test_scores_may_depend_on_positions():
  queries, keys, values = draw(B, N)
  bias = np.random.default_rng(1).normal(size=(T, S)).astype(np.float32)

  def context(half_lives, **engine):
    options = {"bias": bias, "mask": masks.causal(1), **engine}
    return attention.attend(Decaying(1.0, half_lives), queries, keys, values, **options)

  def formula(half_lives):
    distance = np.abs(np.arange(T)[:, None] - np.arange(S)).astype(np.float32)
    scores = jnp.einsum("BNTH,BNSH->BNTS", queries, keys) + bias[None, None]
    decay = 2 ** (-distance[None] / half_lives[:, None, None])
    scores = 3 * jnp.tanh(scores * decay[None] / 3)
    weights = jax.nn.softmax(jnp.where(np.tri(T, S, 1, dtype=bool)[None, None], scores, -jnp.inf))
    return jnp.einsum("BNTS,BNSD->BNTD", weights, values)

  half_lives = np.linspace(1, 5, N, dtype=np.float32)
  desired = jax.jit(with_slopes(formula))(half_lives)
  assert_both_close(with_slopes(context), desired, half_lives, rtol=1e-3, atol=1e-4)


def test_minus_infinity_bias_and_modified_scores():
  allowed = np.tri(T, S, 1, dtype=bool)

  def run(bias, **engine):
    def context(half_life, **options):
      return attention.attend(Decaying(1.0, half_life), *draw(), **options, **engine)

    functions = functools.partial(context, bias=bias), functools.partial(context, mask=allowed)
    return [(function(2.0), jax.jacrev(function)(2.0)) for function in functions]

  # tanh(-infinity) is -1; its derivative is 0 times infinity.
  for of_bias, of_mask in in_both_engines(run, np.where(allowed, 0, -np.inf).astype(np.float32)):
    chex.assert_tree_all_finite(of_bias)
    chex.assert_trees_all_close(of_bias, of_mask, **CLOSE)


def test_lists_of_numbers_have_gradients():
  def context(slopes, **engine):
    return attention.scaled_dot_product_attention(*draw(N), bias=positions.ALiBi(slopes), **engine)

  slopes = np.linspace(0, 0.6, N, dtype=np.float32)
  of_lists, of_arrays = (in_both_engines(with_slopes(context), given) for given in ([*slopes], slopes))
  for of_list, of_array in zip(of_lists, of_arrays, strict=True):
    chex.assert_trees_all_close(jnp.stack(of_list[0]), of_array[0], **CLOSE)


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


def test_features_may_be_any_tree():
  queries, keys, values = draw()
  feature = np.linspace(-1, 1, S, dtype=np.float32)[:, None]
  both = np.stack([queries, -queries])
  run = functools.partial(attention.attend_heads, both, keys[None], values[None], score=Flagged(feature))
  scores = np.where(keys[:, 0] > 0, 0, both @ keys.T) + feature[:, 0]
  assert_both_close(run, softmax(scores) @ values)


def test_values_may_have_extra_leading_axes():
  queries, keys, _ = draw()
  values, mask = draw(B)[2], (np.random.default_rng(0).random((T, S)) < 0.6) | (np.arange(S) == 0)
  options = {"mask": mask, "bias": np.ones((T, S), np.float32)}
  run = functools.partial(attention.scaled_dot_product_attention, queries, keys, values, **options)
  assert_both_close(run, softmax(np.where(mask, queries @ keys.T / np.sqrt(H), -np.inf)) @ values)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class All(masks.Mask):
  """A mask that contains several masks."""

  parts: tuple[masks.Mask, ...]

  def mask_mod(self, t, s):
    return self.parts[0].mask_mod(t, s) & self.parts[1].mask_mod(t, s)


def test_nested_masks_and_scores_are_cut():
  ids, vectors = np.arange(S) // 2, draw(B)
  score = attention.SoftCap(attention.Additive([0.1] * H), 5.0)
  mask = All((masks.causal(2), masks.segments(ids[:T], ids)))

  def capped(query, key):
    return 5 * np.tanh(np.sum(0.1 * np.tanh(query + key)) / 5)

  allowed = np.tri(T, S, 2, dtype=bool) & (ids[:T, None] == ids)
  desired = reference.attend(capped, *vectors, mask=allowed).context
  assert_both_close(functools.partial(attention.attend, score, *vectors, mask=mask), desired)


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Tilted(attention.Score):
  """A dot product with a named vector per head; it sees one head."""

  axes = {"tilt": "H"}
  tilt: jax.Array

  def scores(self, query_features, key_features):
    assert query_features.ndim == key_features.ndim == 2
    return (query_features * self.tilt[None]) @ key_features.T


def test_scores_see_one_head():
  queries, keys, values = draw(B, N)
  tilt = (0.3 * np.random.default_rng(0).normal(size=(N, H))).astype(np.float32)
  desired = softmax((queries * tilt[:, None]) @ np.swapaxes(keys, -1, -2)) @ values
  assert_both_close(functools.partial(attention.attend, Tilted(tilt), queries, keys, values), desired)


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

  def run(vectors, columns, **engine):
    options = {"mask": FirstColumn(columns), **engine, "block_sizes": (4, 3)}
    return attention.scaled_dot_product_attention(*[vectors] * 3, **options)

  def slopes(columns, **engine):
    return with_slopes(functools.partial(run, columns=columns))(vectors, **engine)

  chex.assert_trees_all_close(*in_both_engines(slopes, columns), **CLOSE)


@pytest.mark.parametrize("register", [attention.register_pytree, jax.tree_util.register_dataclass])
def test_post_init_only_sees_arrays(register):
  @register
  @dataclasses.dataclass(frozen=True)
  class Doubled(attention.Score):
    axes = {"factor": ""}
    factor: jax.Array

    def __post_init__(self):
      object.__setattr__(self, "doubled", 2 * jnp.asarray(self.factor))  # fails for anything but an array

    def scores(self, query_features, key_features):
      return self.doubled * query_features @ key_features.T

  vectors, mask = draw(3), masks.causal()

  def run(factors, **engine):
    def context(factors):
      return attention.attend(Doubled(factors), *vectors, mask=mask, **engine)

    def scaled(factors):
      return attention.scaled_dot_product_attention(*vectors, scale=2 * factors, mask=mask, **engine)

    return [jax.jacfwd(function)(factors) for function in (context, scaled)]

  for actual, desired in in_both_engines(run, jnp.array([0.3, -0.7, 1.1])):
    chex.assert_trees_all_close(actual, desired, **CLOSE)


def test_capped_score_trees_hold_any_leaves():
  score = attention.SoftCap(attention.ScaledDotProduct(2.0), 5.0)
  assert jax.tree.leaves(jax.tree.map(np.ndim, score)) == [0, 0]
  assert jax.tree.leaves(jax.tree.map(lambda number: np.float32(-number), score)) == [-2, -5]


def test_soft_cap_matches_formula():
  queries, keys, values = draw(N)
  vectors = (0.4 * np.random.default_rng(2).normal(size=(N, H))).astype(np.float32)

  def context(caps, **engine):
    score = attention.SoftCap(attention.Additive(vectors), caps)
    return attention.attend(score, queries, keys, values, mask=masks.causal(1), **engine)

  def formula(caps):
    scores = jnp.einsum("NH,NTSH->NTS", vectors, jnp.tanh(queries[:, :, None] + keys[:, None]))
    scores = caps[:, None, None] * jnp.tanh(scores / caps[:, None, None])
    return jax.nn.softmax(jnp.where(np.tri(T, S, 1, dtype=bool)[None], scores, -jnp.inf)) @ values

  caps = np.linspace(0.5, 3.0, N).astype(np.float32)
  desired = jax.jit(with_slopes(formula))(caps)
  assert_both_close(with_slopes(context), desired, caps, rtol=1e-4, atol=1e-4)
