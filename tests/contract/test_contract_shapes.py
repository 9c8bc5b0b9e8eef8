"""Point 1 of the contract: shapes and broadcasting, also of user-defined scores."""

import dataclasses

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import reference
from helpers.fixtures import (
  DIMS,
  ENGINES,
  FEW,
  FLOAT32,
  SCORES,
  always,
  assert_close,
  assert_trees_close,
  draw,
  engines,
  expected,
  in_turn,
  kinds,
  results,
)
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

import attention


@pytest.mark.exhaustive
@hypothesis.given(
  kind=st.sampled_from(sorted(SCORES)),
  implementation=st.sampled_from(ENGINES),
  leading=hypothesis_numpy.mutually_broadcastable_shapes(num_shapes=3, max_dims=2, max_side=3),
)
def test_leading_axes_broadcast(kind, implementation, leading):
  rng = np.random.default_rng(0)
  inputs = draw(kind)
  queries, keys, values = (
    np.float32(rng.normal(size=(*axes, *array.shape)))
    for axes, array in zip(leading.input_shapes, inputs[:3], strict=True)
  )
  inputs = inputs._replace(queries=queries, keys=keys, values=values)
  actual = results(kind, inputs, implementation=implementation, alone=True)
  assert_trees_close(actual, tuple(expected(kind, inputs)), FLOAT32)


@pytest.mark.parametrize(
  "kind", always(*FEW, of=["scaled_dot_product", "additive", "cosine", "user_defined"])
)
@engines
def test_self_attention(kind, implementation):
  # As many keys as queries with the same width, all the same array; mask and bias are not symmetric.
  inputs = draw(kind, bias="SS")
  inputs = inputs._replace(queries=inputs.keys, values=inputs.keys)
  mask = np.random.default_rng(3).random(DIMS["SS"]) < 0.6
  assert np.any(mask != mask.T)
  actual = results(kind, inputs, mask=mask, implementation=implementation)
  assert_trees_close(actual, tuple(expected(kind, inputs, mask=mask)), FLOAT32)


@in_turn(kind=SCORES)
def test_lists_and_numbers_are_accepted(kind, implementation):
  def context(queries, keys, values, parameters, bias):
    score = SCORES[kind].score(**parameters)
    return attention.attend(score, queries, keys, values, bias=bias, implementation=implementation)

  inputs = draw(kind)
  as_lists = jax.tree.map(lambda array: array.tolist(), inputs)
  np.testing.assert_array_equal(
    context(*as_lists._replace(bias=0.5)), context(*inputs._replace(bias=np.float32(0.5)))
  )


def test_multi_head_attention_accepts_lists():
  inputs = np.random.default_rng(0).normal(size=(3, 2)).tolist()
  kernel = [[[0.5]], [[-0.5]]]
  weights = attention.MultiHeadWeights(
    kernel, kernel, kernel, [[[1.0, 2.0]]], [[0.5]], output_bias=[0.5, 1.0]
  )
  arrays = attention.MultiHeadWeights(
    *(np.array(kernel, np.float32),) * 3,
    output=np.float32([[[1, 2]]]),
    query_bias=np.float32([[0.5]]),
    output_bias=np.float32([0.5, 1]),
  )
  np.testing.assert_array_equal(
    attention.multi_head_attention(inputs, inputs, weights),
    attention.multi_head_attention(np.float32(inputs), np.float32(inputs), arrays),
  )


@pytest.mark.parametrize("kind", always("user_defined", of=["scaled_dot_product", "user_defined"]))
@engines
def test_results_have_all_leading_axes(kind, implementation):
  inputs = draw(kind, "B1TH", "SH", "NSD")
  actual = results(kind, inputs, implementation=implementation, alone=True)
  assert_trees_close(actual, tuple(expected(kind, inputs)), FLOAT32)
  assert [array.shape for array in actual] == [DIMS["BNTD"], DIMS["BNTS"], DIMS["BNT"]]


