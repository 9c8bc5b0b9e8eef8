"""Memory: "blockwise" never stores an array over all queries and keys."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SCORES, Inputs, attend

import attention
from attention import masks, positions

T, S, H, D = 1031, 1033, 8, 6


def assert_no_array_of_pairs(loss, inputs):
  """Asserts that no array is nearly as large as all pairs: of both passes, and of Hessian-vector products."""

  def second_order(inputs):
    return jax.jvp(jax.grad(loss), (inputs,), (inputs,))

  program = str(
    jax.make_jaxpr(lambda inputs: (jax.value_and_grad(loss)(inputs), second_order(inputs)))(inputs)
  )
  shapes = [tuple(map(int, sizes.split(","))) for sizes in re.findall(r"\[(\d+(?:,\d+)*)\]", program)]
  assert any(T in shape for shape in shapes) and any(S in shape for shape in shapes)
  assert max(map(math.prod, shapes)) < T * S / 8


def draw_long(kind):
  parameter = np.full([H] * len(SCORES[kind].axes), 0.1, np.float32)
  vectors = (np.zeros(shape, np.float32) for shape in ((T, H), (S, H), (S, D)))
  return Inputs(SCORES[kind].score(parameter), *vectors)


@pytest.mark.parametrize("kind", SCORES)
def test_scores_are_never_all_stored(kind):
  def loss(inputs):
    return jnp.sum(attend(inputs, mask=masks.causal(), implementation="blockwise", block_sizes=(128, 128)))

  assert_no_array_of_pairs(loss, draw_long(kind))


OPTIONS = {
  "dropout": {"dropout_rate": 0.1, "dropout_rng": jax.random.key(0)},
  "window": {"mask": masks.sliding_window(100, 0)},
  "lengths": {"mask": masks.lengths(source=np.int32(1000))},
  "function": {"mask": masks.from_function(lambda t, s: (t - s) % 7 != 0)},
  "alibi": {"bias": positions.ALiBi(np.float32(0.1))},
  "sparsemax": {"normalizer": attention.Sparsemax()},
  "entmax15": {"normalizer": attention.Entmax15()},
  "stick_breaking": {"normalizer": attention.StickBreaking()},
  "sigmoid_less_log_keys": {"normalizer": attention.Sigmoid(subtract_log_length=True)},
  "sink": {"normalizer": attention.Softmax(np.float32(0.3))},
  "softpick": {"normalizer": attention.Softpick()},
  "local": {"normalizer": attention.GaussianWindow(np.linspace(0, S, T, dtype=np.float32), 9.0)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_are_never_all_stored(options):
  options = {"implementation": "blockwise", "block_sizes": (128, 128)} | options

  def loss(inputs):
    return jnp.sum(attention.scaled_dot_product_attention(*inputs[1:4], **options))

  assert_no_array_of_pairs(loss, draw_long("scaled_dot_product"))


@pytest.mark.parametrize("kind", ["scaled_dot_product", "additive"])
def test_compiled_memory_is_linear(kind):
  def loss(inputs):
    return jnp.sum(attend(inputs, mask=masks.causal(), implementation="blockwise"))

  def memory(length):
    vectors = [jax.ShapeDtypeStruct((length, H), jnp.float32)] * 3
    inputs = draw_long(kind)._replace(queries=vectors[0], keys=vectors[1], values=vectors[2])
    return jax.jit(jax.grad(loss)).lower(inputs).compile().memory_analysis().temp_size_in_bytes

  assert memory(16_384) < 4.5 * memory(4096)
