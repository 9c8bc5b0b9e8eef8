"""Point 11 of the contract: user errors raise a helpful ValueError at trace time.

It names the argument, what is allowed, and the value with its sizes. Each test lists words that the message
must contain, possibly in the plural.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import DIMS, NegativeDistance, engines

import attention
from attention import masks, positions

# T = 3, S = 5, H = 11, D = 13; 23 and 29 are always wrong.
QUERIES = jax.ShapeDtypeStruct(DIMS["BTH"], jnp.float32)
KEYS = jax.ShapeDtypeStruct(DIMS["BSH"], jnp.float32)
VALUES = jax.ShapeDtypeStruct(DIMS["BSD"], jnp.float32)


def zeros(*shape, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


def assert_error_says(words, function, *arguments):
  """Asserts that tracing with abstract arguments raises a ValueError that contains all words."""
  with pytest.raises(ValueError) as caught:
    jax.eval_shape(function, *arguments)
  message = str(caught.value)
  missing = [word for word in words.split() if not re.search(rf"(?<!\w){re.escape(word)}s?(?!\w)", message)]
  assert not missing, f"no {missing} in {message!r}"


NAMED = {
  "scaled_dot_product": attention.scaled_dot_product_attention,
  "additive": lambda q, k, v, **options: attention.additive_attention(
    q, k, v, np.ones(q.shape[-1:]), **options
  ),
  "bilinear": lambda q, k, v, **options: attention.bilinear_attention(
    q, k, v, np.ones(q.shape[-1:] + k.shape[-1:]), **options
  ),
  "cosine": attention.cosine_attention,
  "user_defined": lambda q, k, v, **options: attention.attend(
    NegativeDistance(np.ones(())), q, k, v, **options
  ),
}
named = pytest.mark.parametrize("function", NAMED.values(), ids=NAMED)

INPUTS = {
  "queries_without_positions": ((zeros(11), KEYS, VALUES), "queries T H 11"),
  "keys_without_positions": ((QUERIES, zeros(11), VALUES), "keys S H 11"),
  "values_without_positions": ((QUERIES, KEYS, zeros(13)), "values S D 13"),
  "other_values_than_keys": ((QUERIES, KEYS, zeros(2, 23, 13)), "keys values length 5 23"),
  "leading_axes": ((QUERIES, zeros(29, 5, 11), zeros(29, 5, 13)), "queries keys values 2 29"),
  "leading_axes_of_values": ((QUERIES, KEYS, zeros(29, 5, 13)), "queries keys values 2 29"),
  "dtype_of_keys": (
    (QUERIES, zeros(2, 5, 11, dtype=jnp.bfloat16), VALUES),
    "queries keys values dtype float32 bfloat16",
  ),
  "dtype_of_values": (
    (QUERIES, KEYS, zeros(2, 5, 13, dtype=jnp.float16)),
    "queries keys values dtype float32 float16",
  ),
  "integers": (
    tuple(zeros(*array.shape, dtype=jnp.int32) for array in (QUERIES, KEYS, VALUES)),
    "queries keys values floating int32",
  ),
  "complex_numbers": (
    tuple(zeros(*array.shape, dtype=jnp.complex64) for array in (QUERIES, KEYS, VALUES)),
    "queries keys values floating complex64",
  ),
}


@named
@pytest.mark.parametrize(("arguments", "words"), INPUTS.values(), ids=INPUTS)
def test_mismatched_inputs_raise(function, arguments, words):
  assert_error_says(words, function, *arguments)


OPTIONS = {
  "mask_of_other_targets": ({"mask": np.ones((23, 5), bool)}, "mask T S 3 5 23"),
  "mask_of_other_sources": ({"mask": np.ones((3, 29), bool)}, "mask T S 3 5 29"),
  "mask_of_another_batch": ({"mask": np.ones((29, 3, 5), bool)}, "mask T S 2 3 5 29"),
  "mask_that_adds_axes": ({"mask": np.ones((7, 2, 3, 5), bool)}, "mask T S 2 3 5 7"),
  "mask_that_adds_an_axis_of_one": ({"mask": np.ones((1, 2, 3, 5), bool)}, "mask T S 1 2 3 5"),
  "mask_of_floats": ({"mask": np.ones((3, 5), np.float32)}, "mask boolean float32 bias"),
  "mask_of_integers": ({"mask": np.ones((3, 5), np.int32)}, "mask boolean int32 bias"),
  "lengths_of_another_batch": (
    {"mask": masks.lengths(source=np.arange(29))},
    "mask T S 2 3 5 29",
  ),
  "lengths_that_add_axes": (
    {"mask": masks.lengths(source=np.ones((7, 1), int))},
    "mask T S 2 3 5 7",
  ),
  "segments_of_other_targets": (
    {"mask": masks.segments(target=np.arange(23), source=np.arange(5))},
    "target 3 23",
  ),
  "segments_of_other_sources": (
    {"mask": masks.segments(target=np.arange(3), source=np.arange(29))},
    "source 5 29",
  ),
  "joined_array_of_other_sources": (
    {"mask": masks.causal() & masks.from_array(np.ones((3, 29), bool))},
    "mask T S 3 5 29",
  ),
  "bias_of_other_targets": ({"bias": np.ones((23, 5), np.float32)}, "bias T S 3 5 23"),
  "bias_of_another_batch": ({"bias": np.ones((29, 1, 1), np.float32)}, "bias T S 2 3 5 29"),
  "bias_that_adds_axes": ({"bias": np.ones((7, 1, 1, 1), np.float32)}, "bias T S 2 3 5 7"),
  "bias_that_adds_an_axis_of_one": (
    {"bias": np.ones((1, 2, 3, 5), np.float32)},
    "bias T S 1 2 3 5",
  ),
  "bias_of_a_number_of_heads": ({"bias": attention.positions.ALiBi(8)}, "slopes floating alibi_slopes(8) 8"),
  "bias_that_is_a_class": ({"bias": float}, "bias array function float"),
  "bias_of_booleans": ({"bias": np.ones((3, 5), bool)}, "bias floating bool mask"),
  "bias_function_of_another_shape": (
    {"bias": lambda t, s: np.ones((3, 29))},
    "bias T S 3 29 T=1 S=1",
  ),
  "dropout_rate": (
    {"dropout_rate": 1.0, "dropout_rng": jax.random.key(0)},
    "dropout_rate 0 1 1.0",
  ),
  "dropout_without_rng": ({"dropout_rate": 0.25}, "dropout_rng dropout_rate 0.25 None"),
  "dropout_with_a_number": ({"dropout_rate": 0.25, "dropout_rng": 7}, "dropout_rng single key 7"),
  "dropout_with_many_keys": (
    {"dropout_rate": 0.25, "dropout_rng": jax.random.split(jax.random.key(0), 7)},
    "dropout_rng single key 7",
  ),
  "dropout_with_no_key": ({"dropout_rate": 0.25, "dropout_rng": np.ones(2)}, "dropout_rng single key array"),
  "implementation": ({"implementation": "fast"}, "implementation auto dense fast"),
}


@named
@pytest.mark.parametrize(("options", "words"), OPTIONS.values(), ids=OPTIONS)
def test_mismatched_options_raise(function, options, words):
  assert_error_says(words, lambda *arguments: function(*arguments, **options), QUERIES, KEYS, VALUES)


PARAMETERS = {
  "dot_product": (
    attention.scaled_dot_product_attention,
    (QUERIES, zeros(2, 5, 23), VALUES),
    "queries keys 11 23",
  ),
  "cosine": (attention.cosine_attention, (QUERIES, zeros(2, 5, 23), VALUES), "queries keys 11 23"),
  "additive_keys": (
    attention.additive_attention,
    (QUERIES, zeros(2, 5, 23), VALUES, zeros(11)),
    "queries keys 11 23",
  ),
  "additive_vector": (
    attention.additive_attention,
    (QUERIES, KEYS, VALUES, zeros(23)),
    "score_vector 11 23",
  ),
  "additive_vector_without_width": (
    attention.additive_attention,
    (QUERIES, KEYS, VALUES, zeros()),
    "score_vector A",
  ),
  "additive_vectors_of_another_batch": (
    attention.additive_attention,
    (QUERIES, KEYS, VALUES, zeros(29, 11)),
    "queries keys score_vector 2 29",
  ),
  "bilinear_queries": (
    attention.bilinear_attention,
    (QUERIES, KEYS, VALUES, zeros(23, 11)),
    "matrix H K queries keys 11 23",
  ),
  "bilinear_keys": (
    attention.bilinear_attention,
    (QUERIES, KEYS, VALUES, zeros(11, 29)),
    "matrix H K queries keys 11 29",
  ),
  "bilinear_matrix_without_axes": (
    attention.bilinear_attention,
    (QUERIES, KEYS, VALUES, zeros(11)),
    "matrix H K 11",
  ),
  "bilinear_matrices_of_another_batch": (
    attention.bilinear_attention,
    (QUERIES, KEYS, VALUES, zeros(29, 11, 11)),
    "queries matrix 2 29",
  ),
  "dot_product_scores": (
    attention.dot_product_scores,
    (QUERIES, zeros(2, 5, 23)),
    "queries keys 11 23",
  ),
  "dot_product_scores_of_another_batch": (
    attention.dot_product_scores,
    (QUERIES, zeros(29, 5, 11)),
    "queries keys 2 29",
  ),
  "dot_product_scores_of_two_dtypes": (
    attention.dot_product_scores,
    (QUERIES, zeros(2, 5, 11, dtype=jnp.bfloat16)),
    "queries keys float32 bfloat16",
  ),
  "additive_scores": (
    attention.additive_scores,
    (QUERIES, KEYS, zeros(23)),
    "score_vector 11 23",
  ),
  "bilinear_scores": (
    attention.bilinear_scores,
    (QUERIES, KEYS, zeros(11, 23)),
    "matrix 11 23",
  ),
  "cosine_scores": (attention.cosine_scores, (QUERIES, zeros(2, 5, 23)), "queries keys 11 23"),
  "cosine_scores_of_integers": (
    attention.cosine_scores,
    (zeros(3, 11, dtype=jnp.int32), zeros(5, 11, dtype=jnp.int32)),
    "queries floating int32",
  ),
  "scale_of_another_batch": (
    lambda q, k, v, scale: attention.cosine_attention(q, k, v, scale=scale),
    (QUERIES, KEYS, VALUES, zeros(29)),
    "scale 29 2",
  ),
  "scale_that_is_none": (
    lambda q, k, v: attention.cosine_attention(q, k, v, scale=None),
    (QUERIES, KEYS, VALUES),
    "scale number array None",
  ),
  "score_vector_that_is_none": (
    lambda q, k, v: attention.additive_attention(q, k, v, None),
    (QUERIES, KEYS, VALUES),
    "score_vector array None",
  ),
  "matrix_that_is_none": (
    lambda q, k, v: attention.bilinear_attention(q, k, v, None),
    (QUERIES, KEYS, VALUES),
    "matrix array None",
  ),
  "capped_score_that_is_none": (
    lambda q, k, v: attention.attend(attention.SoftCap(None, 5.0), q, k, v),
    (QUERIES, KEYS, VALUES),
    "SoftCap score None",
  ),
  "cap_that_is_none": (
    lambda q, k, v: attention.attend(attention.SoftCap(attention.Cosine(), None), q, k, v),
    (QUERIES, KEYS, VALUES),
    "cap number array None",
  ),
  "weights_that_are_none": (
    lambda q, k: attention.multi_head_attention(q, k, None),
    (QUERIES, KEYS),
    "weights MultiHeadWeights None",
  ),
  "sink_that_is_a_name": (
    lambda context, logsumexp: attention.add_sink(context, logsumexp, "first"),
    (zeros(3, 13), zeros(3)),
    "sink number array first",
  ),
  "masked_softmax_of_another_shape": (
    lambda scores: attention.masked_softmax(scores, np.ones((23, 5), bool)),
    (zeros(3, 5),),
    "mask 3 5 23",
  ),
  "masked_softmax_of_one_row": (
    lambda scores: attention.masked_softmax(scores, np.ones(5, bool)),
    (zeros(5),),
    "scores T S 5",
  ),
  "additive_vectors_and_values_of_other_batches": (
    attention.additive_attention,
    (zeros(3, 11), zeros(5, 11), zeros(23, 5, 13), zeros(29, 11)),
    "score_vector values 29 23",
  ),
  "masked_softmax_of_integers": (
    lambda scores: attention.masked_softmax(scores, np.ones((3, 5), bool)),
    (zeros(3, 5, dtype=jnp.int32),),
    "scores floating int32",
  ),
}


@pytest.mark.parametrize(("function", "arguments", "words"), PARAMETERS.values(), ids=PARAMETERS)
def test_mismatched_parameters_raise(function, arguments, words):
  assert_error_says(words, function, *arguments)


@pytest.mark.parametrize(
  "score", ["additive", attention.Cosine, attention.dot_product_scores], ids=["name", "class", "function"]
)
def test_non_scores_raise(score):
  def call(*arguments):
    return attention.attend(score, *arguments)

  assert_error_says("score Score", call, QUERIES, KEYS, VALUES)


class Transposed(attention.Score):
  """A wrong score: scores [... S T]."""

  def scores(self, query_features, key_features):
    return jnp.einsum("...TH,...SH->...ST", query_features, key_features)


jax.tree_util.register_static(Transposed)


def test_custom_score_shape_is_checked():
  def call(*arguments):
    return attention.attend(Transposed(), *arguments)

  assert_error_says("Transposed T S 3 5", call, QUERIES, KEYS, VALUES)


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

  vectors = (zeros(*leading, *sizes) for sizes in ((3, 11), (5, 11), (5, 13)))
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
    (WithoutBatch(), "scores 3 5"),
    (Matches(), "scores floating int32"),
    (Forgetful(), "Forgetful scores None"),
  ],
)
def test_custom_score_result_is_checked(score, words):
  def call(*arguments):
    return attention.attend(score, *arguments)

  assert_error_says(words, call, QUERIES, KEYS, VALUES)


@pytest.mark.parametrize("num_key_heads", [2, 7])
@pytest.mark.parametrize(
  ("bias", "words"),
  [
    ("alibi", "bias array alibi"),
    (lambda t, s: None, "bias array None"),
    (masks.causal(), "bias array pass masks"),
    (lambda t, s: positions.ALiBi(np.float32(1)), "bias array ALiBi"),
  ],
  ids=["name", "nothing", "mask", "function"],
)
def test_non_biases_raise_for_grouped_heads(bias, words, num_key_heads):
  def call(*arguments):
    return attention.attend_heads(*arguments, bias=bias)

  heads = zeros(14, 3, 11), zeros(num_key_heads, 5, 11), zeros(num_key_heads, 5, 13)
  assert_error_says(words, call, *heads)


@pytest.mark.parametrize("lacking", [np.ones((2, 3, 5), bool), masks.lengths(source=np.arange(2))])
def test_missing_head_axis_has_a_hint(lacking):
  def call(*arguments):
    return attention.scaled_dot_product_attention(*arguments, mask=lacking)

  heads = zeros(2, 7, 3, 11), zeros(2, 7, 5, 11), zeros(2, 7, 5, 13)
  assert_error_says("mask 2 3 5 axes None", call, *heads)


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

  grouped = zeros(4, 3, 11), zeros(2, 5, 11), zeros(2, 5, 13)
  assert_error_says("Unregistered registered register_dataclass", call_grouped, *grouped)


@pytest.mark.parametrize(
  ("options", "words"),
  [
    ({"mask": masks.causal}, "mask causal boolean"),
    ({"mask": "causal"}, "mask causal boolean"),
    ({"bias": "alibi"}, "bias array function alibi"),
    ({"bias": {"a": 1.0}}, "bias array function a 1.0"),
    ({"bias": [np.ones(3), np.ones(4)]}, "bias array"),
    ({"mask": {}}, "mask boolean"),
    ({"bias": lambda t, s: None}, "bias array function None"),
    ({"dropout_rate": "0.1", "dropout_rng": jax.random.key(0)}, "dropout_rate 0 1 '0.1'"),
    ({"dropout_rate": None}, "dropout_rate 0 1 None"),
  ],
)
def test_options_of_wrong_type_raise(options, words):
  def call(*arguments):
    return attention.scaled_dot_product_attention(*arguments, **options)

  assert_error_says(words, call, QUERIES, KEYS, VALUES)


MASKS = {
  "bounds_beyond_32_bits": (lambda: masks.prefix(np.int64(2**40)), "length 2147483647 1099511627776"),
  "offsets_beyond_32_bits": (lambda: masks.causal(-(2**40)), "offset -2147483648 -1099511627776"),
  "from_array_of_floats": (lambda: masks.from_array(np.ones((3, 5))), "boolean float32 bias"),
  "from_array_of_integers": (
    lambda: masks.from_array(np.ones((3, 5), np.int32)),
    "boolean int32 bias",
  ),
  "from_array_asked_for_other_pairs": (
    lambda: masks.from_array(np.ones((3, 29), bool)).materialize(3, 5),
    "T S 3 5 29",
  ),
  "segments_asked_for_other_pairs": (
    lambda: masks.segments(target=np.arange(3), source=np.arange(29)).materialize(3, 5),
    "source 5 29",
  ),
  "segments_of_floats": (
    lambda: masks.segments(target=np.ones(3), source=np.ones(5)),
    "target integer float64",
  ),
  "lengths_of_floats": (
    lambda: masks.lengths(source=np.ones(2)),
    "source integer float64",
  ),
  "no_lengths": (lambda: masks.lengths(), "source target"),
  "joined_with_floats": (lambda: masks.causal() & np.ones((3, 5)), "boolean float32 bias"),
  "joined_batches": (
    lambda: (masks.lengths(source=np.arange(7)) & masks.from_array(np.ones((29, 3, 5), bool))).materialize(
      3, 5
    ),
    "7 29",
  ),
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Named(attention.Score):
  kind: str


def test_non_numeric_fields_must_be_static():
  def call(*arguments):
    return attention.attend(Named("cosine"), *arguments)

  assert_error_says("Named.kind static 'cosine'", call, QUERIES, KEYS, VALUES)


@pytest.mark.parametrize(("function", "words"), MASKS.values(), ids=MASKS)
def test_invalid_masks_raise(function, words):
  assert_error_says(words, function)


@pytest.mark.parametrize("scale", [(7, 1, 1), (2, 7, 1, 1)])
@pytest.mark.parametrize("function", ["scaled_dot_product", "cosine"])
def test_scale_with_score_axes_raises(function, scale):
  heads = tuple(zeros(2, 7, *array.shape[1:]) for array in (QUERIES, KEYS, VALUES))
  words = f"scale N {' '.join(map(str, scale))}"

  def attend(scale, *arrays):
    return NAMED[function](*arrays, scale=scale)

  assert_error_says(words, attend, zeros(*scale), *heads)
  assert jax.eval_shape(attend, zeros(7), *heads).shape == (2, 7, 3, 13)


def heads_after_positions(T=3, S=5, N=7):
  return zeros(2, T, N, 11), zeros(2, S, N, 11), zeros(2, S, N, 13)


@named
def test_heads_after_positions_are_recognized(function):
  for call in (function, attention.attend_heads):
    assert_error_says("B T N H jnp.swapaxes", call, *heads_after_positions())


@pytest.mark.parametrize("option", ["mask", "bias"])
@named
def test_heads_after_positions_have_a_hint(function, option):
  pairs = {"mask": np.tri(3, dtype=bool), "bias": np.zeros((2, 7, 3, 3), np.float32)}[option]
  call = functools.partial(function, **{option: pairs})
  assert_error_says(f"{option} B T N H jnp.swapaxes 3 7", call, *heads_after_positions(S=3))


def test_cap_with_score_axes_raises():
  heads = tuple(zeros(2, 7, *array.shape[1:]) for array in (QUERIES, KEYS, VALUES))

  def attend(cap, *arrays):
    return attention.attend(attention.SoftCap(attention.Cosine(), cap), *arrays)

  assert_error_says("cap N 7 1", attend, zeros(7, 1, 1), *heads)
  with pytest.raises(ValueError, match="must be positive"):
    attend(np.zeros(7), *(np.zeros(array.shape, np.float32) for array in heads))


@pytest.mark.parametrize("keys_leading", [(3, 7), (3, 1)])
def test_mismatched_batch_has_no_head_hint(keys_leading):
  arguments = zeros(2, 7, 3, 11), zeros(*keys_leading, 3, 11), zeros(*keys_leading, 3, 13)
  with pytest.raises(ValueError) as caught:
    jax.eval_shape(attention.scaled_dot_product_attention, *arguments)
  assert "attend_heads" not in str(caught.value) and "B T N H" not in str(caught.value)


@named
def test_grouped_heads_hint_names_attend_heads(function):
  arguments = zeros(2, 6, 3, 11), zeros(2, 2, 5, 11), zeros(2, 2, 5, 13)
  assert_error_says("heads 6 2 attend_heads", function, *arguments)
  assert jax.eval_shape(attention.attend_heads, *arguments).shape == (2, 6, 3, 13)


@pytest.mark.parametrize(
  ("shape", "advice"), [((2, 5), "array[:, None, None]"), ((2, 3, 5), "array[:, None]"), ((3, 2, 5), None)]
)
@engines
def test_missing_head_axis_hint_names_place(implementation, shape, advice):
  queries, keys, values = (np.zeros((2, 7, length, 11), np.float32) for length in (3, 5, 5))
  with pytest.raises(ValueError, match=r"mask must be broadcastable to \[\.\.\. T S\]") as error:
    attention.scaled_dot_product_attention(
      queries, keys, values, mask=np.ones(shape, bool), implementation=implementation
    )
  hint = str(error.value).partition("insert axes of size 1, ")[2]
  assert hint == (advice or "")


@pytest.mark.parametrize(
  ("shape", "hint"),
  [
    ((5, 3), "; its last axes are queries and keys: use jnp.swapaxes(array, -1, -2)"),
    ((2, 1, 3, 5), "; the scores have no axis for heads: omit [:, None]"),
    ((3, 2, 3, 5), ""),
    ((1, 3), ""),
    ((4, 2, 3, 5), ""),
  ],
)
@engines
def test_mask_shape_hint_names_mistake(implementation, shape, hint):
  queries, keys, values = (np.zeros((2, length, 11), np.float32) for length in (3, 5, 5))
  with pytest.raises(ValueError, match="mask must be broadcastable") as error:
    attention.scaled_dot_product_attention(
      queries, keys, values, mask=np.ones(shape, bool), implementation=implementation
    )
  assert str(error.value).splitlines()[0].endswith(f"got shape {shape}{hint}")


def arrays(*shape):
  return np.zeros(shape, np.float32)


THREE = arrays(*DIMS["BTH"]), arrays(*DIMS["BSH"]), arrays(*DIMS["BSD"])


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"mask": np.ones((2, 1, 6, 6), bool)}, r"mask .* \(2, 4, 6, 7\), got shape \(2, 1, 6, 6\)"),
    ({"bias": np.ones((2, 1, 6, 6), np.float32)}, r"bias .* \(2, 4, 6, 7\), got shape \(2, 1, 6, 6\)"),
    (
      {"normalizer": attention.Softmax(np.zeros(3, np.float32))},
      r"sink .* \(2, 4\), got shape \(3,\)",
    ),
    ({"score": attention.Additive(arrays(4, 9))}, r"the queries \(8\), got shape \(9,\)"),
    ({"keys": arrays(3, 2, 7, 8)}, r"got shapes \(2, 4, 6, 8\), \(3, 2, 7, 8\), \(2, 2, 7, 3\)"),
    ({"keys": arrays(2, 2, 5, 8)}, r"same length, got keys \(2, 2, 5, 8\), values \(2, 2, 7, 3\)"),
    ({"keys": arrays(2, 2, 7, 9)}, r"the queries \(8\), got shape \(7, 9\)"),
  ],
)
def test_errors_of_grouped_heads_have_no_groups(options, message):
  arguments = {"queries": arrays(2, 4, 6, 8), "keys": arrays(2, 2, 7, 8), "values": arrays(2, 2, 7, 3)}
  with pytest.raises(ValueError, match=message):
    attention.attend_heads(**(arguments | options))


def test_sizes_of_packed_documents_are_named():
  mask = masks.causal() & masks.packed(np.array([2, 3]), 5)
  with pytest.raises(ValueError, match=r"S=5, got target of .*`total` of masks.packed\) of shape \(5,\)"):
    attention.scaled_dot_product_attention(*THREE, mask=mask)


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


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
@pytest.mark.parametrize(
  ("score", "message"),
  [
    (
      PerHead(np.ones(2, np.float32)),
      'has one array per head, set axes = {"temperature"',
    ),
    (
      NamedPerHead(np.ones((2, 1, 1), np.float32)),
      r"PerHead\.temperature must be a number or an array of leading axes.*, got shape \(2, 1, 1\)",
    ),
  ],
)
def test_arrays_of_heads_need_axes(score, message, implementation):
  with pytest.raises(ValueError, match=message):
    attention.attend(score, *THREE, implementation=implementation)


def test_unknown_options_name_the_function():
  with pytest.raises(TypeError, match=r"^attend_heads\(\) got an unexpected keyword argument 'masks'$"):
    attention.attend_heads(*THREE, masks=None)


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


@pytest.mark.parametrize("sink", [np.inf, np.nan, np.array([0, np.inf])])
def test_sinks_are_below_infinity(sink):
  with pytest.raises(ValueError, match="sink must be a real number below infinity, got "):
    attention.scaled_dot_product_attention(*THREE, normalizer=attention.Softmax(sink))


@pytest.mark.parametrize("keys", [arrays(4, 5, 11), arrays(2, 5, 13)])
def test_errors_of_statistics_name_no_values(keys):
  with pytest.raises(ValueError) as error:
    attention.row_statistics(attention.ScaledDotProduct(), arrays(2, 3, 11), keys)
  assert "values" not in str(error.value)


def test_errors_of_other_scores_have_no_hint():
  @attention.register_pytree
  @dataclasses.dataclass(frozen=True)
  class Fails(PerHead):
    def scores(self, query_features, key_features):
      raise TypeError("an error of the score")

  with pytest.raises(TypeError, match="an error of the score") as error:
    attention.attend(Fails(np.ones(3, np.float32)), *THREE)
  assert "axes" not in str(error.value)