@pytest.mark.parametrize(
  ("kind", "queries", "implementation"),
  always(
    *(("additive", "BNTH", "blockwise"), ("scaled_dot_product", "TH", "dense")),
    of=[
      (kind, queries, engine)
      for kind, queries in (
        *(("scaled_dot_product", "TH"), ("additive", "BNTH")),
        *(("bilinear", "BNTH"), ("cosine", "TH")),
      )
      for engine in ENGINES
    ],
  ),
)
def test_score_parameters_may_have_leading_axes(kind, queries, implementation):
  # A scale, vector or matrix per head, or per result of the same queries.
  inputs = draw(kind, queries, "SH", "SD", heads="N")
  actual = results(kind, inputs, implementation=implementation, alone=True)
  assert_trees_close(actual, tuple(expected(kind, inputs)), FLOAT32)


@kinds
@pytest.mark.parametrize(("T", "S"), [(1, 1), (0, 5), (3, 0)])
@engines
def test_zero_or_one_position(kind, T, S, implementation):
  inputs = draw(kind, "BTH", "BSH", "SD")
  inputs = inputs._replace(queries=inputs.queries[:, :T], keys=inputs.keys[:, :S], values=inputs.values[:S])
  actual = results(kind, inputs, implementation=implementation)
  assert_trees_close(actual, tuple(expected(kind, inputs)), FLOAT32)


@kinds
def test_empty_batch(kind):
  inputs = draw(kind, "BTH", "SH", "SD")
  context, _, _ = results(kind, inputs._replace(queries=inputs.queries[:0]))
  assert context.shape == (0, *DIMS["TD"])


def test_empty_batch_of_many_pairs():
  # Many pairs, so that leading axes are processed one at a time.
  queries, keys = np.zeros((0, 2, 1024, 3), np.float32), np.zeros((2, 1031, 3), np.float32)
  assert attention.additive_scores(queries, keys, np.ones(3)).shape == (0, 2, 1024, 1031)


def test_numpy_arrays_are_accepted():
  inputs = draw("additive", bias="TS")
  mask = np.tri(*DIMS["TS"], dtype=bool)
  actual = attention.additive_attention(
    *inputs[:3], inputs.parameters["score_vector"], mask=mask, bias=inputs.bias
  )
  assert_close(actual, expected("additive", inputs, mask=mask).context, FLOAT32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cubic(attention.Score):
  """q . k^3 + q^2 . (strength * k): a user-defined score with features of several widths."""

  strength: jax.Array

  def query_features(self, queries):
    return jnp.concatenate([queries, queries**2], axis=-1)

  def key_features(self, keys):
    return jnp.concatenate([keys**3, keys, self.strength * keys], axis=-1)

  def scores(self, query_features, key_features):
    H = query_features.shape[-1] // 2
    cubes, _, scaled = jnp.split(key_features, 3, axis=-1)
    scores = jnp.einsum("...TH,...SH->...TS", query_features[..., :H], cubes)
    return scores + jnp.einsum("...TH,...SH->...TS", query_features[..., H:], scaled)


@in_turn(axes=["BTH SH", "TH BSH"])
def test_custom_features_may_have_any_width(axes, implementation):
  inputs = draw("cosine", *axes.split(), "SD")
  queries, keys = np.float32(0.5) * inputs.queries, np.float32(0.5) * inputs.keys

  @jax.jit
  def run(score, *arguments):
    return tuple(
      attention.attend(
        score, *arguments, return_weights=True, return_logsumexp=True, implementation=implementation
      )
    )

  actual = run(Cubic(np.float32(0.7)), queries, keys, inputs.values)
  desired = reference.attend(
    lambda query, key: np.sum(query * key**3 + query**2 * 0.7 * key), queries, keys, inputs.values
  )
  assert_trees_close(actual, tuple(desired), 4 * FLOAT32)


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_leading_axes_of_no_size(implementation):
  options = {"implementation": implementation, "block_sizes": (2, 2)}
  queries, keys, values = jnp.zeros((2, 1, 3, 4)), jnp.zeros((1, 0, 5, 4)), jnp.zeros((1, 1, 5, 7))
  context = attention.scaled_dot_product_attention(queries, keys, values, **options)
  assert context.shape == (2, 0, 3, 7)
  table = jnp.ones((0, 3, 5), bool)
  mask = attention.masks.from_function(lambda t, s: table[:, t, s])
  output = attention.scaled_dot_product_attention(
    queries[:0, 0], keys[0], values[0], mask=mask, return_weights=True, return_logsumexp=True, **options
  )
  assert tuple(array.shape for array in output) == ((0, 3, 7), (0, 3, 5), (0, 3))
