"""Options under the transformations of JAX that differ most."""

import functools

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DIMS, GRADIENTS, attend_fully, draw
from transformations import assert_equals_plain_calls

import attention
from attention import masks, positions

pytestmark = pytest.mark.slow

T, S = DIMS["TS"]
RNG = np.random.default_rng(3)


def attend(arrays, implementation, **options):
  """Returns the context."""
  score, queries, keys, values, bias = arrays
  return attention.attend(
    score, queries, keys, values, bias=bias, implementation=implementation, block_sizes=(2, 2), **options
  )


def with_results(arrays, implementation, **options):
  """Returns the context and the logsumexp, with 0 for empty rows."""
  context, _, logsumexp = attend_fully(arrays, implementation=implementation, **options)
  return context, jnp.where(logsumexp > -jnp.inf, logsumexp, 0)


def of_one_sentence(kind):
  return draw(kind, *("TH", "SH", "SD"))


DOT = of_one_sentence("scaled_dot_product")
DROPOUT = {"dropout_rate": 0.4, "dropout_rng": jax.random.key(5)}


def relative(arrays, implementation):
  """Biases with trained parameters: one per distance, and a slope."""
  inputs, table, slope = arrays

  def bias(t, s):
    distances = (t - s).astype(jnp.float32)
    return table[t - s + S] - slope * jnp.abs(distances)

  return attend(inputs._replace(bias=bias), implementation)


def of_documents(arrays, implementation):
  """A mask function that closes over an array."""
  inputs, documents = arrays
  return attend(inputs, implementation, mask=masks.from_function(lambda t, s: documents[t] >= documents[s]))


def grouped(arrays, implementation):
  queries, keys, values = arrays
  return attention.attend_heads(
    queries, keys, values, mask=masks.causal(1), implementation=implementation, block_sizes=(2, 2)
  )


def normalized(make):
  def run(arrays, implementation):
    inputs, *rest = arrays
    # Row 0 is empty. Scores differ by units, so that some weights are 0.
    inputs = inputs._replace(bias=4 * inputs.bias)
    return attend(inputs, implementation, mask=masks.causal(-1), normalizer=make(*rest))

  return run


# A function of a pytree of arrays and an implementation, and the arrays.
CASES = {
  "broadcast": (
    functools.partial(attend, mask=masks.causal(-1)),
    draw("additive", "TH", "BSH", "1SD", "B11", heads="B"),
  ),
  "soft_cap": (attend, DOT._replace(score=attention.SoftCap(DOT.score, np.float32(0.7)))),
  "dropout": (functools.partial(attend, **DROPOUT), DOT),
  "additive_dropout": (functools.partial(attend, **DROPOUT), of_one_sentence("additive")),
  "window": (functools.partial(with_results, mask=masks.sliding_window(1, 0)), DOT),
  "segments": (functools.partial(attend, mask=masks.segments([0, 1, 1], [0, 0, 1, 1, 1])), DOT),
  "mask_function": (of_documents, (DOT, np.float32([0, 1, 1, 0, 2]))),
  "bias_function": (relative, (DOT, np.float32(RNG.normal(size=T + S)), np.float32(0.3))),
  "alibi": (attend, DOT._replace(bias=positions.ALiBi(np.float32(0.3)))),
  "grouped_heads": (
    grouped,
    tuple(np.float32(RNG.normal(size=(n, m, 4))) for n, m in ((6, T), (2, S), (2, S))),
  ),
  "sink": (normalized(attention.Softmax), (DOT, np.float32(0.4))),
  "sparsemax": (normalized(attention.Sparsemax), (DOT,)),
  "entmax15": (normalized(attention.Entmax15), (DOT,)),
  "sigmoid": (normalized(attention.Sigmoid), (DOT,)),
  "sigmoid_less_log_keys": (normalized(lambda: attention.Sigmoid(subtract_log_length=True)), (DOT,)),
  "softpick": (normalized(attention.Softpick), (DOT,)),
  "stick_breaking": (normalized(attention.StickBreaking), (DOT,)),
  "local": (
    normalized(lambda centers: attention.GaussianWindow(centers, 1.5)),
    (DOT, np.float32(RNG.uniform(0, S - 1, size=T))),
  ),
}


def exported(function, arrays):
  return jax.export.export(jax.jit(function))(arrays).call(arrays)


@pytest.mark.parametrize("name", CASES)
def test_options_under_transformations(name):
  transformations = ["grad", "forward_over_reverse", "vmap_of_grad"]
  assert_equals_plain_calls(*CASES[name], "blockwise", transformations)


@pytest.mark.parametrize("name", CASES)
def test_eager_and_exported_equal_jit(name):
  function, arrays = CASES[name]
  arrays = jax.tree.map(jnp.asarray, arrays)
  function = functools.partial(function, implementation="blockwise")
  desired = jax.jit(function)(arrays)
  chex.assert_trees_all_close(function(arrays), desired, **GRADIENTS)
  chex.assert_trees_all_close(exported(function, arrays), desired, **GRADIENTS)


@pytest.mark.parametrize("dtype", [np.int32, bool])
@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_closures_over_any_dtype(dtype, implementation):
  of_keys = np.array([0, 1, 1, 0, 2]).astype(dtype)

  def loss(queries, of_keys, implementation):
    def bias(t, s):
      return jnp.where(of_keys[s] == of_keys[t], 0.0, -1.0)

    return jnp.sum(attend(DOT._replace(queries=queries, bias=bias), implementation) ** 2)

  gradient = jax.jit(jax.grad(jax.checkpoint(loss, static_argnums=2)), static_argnums=2)
  arrays = DOT.queries, jnp.asarray(of_keys)
  chex.assert_trees_all_close(gradient(*arrays, implementation), gradient(*arrays, "dense"), **GRADIENTS)
