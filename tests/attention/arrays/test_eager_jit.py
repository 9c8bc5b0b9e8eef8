"""Compiled eager calls: when they recompile, and what must never be confused."""

import dataclasses
import functools
import itertools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import masks, positions
from attention.arrays.eager_jit import eager_jit

CLOSE = {"rtol": 4e-6, "atol": 4e-6}
RNG = np.random.default_rng(0)
VECTORS = [RNG.normal(size=(length, 11)).astype(np.float32) for length in (3, 5, 5)]
attend = functools.partial(attention.scaled_dot_product_attention, *VECTORS)


def counted():
  """Returns a function that counts how often it is traced, and the count."""
  traced = []

  @functools.partial(eager_jit, static_argnames=("factor", "name", "sizes"))
  def function(array, *, mask=None, factor=1.0, name="one", sizes=None):
    traced.append(name)
    return array * (2 if name == "two" else 1) * factor

  return function, traced


def test_equal_calls_share_a_program():
  function, traced = counted()
  for array in (np.ones(3, np.float32), 2 * jnp.ones(3)):
    for length in (1, 2):
      np.testing.assert_array_equal(function(array, mask=masks.prefix(length)), array)
  assert len(traced) == 1
  np.testing.assert_array_equal(function(jnp.ones(3), name="two"), 2 * np.ones(3))
  np.testing.assert_array_equal(function(jnp.ones(5), mask=masks.prefix(1)), np.ones(5))
  function(jnp.ones(3), mask=masks.sliding_window(1, 0))
  assert len(traced) == 4


@pytest.mark.parametrize(
  "options", [({"factor": 1}, {"factor": 1.0}), ({"sizes": (1, 2)}, {"sizes": (2, 1)})]
)
def test_other_options_are_another_program(options):
  function, traced = counted()
  for item in options:
    function(jnp.ones(3), **item)
  assert len(traced) == 2


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class Doubled(attention.Score):
  axes = {"scale": ""}
  scale: jax.Array

  def scores(self, query_features, key_features):
    return 2 * self.scale * query_features @ key_features.T


def test_score_classes_have_separate_programs():
  # JAX may treat dataclasses with the same number of fields as equal.
  plain = attend(scale=0.5)
  doubled = attend(scale=1.0)
  for _ in range(2):
    actual = attention.attend(attention.ScaledDotProduct(0.5), *VECTORS)
    np.testing.assert_allclose(actual, plain, **CLOSE)
    assert not np.allclose(attention.attend(attention.Cosine(0.5), *VECTORS), plain, atol=1e-2)
    np.testing.assert_allclose(attention.attend(Doubled(0.5), *VECTORS), doubled, **CLOSE)


def test_mask_classes_have_separate_programs():
  for mask in (masks.causal(1), masks.prefix(1), ~masks.causal(1), ~masks.prefix(1)):
    np.testing.assert_allclose(attend(mask=mask), attend(mask=mask.materialize(3, 5)), **CLOSE)

  @jax.tree_util.register_dataclass
  @dataclasses.dataclass(frozen=True)
  class Square(positions.PositionBias):
    axes = {"slopes": ""}
    slopes: jax.Array

    def __call__(self, t, s):
      return self.slopes * ((t - s) ** 2).astype(jnp.float32)

  t, s = np.arange(3)[:, None], np.arange(5)
  for bias, array in ((positions.ALiBi(0.5), -0.5 * abs(t - s)), (Square(0.5), 0.5 * (t - s) ** 2)):
    np.testing.assert_allclose(attend(bias=bias), attend(bias=np.float32(array)), **CLOSE)


def test_masks_with_equal_trees_differ():
  # The trees of A & B and A | B only differ by their classes.
  rng = np.random.default_rng(0)
  arrays = [rng.random((3, 5)) < 0.6 for _ in range(3)]
  of_mask = jax.jit(lambda mask: mask.materialize(3, 5))
  for join, other in itertools.product((operator.and_, operator.or_), repeat=2):
    mask = other(join(*map(masks.from_array, arrays[:2])), masks.from_array(arrays[2]))
    array = other(join(*arrays[:2]), arrays[2])
    np.testing.assert_array_equal(of_mask(mask), array)
    np.testing.assert_allclose(attend(mask=mask), attend(mask=array), **CLOSE)


def test_library_classes_have_distinct_trees():
  trees = [
    *(
      make(1.0)
      for make in (attention.ScaledDotProduct, attention.Cosine, attention.Additive, attention.Bilinear)
    ),
    *(masks.causal(1), masks.prefix(1), ~masks.causal(1), masks.causal(1) & masks.causal(1)),
    *(masks.causal(1) | masks.causal(1), masks.sliding_window(1, 0), masks.sliding_window(1, 2)),
    *(positions.ALiBi(1.0), positions.RelativePositionBias(1.0), positions.RelativePositionBias(1.0, 64)),
  ]
  for one, other in itertools.combinations(trees, 2):
    assert jax.tree.structure(one) != jax.tree.structure(other)
  for tree in trees:
    assert jax.tree.structure(tree) == jax.tree.structure(jax.tree.map(lambda leaf: leaf, tree))


