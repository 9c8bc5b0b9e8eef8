"""Errors: wrong arguments raise a helpful ValueError at trace time.

It names the argument, what is allowed, and the value with its sizes. test_score_errors.py has the errors of
scores and their parameters.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, assert_error_says, shape_of

import attention
from attention import masks, positions

# T = 3, S = 5, H = 11, D = 13; 23 and 29 are always wrong.
QUERIES, KEYS, VALUES = (shape_of(*DIMS[axes]) for axes in ("BTH", "BSH", "BSD"))
THREE = [np.zeros(array.shape, np.float32) for array in (QUERIES, KEYS, VALUES)]

each_engine = pytest.mark.parametrize("implementation", ["dense", "blockwise"])


def zero_arrays(*shape):
  return np.zeros(shape, np.float32)


INPUTS = [
  ("queries T H 11", (shape_of(11), KEYS, VALUES)),
  ("keys S H 11", (QUERIES, shape_of(11), VALUES)),
  ("values S D 13", (QUERIES, KEYS, shape_of(13))),
  ("keys values length 5 23", (QUERIES, KEYS, shape_of(2, 23, 13))),
  ("queries keys values 2 29", (QUERIES, shape_of(29, 5, 11), shape_of(29, 5, 13))),
  ("queries keys values 2 29", (QUERIES, KEYS, shape_of(29, 5, 13))),
  ("queries keys values dtype float32 bfloat16", (QUERIES, shape_of(2, 5, 11, dtype=jnp.bfloat16), VALUES)),
  ("queries keys values dtype float32 float16", (QUERIES, KEYS, shape_of(2, 5, 13, dtype=jnp.float16))),
  (
    "queries keys values floating int32",
    [array.update(dtype=jnp.int32) for array in (QUERIES, KEYS, VALUES)],
  ),
  (
    "queries keys values floating complex64",
    [array.update(dtype=jnp.complex64) for array in (QUERIES, KEYS, VALUES)],
  ),
]


@pytest.mark.parametrize(("words", "arguments"), INPUTS)
def test_mismatched_vectors_raise(arguments, words):
  assert_error_says(words, attention.scaled_dot_product_attention, *arguments)


OPTIONS = [
  ("mask T S 3 5 23", {"mask": np.ones((23, 5), bool)}),
  ("mask T S 3 5 29", {"mask": np.ones((3, 29), bool)}),
  ("mask T S 2 3 5 29", {"mask": np.ones((29, 3, 5), bool)}),
  ("mask T S 2 3 5 7", {"mask": np.ones((7, 2, 3, 5), bool)}),
  ("mask T S 1 2 3 5", {"mask": np.ones((1, 2, 3, 5), bool)}),
  ("mask boolean float32 bias", {"mask": np.ones((3, 5), np.float32)}),
  ("mask boolean int32 bias", {"mask": np.ones((3, 5), np.int32)}),
  ("mask T S 2 3 5 29", {"mask": masks.lengths(source=np.arange(29))}),
  ("mask T S 2 3 5 7", {"mask": masks.lengths(source=np.ones((7, 1), int))}),
  ("target 3 23", {"mask": masks.segments(target=np.arange(23), source=np.arange(5))}),
  ("source 5 29", {"mask": masks.segments(target=np.arange(3), source=np.arange(29))}),
  ("mask T S 3 5 29", {"mask": masks.causal() & masks.from_array(np.ones((3, 29), bool))}),
  ("bias T S 3 5 23", {"bias": np.ones((23, 5), np.float32)}),
  ("bias T S 2 3 5 29", {"bias": np.ones((29, 1, 1), np.float32)}),
  ("bias T S 2 3 5 7", {"bias": np.ones((7, 1, 1, 1), np.float32)}),
  ("bias T S 1 2 3 5", {"bias": np.ones((1, 2, 3, 5), np.float32)}),
  ("slopes floating alibi_slopes(8) 8", {"bias": attention.positions.ALiBi(8)}),
  ("bias array function float", {"bias": float}),
  ("bias floating bool mask", {"bias": np.ones((3, 5), bool)}),
  ("bias T S 3 29 T=1 S=1", {"bias": lambda t, s: np.ones((3, 29))}),
  ("dropout_rate [0, 1) 1.0", {"dropout_rate": 1.0, "dropout_rng": jax.random.key(0)}),
  ("dropout_rate [0, 1) -0.1", {"dropout_rate": -0.1, "dropout_rng": jax.random.key(0)}),
  ("dropout_rate [0, 1) nan", {"dropout_rate": float("nan"), "dropout_rng": jax.random.key(0)}),
  ("dropout_rng dropout_rate 0.25 None", {"dropout_rate": 0.25}),
  ("dropout_rng single key 7", {"dropout_rate": 0.25, "dropout_rng": 7}),
  ("dropout_rng single key 7", {"dropout_rate": 0.25, "dropout_rng": jax.random.split(jax.random.key(0), 7)}),
  ("dropout_rng single key array", {"dropout_rate": 0.25, "dropout_rng": np.ones(2)}),
  ("implementation auto dense fast", {"implementation": "fast"}),
  ("mask causal boolean", {"mask": masks.causal}),
  ("mask boolean", {"mask": {}}),
  ("bias array function alibi", {"bias": "alibi"}),
  ("bias array function a 1.0", {"bias": {"a": 1.0}}),
  ("bias array", {"bias": [np.ones(3), np.ones(4)]}),
  ("dropout_rate [0, 1) '0.1'", {"dropout_rate": "0.1", "dropout_rng": jax.random.key(0)}),
  ("dropout_rate [0, 1) None", {"dropout_rate": None}),
]


@pytest.mark.parametrize(("words", "options"), OPTIONS)
def test_mismatched_options_raise(options, words):
  def call(*arguments):
    return attention.cosine_attention(*arguments, **options)

  assert_error_says(words, call, QUERIES, KEYS, VALUES)


MASKS = [
  ("length 2147483647 1099511627776", lambda: masks.prefix(np.int64(2**40))),
  ("offset -2147483648 -1099511627776", lambda: masks.causal(-(2**40))),
  ("boolean float32 bias", lambda: masks.from_array(np.ones((3, 5)))),
  ("boolean int32 bias", lambda: masks.from_array(np.ones((3, 5), np.int32))),
  ("T S 3 5 29", lambda: masks.from_array(np.ones((3, 29), bool)).materialize(3, 5)),
  ("source 5 29", lambda: masks.segments(target=np.arange(3), source=np.arange(29)).materialize(3, 5)),
  ("target integer float64", lambda: masks.segments(target=np.ones(3), source=np.ones(5))),
  ("source integer float64", lambda: masks.lengths(source=np.ones(2))),
  ("source target", lambda: masks.lengths()),
  ("boolean float32 bias", lambda: masks.causal() & np.ones((3, 5))),
  (
    "7 29",
    lambda: (masks.lengths(source=np.arange(7)) & masks.from_array(np.ones((29, 3, 5), bool))).materialize(
      3, 5
    ),
  ),
]


@pytest.mark.parametrize(("words", "function"), MASKS)
def test_invalid_masks_raise(function, words):
  assert_error_says(words, function)


SOFTMAXES = [
  ("mask 3 5 23", lambda: attention.masked_softmax(np.zeros((3, 5), np.float32), np.ones((23, 5), bool))),
  ("scores T S 5", lambda: attention.masked_softmax(np.zeros(5, np.float32), np.ones(5, bool))),
  (
    "scores floating int32",
    lambda: attention.masked_softmax(np.zeros((3, 5), np.int32), np.ones((3, 5), bool)),
  ),
  (
    "mask boolean float32",
    lambda: attention.masked_softmax(np.zeros((3, 5), np.float32), np.ones((3, 5), np.float32)),
  ),
]


@pytest.mark.parametrize(("words", "function"), SOFTMAXES)
def test_masked_softmax_errors(function, words):
  assert_error_says(words, function)


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

  heads = shape_of(14, 3, 11), shape_of(num_key_heads, 5, 11), shape_of(num_key_heads, 5, 13)
  assert_error_says(words, call, *heads)


@pytest.mark.parametrize("lacking", [np.ones((2, 3, 5), bool), masks.lengths(source=np.arange(2))])
def test_missing_head_axis_has_a_hint(lacking):
  def call(*arguments):
    return attention.scaled_dot_product_attention(*arguments, mask=lacking)

  heads = shape_of(2, 7, 3, 11), shape_of(2, 7, 5, 11), shape_of(2, 7, 5, 13)
  assert_error_says("mask 2 3 5 axes None", call, *heads)


def heads_after_positions(T=3, S=5, N=7):
  return shape_of(2, T, N, 11), shape_of(2, S, N, 11), shape_of(2, S, N, 13)


def test_heads_after_positions_are_recognized():
  for call in (attention.cosine_attention, attention.attend_heads):
    assert_error_says("B T N H jnp.swapaxes", call, *heads_after_positions())


@pytest.mark.parametrize("option", ["mask", "bias"])
def test_heads_after_positions_have_hints(option):
  pairs = {"mask": np.tri(3, dtype=bool), "bias": np.zeros((2, 7, 3, 3), np.float32)}[option]
  call = functools.partial(attention.cosine_attention, **{option: pairs})
  assert_error_says(f"{option} B T N H jnp.swapaxes 3 7", call, *heads_after_positions(S=3))


@pytest.mark.parametrize("keys_leading", [(3, 7), (3, 1)])
def test_mismatched_batch_has_no_head_hint(keys_leading):
  arguments = shape_of(2, 7, 3, 11), shape_of(*keys_leading, 3, 11), shape_of(*keys_leading, 3, 13)
  with pytest.raises(ValueError) as caught:
    jax.eval_shape(attention.scaled_dot_product_attention, *arguments)
  assert "attend_heads" not in str(caught.value) and "B T N H" not in str(caught.value)


def test_grouped_heads_hint_names_attend_heads():
  arguments = shape_of(2, 6, 3, 11), shape_of(2, 2, 5, 11), shape_of(2, 2, 5, 13)
  assert_error_says("heads 6 2 attend_heads", attention.cosine_attention, *arguments)
  assert jax.eval_shape(attention.attend_heads, *arguments).shape == (2, 6, 3, 13)


@pytest.mark.parametrize(
  ("shape", "advice"), [((2, 5), "array[:, None, None]"), ((2, 3, 5), "array[:, None]"), ((3, 2, 5), None)]
)
@each_engine
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
@each_engine
def test_mask_shape_hint_names_mistake(implementation, shape, hint):
  queries, keys, values = (np.zeros((2, length, 11), np.float32) for length in (3, 5, 5))
  with pytest.raises(ValueError, match="mask must be broadcastable") as error:
    attention.scaled_dot_product_attention(
      queries, keys, values, mask=np.ones(shape, bool), implementation=implementation
    )
  assert str(error.value).splitlines()[0].endswith(f"got shape {shape}{hint}")


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"mask": np.ones((2, 1, 6, 6), bool)}, r"mask .* \(2, 4, 6, 7\), got shape \(2, 1, 6, 6\)"),
    ({"bias": np.ones((2, 1, 6, 6), np.float32)}, r"bias .* \(2, 4, 6, 7\), got shape \(2, 1, 6, 6\)"),
    ({"normalizer": attention.Softmax(np.zeros(3, np.float32))}, r"sink .* \(2, 4\), got shape \(3,\)"),
    ({"normalizer": attention.Softmax(np.inf)}, "sink must be a real number below infinity, got inf"),
    ({"score": attention.Additive(zero_arrays(4, 9))}, r"the queries \(8\), got shape \(9,\)"),
    ({"keys": zero_arrays(3, 2, 7, 8)}, r"got shapes \(2, 4, 6, 8\), \(3, 2, 7, 8\), \(2, 2, 7, 3\)"),
    ({"keys": zero_arrays(2, 2, 5, 8)}, r"same length, got keys \(2, 2, 5, 8\), values \(2, 2, 7, 3\)"),
    ({"keys": zero_arrays(2, 2, 7, 9)}, r"the queries \(8\), got shape \(7, 9\)"),
  ],
)
def test_grouped_heads_errors_name_given_shapes(options, message):
  arguments = {
    "queries": zero_arrays(2, 4, 6, 8),
    "keys": zero_arrays(2, 2, 7, 8),
    "values": zero_arrays(2, 2, 7, 3),
  }
  with pytest.raises(ValueError, match=message):
    attention.attend_heads(**(arguments | options))


def test_sizes_of_packed_documents_are_named():
  mask = masks.causal() & masks.packed(np.array([2, 3]), 5)
  with pytest.raises(ValueError, match=r"S=5, got target of .*`total` of masks.packed\) of shape \(5,\)"):
    attention.scaled_dot_product_attention(*THREE, mask=mask)


def test_unknown_options_name_the_function():
  with pytest.raises(TypeError, match=r"^attend_heads\(\) got an unexpected keyword argument 'masks'$"):
    attention.attend_heads(*THREE, masks=None)


@pytest.mark.parametrize("keys", [zero_arrays(4, 5, 11), zero_arrays(2, 5, 13)])
def test_errors_of_statistics_name_no_values(keys):
  with pytest.raises(ValueError) as error:
    attention.row_statistics(attention.ScaledDotProduct(), zero_arrays(2, 3, 11), keys)
  assert "values" not in str(error.value)
