"""Errors: wrong scores and parameters raise a helpful ValueError at trace time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, assert_error_says, shape_of

import attention

QUERIES, KEYS, VALUES = (shape_of(*DIMS[axes]) for axes in ("BTH", "BSH", "BSD"))
THREE = [np.zeros(array.shape, np.float32) for array in (QUERIES, KEYS, VALUES)]

each_engine = pytest.mark.parametrize("implementation", ["dense", "blockwise"])

# A function, the shapes of the keys and of the parameter, and words of the error.
SHAPES = [
  (attention.scaled_dot_product_attention, (2, 5, 23), None, "queries keys 11 23"),
  (attention.cosine_attention, (2, 5, 23), None, "queries keys 11 23"),
  (attention.additive_attention, (2, 5, 23), (11,), "queries keys 11 23"),
  (attention.additive_attention, (2, 5, 11), (23,), "score_vector 11 23"),
  (attention.additive_attention, (2, 5, 11), (), "score_vector A"),
  (attention.additive_attention, (2, 5, 11), (29, 11), "queries keys score_vector 2 29"),
  (attention.bilinear_attention, (2, 5, 11), (23, 11), "matrix H K queries keys 11 23"),
  (attention.bilinear_attention, (2, 5, 11), (11, 29), "matrix H K queries keys 11 29"),
  (attention.bilinear_attention, (2, 5, 11), (11,), "matrix H K 11"),
  (attention.bilinear_attention, (2, 5, 11), (29, 11, 11), "queries matrix 2 29"),
]


@pytest.mark.parametrize(("function", "keys", "parameter", "words"), SHAPES)
def test_mismatched_shapes_raise(function, keys, parameter, words):
  parameters = () if parameter is None else (shape_of(*parameter),)
  assert_error_says(words, function, QUERIES, shape_of(*keys), VALUES, *parameters)


CALLS = [
  ("queries keys 2 29", lambda q, k, v: attention.dot_product_scores(q, np.ones((29, 5, 11), np.float32))),
  ("queries keys 11 23", lambda q, k, v: attention.cosine_scores(q, np.ones((2, 5, 23), np.float32))),
  ("queries keys float32 bfloat16", lambda q, k, v: attention.dot_product_scores(q, k.astype(jnp.bfloat16))),
  ("queries floating int32", lambda q, k, v: attention.cosine_scores(q.astype(int), k.astype(int))),
  ("score_vector 11 23", lambda q, k, v: attention.additive_scores(q, k, np.ones(23))),
  ("matrix 11 23", lambda q, k, v: attention.bilinear_scores(q, k, np.ones((11, 23)))),
  ("scale 29 2", lambda q, k, v: attention.cosine_attention(q, k, v, scale=np.ones(29))),
  ("scale number array None", lambda q, k, v: attention.cosine_attention(q, k, v, scale=None)),
  ("score_vector array None", lambda q, k, v: attention.additive_attention(q, k, v, None)),
  ("matrix array None", lambda q, k, v: attention.bilinear_attention(q, k, v, None)),
  ("SoftCap score None", lambda q, k, v: attention.attend(attention.SoftCap(None, 5.0), q, k, v)),
  (
    "cap number array None",
    lambda q, k, v: attention.attend(attention.SoftCap(attention.Cosine(), None), q, k, v),
  ),
  ("weights MultiHeadWeights None", lambda q, k, v: attention.multi_head_attention(q, k, None)),
  ("sink number array first", lambda q, k, v: attention.add_sink(v, v[..., 0], "first")),
  (
    "score_vector values 3 2",
    lambda q, k, v: attention.additive_attention(q[0], k[0], v, np.ones((3, 11), np.float32)),
  ),
]


@pytest.mark.parametrize(("words", "function"), CALLS)
def test_wrong_arguments_raise(words, function):
  assert_error_says(words, function, QUERIES, KEYS, VALUES)


@pytest.mark.parametrize(
  "score", ["additive", attention.Cosine, attention.dot_product_scores], ids=["name", "class", "function"]
)
def test_non_scores_raise(score):
  def call(*arguments):
    return attention.attend(score, *arguments)

  assert_error_says("score Score", call, QUERIES, KEYS, VALUES)


@jax.tree_util.register_static
class WithoutBatch(attention.Score):
  """A wrong score: scores without the batch axis."""

  def scores(self, query_features, key_features):
    return jnp.einsum("...TH,...SH->...TS", query_features, key_features)[0]


@jax.tree_util.register_static
class Flat(attention.Score):
  """A wrong score: features [... S] without a further axis."""

  def key_features(self, keys):
    return keys, jnp.sum(keys**2, axis=-1)

  def scores(self, query_features, key_features):
    keys, norms = key_features
    return jnp.einsum("...TH,...SH->...TS", query_features, keys) - norms[..., None, :]


@pytest.mark.parametrize("leading", [(), (2,)])
def test_scalar_features_raise(leading):
  def call(*arguments):
    return attention.attend(Flat(), *arguments)

  vectors = (shape_of(*leading, *sizes) for sizes in ((3, 11), (5, 11), (5, 13)))
  assert_error_says("Flat.key_features axis -2 5", call, *vectors)


@jax.tree_util.register_static
class Forgetful(attention.Score):
  """A wrong score: `scores` returns None."""

  def scores(self, query_features, key_features):
    jnp.einsum("...TH,...SH->...TS", query_features, key_features)


@jax.tree_util.register_static
class Matches(attention.Score):
  """A wrong score: scores are not floating-point."""

  def scores(self, query_features, key_features):
    return jnp.sum(query_features[..., :, None, :] == key_features[..., None, :, :], axis=-1)


@pytest.mark.parametrize(
  ("score", "words"),
  [
    (WithoutBatch(), "WithoutBatch T S 3 5"),
    (Matches(), "scores floating int32"),
    (Forgetful(), "Forgetful scores None"),
  ],
)
def test_custom_score_result_is_checked(score, words):
  def call(*arguments):
    return attention.attend(score, *arguments)

  assert_error_says(words, call, QUERIES, KEYS, VALUES)


class Unregistered(attention.Score):
  """A wrong score: not registered as a pytree."""

  def scores(self, query_features, key_features):
    return jnp.einsum("...TH,...SH->...TS", query_features, key_features)


def test_custom_score_must_be_a_pytree():
  def call(*arguments):
    return attention.attend(Unregistered(), *arguments)

  assert_error_says("Unregistered registered register_dataclass", call, QUERIES, KEYS, VALUES)

  def call_grouped(*arguments):
    return attention.attend_heads(*arguments, score=Unregistered())

  grouped = shape_of(4, 3, 11), shape_of(2, 5, 11), shape_of(2, 5, 13)
  assert_error_says("Unregistered registered register_dataclass", call_grouped, *grouped)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Named(attention.Score):
  kind: str


def test_non_numeric_fields_must_be_static():
  def call(*arguments):
    return attention.attend(Named("cosine"), *arguments)

  assert_error_says("Named.kind static 'cosine'", call, QUERIES, KEYS, VALUES)


@pytest.mark.parametrize("scale", [(7, 1, 1), (2, 7, 1, 1)])
@pytest.mark.parametrize("function", [attention.scaled_dot_product_attention, attention.cosine_attention])
def test_scale_with_score_axes_raises(function, scale):
  heads = tuple(shape_of(2, 7, *array.shape[1:]) for array in (QUERIES, KEYS, VALUES))
  words = f"scale N {' '.join(map(str, scale))}"

  def attend(scale, *arrays):
    return function(*arrays, scale=scale)

  assert_error_says(words, attend, shape_of(*scale), *heads)
  assert jax.eval_shape(attend, shape_of(7), *heads).shape == (2, 7, 3, 13)


def test_cap_with_score_axes_raises():
  heads = tuple(shape_of(2, 7, *array.shape[1:]) for array in (QUERIES, KEYS, VALUES))

  def attend(cap, *arrays):
    return attention.attend(attention.SoftCap(attention.Cosine(), cap), *arrays)

  assert_error_says("cap N 7 1", attend, shape_of(7, 1, 1), *heads)
  with pytest.raises(ValueError, match="must be positive"):
    attend(np.zeros(7), *(np.zeros(array.shape, np.float32) for array in heads))


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class PerHead(attention.Score):
  """A wrong score: it has one number per head, but inserts no axes."""

  temperature: np.ndarray

  def scores(self, query_features, key_features):
    return jnp.einsum("...TH,...SH->...TS", query_features, key_features) * self.temperature


@attention.register_pytree
@dataclasses.dataclass(frozen=True)
class NamedPerHead(PerHead):
  axes = {"temperature": ""}


@each_engine
@pytest.mark.parametrize(
  ("score", "message"),
  [
    (PerHead(np.ones(2, np.float32)), 'has one array per head, set axes = {"temperature"'),
    (
      NamedPerHead(np.ones((2, 1, 1), np.float32)),
      r"PerHead\.temperature must be a number or an array of leading axes.*, got shape \(2, 1, 1\)",
    ),
  ],
)
def test_arrays_of_heads_need_axes(score, message, implementation):
  with pytest.raises(ValueError, match=message):
    attention.attend(score, *THREE, implementation=implementation)


@jax.tree_util.register_pytree_node_class
class ByPosition(attention.Score):
  """A wrong score, registered without names of its fields."""

  array = np.ones((2, 4))

  def tree_flatten(self):
    return [self.array], None

  @classmethod
  def tree_unflatten(cls, known, leaves):
    score = cls()
    (score.array,) = leaves
    return score

  def scores(self, query_features, key_features):
    raise ValueError("my error")


def test_errors_of_scores_are_kept():
  with pytest.raises(ValueError, match=r"^my error"):
    attention.attend(ByPosition(), *THREE)


def test_other_errors_have_no_hint():
  @attention.register_pytree
  @dataclasses.dataclass(frozen=True)
  class Fails(PerHead):
    def scores(self, query_features, key_features):
      raise TypeError("an error of the score")

  with pytest.raises(TypeError, match="an error of the score") as error:
    attention.attend(Fails(np.ones(3, np.float32)), *THREE)
  assert "axes" not in str(error.value)