def test_eager_gradients_are_traced_once():
  function, traced = counted()
  gradient = jax.grad(lambda array: jnp.sum(function(array) ** 2))
  gradient(jnp.ones(7))
  count = len(traced)
  gradient(jnp.ones(7))
  assert len(traced) == count > 0


def test_registered_classes_have_distinct_trees():
  @attention.register_pytree
  @dataclasses.dataclass(frozen=True)
  class Plus:
    number: jax.Array
    name: str = dataclasses.field(default="plus", metadata={"static": True})

  @attention.register_pytree
  @dataclasses.dataclass(frozen=True)
  class Times(Plus):
    pass

  calculate = jax.jit(lambda tree: 7 + tree.number if type(tree) is Plus else 7 * tree.number)
  assert jax.tree.structure(Plus(3)) != jax.tree.structure(Times(3))
  assert jax.tree.structure(Plus(3)) != jax.tree.structure(Plus(3, "sum"))
  assert (calculate(Plus(3)), calculate(Times(3)), calculate(Plus(2))) == (10, 21, 9)


SLOPE = 1.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OfItsModule(attention.Score):
  """A score that uses a variable of its module."""

  def scores(self, query_features, key_features):
    return SLOPE * jnp.einsum("...TH,...SH->...TS", query_features, key_features)


def test_module_globals_of_classes_may_change():
  global SLOPE
  for SLOPE in (1.0, 3.0):
    desired = attend(scale=SLOPE)
    np.testing.assert_allclose(attention.attend(OfItsModule(), *VECTORS), desired, **CLOSE)


@pytest.mark.parametrize("what", ["score", "bias"])
def test_class_closures_get_gradients_or_raise(what):
  distance = np.float32(np.arange(3)[:, None] - np.arange(5))

  def loss(slope, **options):
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Sloped(attention.Score):
      def scores(self, query_features, key_features):
        return slope * jnp.einsum("...TH,...SH->...TS", query_features, key_features)

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class SlopedBias(positions.PositionBias):
      def __call__(self, t, s):
        return slope * (t - s).astype(jnp.float32)

    score, bias = (Sloped(), None) if what == "score" else (attention.ScaledDotProduct(), SlopedBias())
    return jnp.sum(attention.attend(score, *VECTORS, bias=bias, **options) ** 2)

  def without_class(slope):
    return jnp.sum(attend(**({"scale": slope} if what == "score" else {"bias": slope * distance})) ** 2)

  desired = jax.jit(jax.grad(without_class))(0.7)
  for differentiate in (jax.grad, lambda f: jax.jit(jax.grad(f))):
    slope = differentiate(functools.partial(loss, implementation="dense"))(0.7)
    np.testing.assert_allclose(slope, desired, rtol=1e-5)
    with pytest.raises(ValueError, match="must hold traced arrays as fields"):
      differentiate(functools.partial(loss, implementation="blockwise", block_sizes=(2, 2)))(0.7)


@pytest.mark.parametrize("bias", [((True, False, True, True, True),), ((1, 0, 1, 1, 1),)])
def test_cached_programs_still_raise(bias):
  attend(bias=((1.0, 0.0, 1.0, 1.0, 1.0),))
  with pytest.raises(ValueError, match="bias must be floating-point"):
    attend(bias=bias)


@pytest.mark.parametrize("name", ["bias", "mask"])
def test_function_closures_may_change(name):
  table = first = jnp.asarray([True, False, True, True, False])

  def function(t, s):
    return table[s] if name == "mask" else jnp.where(table[s], 0.0, -jnp.inf)

  option = {name: masks.from_function(function) if name == "mask" else function}
  for table in (first, ~first):
    np.testing.assert_allclose(attend(**option), attend(mask=table[None]), **CLOSE)


def test_arguments_bind_as_in_python():
  function, _ = counted()
  array = jnp.ones(3)
  np.testing.assert_array_equal(function(array=array), array)
  for args, options in (((array, array), {}), ((array,), {"array": array}), ((), {})):
    with pytest.raises(TypeError, match=r"^counted\.<locals>\.function\(\) "):
      function(*args, **options)


def test_lists_of_numbers_are_taken():
  row = [True, False, True, True, False]
  desired = attend(mask=np.array(row)[None])
  options = {"mask": [row], "block_sizes": [2, 2]}
  np.testing.assert_allclose(attend(**options), desired, **CLOSE)
  (heads,) = attention.attend_heads(*(array[None] for array in VECTORS), **options)
  np.testing.assert_allclose(heads, desired, **CLOSE)


def test_equal_shapes_share_a_trace():
  traces = []

  @eager_jit
  def double(array):
    traces.append(array.shape)
    return 2 * array

  @jax.jit
  @jax.grad
  def gradient(array):
    return jnp.sum(double(double(array)) * double(array[:1]))

  np.testing.assert_array_equal(gradient(jnp.ones((2, 3))), [[24.0] * 3, [8.0] * 3])
  assert sorted(traces) == [(1, 3), (2, 3)]
