"""Layers under `nn.remat` and `nn.scan`, called with three arrays, and pickled."""

import pickle

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import FLOAT32, always, assert_close, assert_trees_close
from helpers.model_reference import random_parameters

import attention
from attention import masks

DIMS = chex.Dimensions(B=2, T=3, S=5, D=6, E=10, V=13)
random = np.random.default_rng(0)
INPUTS = jnp.asarray(random.normal(size=DIMS["BTD"]), jnp.float32)
SOURCES = jnp.asarray(random.normal(size=DIMS["BSD"]), jnp.float32)
VALUES = jnp.asarray(random.normal(size=DIMS["BSE"]), jnp.float32)
TOKENS, LENGTHS = jnp.asarray(random.integers(DIMS.V, size=DIMS["BS"])), jnp.asarray([5, 3])

LAYERS = {
  "MultiHeadAttention": (attention.MultiHeadAttention, {"num_heads": 2}, (INPUTS, SOURCES)),
  "FeedForward": (attention.FeedForward, {"mlp_dim": 7}, (INPUTS,)),
  "EncoderLayer": (attention.EncoderLayer, {"num_heads": 2, "mlp_dim": 7}, (INPUTS,)),
  "DecoderLayer": (attention.DecoderLayer, {"num_heads": 2, "mlp_dim": 7}, (INPUTS, SOURCES)),
  "TransformerEncoder": (
    attention.TransformerEncoder,
    {"vocabulary_size": 13, "features": 6, "num_layers": 1, "num_heads": 2},
    (TOKENS, LENGTHS),
  ),
  "RecurrentEncoder": (
    attention.RecurrentEncoder,
    {"vocabulary_size": 13, "embed_dim": 3, "features": 6},
    (TOKENS, LENGTHS),
  ),
}


def loss_and_gradient(module, params, inputs, **options):
  """Returns a loss of the outputs, and its gradient, with dropout from one key."""

  @jax.jit
  def loss(params):
    outputs = module.apply(params, *inputs, rngs={"dropout": jax.random.key(3)}, **options)
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(outputs))

  return jax.value_and_grad(loss)(params)


@pytest.mark.parametrize(
  ("name", "deterministic"),
  always(
    ("DecoderLayer", False),
    of=[(name, deterministic) for name in LAYERS for deterministic in (True, False)],
  ),
)
def test_remat_preserves_results(name, deterministic):
  layer, options, inputs = LAYERS[name]
  plain = layer(dropout_rate=0.4, **options)
  rematerialized = nn.remat(layer)(dropout_rate=0.4, deterministic=deterministic, **options)
  params = random_parameters(plain, *inputs)
  result = loss_and_gradient(rematerialized, params, inputs)
  # Flax draws from the path of a module, which is the same at the top level.
  assert_trees_close(
    result, loss_and_gradient(plain, params, inputs, deterministic=deterministic), 10 * FLOAT32
  )
  other = loss_and_gradient(plain, params, inputs, deterministic=not deterministic)
  assert not np.allclose(result[0], other[0])


def test_deterministic_is_given_once():
  for name in LAYERS:
    layer, options, inputs = LAYERS[name]
    params = random_parameters(layer(**options), *inputs)
    with pytest.raises(ValueError, match='"deterministic" was passed to the constructor and at call'):
      layer(deterministic=True, **options).apply(params, *inputs, deterministic=True)


class Block(nn.Module):
  """A rematerialized layer as a step of `nn.scan`."""

  deterministic: bool

  @nn.compact
  def __call__(self, inputs, mask):
    remat_layer = nn.remat(attention.EncoderLayer)
    layer = remat_layer(2, 7, dropout_rate=0.3, deterministic=self.deterministic, name="layer")
    return layer(inputs, mask=mask), None


def stack(deterministic):
  """Returns three layers in a scan."""
  rngs = {"params": True, "dropout": True}
  options = {"variable_axes": {"params": 0}, "split_rngs": rngs, "in_axes": nn.broadcast, "length": 3}
  return nn.scan(Block, **options)(deterministic)


def test_scanned_layers_match_a_loop():
  mask = masks.causal() & masks.lengths(source=jnp.asarray([[3], [2]]))
  params = stack(deterministic=True).init(jax.random.key(0), INPUTS, mask)
  desired = INPUTS
  for i in range(3):
    of_one = jax.tree.map(lambda leaf, i=i: leaf[i], params["params"]["layer"])
    desired = attention.EncoderLayer(2, 7).apply({"params": of_one}, desired, mask=mask)
  result = jax.jit(stack(deterministic=True).apply)(params, INPUTS, mask)[0]
  assert_close(result, desired, 10 * FLOAT32)

  @jax.jit
  def outputs_and_gradient(params, rng):
    def total(params):
      outputs = stack(deterministic=False).apply(params, INPUTS, mask, rngs={"dropout": rng})[0]
      return jnp.sum(jnp.sin(outputs)), outputs

    return jax.grad(total, has_aux=True)(params)[::-1]

  outputs, gradients = outputs_and_gradient(params, jax.random.key(1))
  assert not np.allclose(outputs, result)
  assert not np.allclose(outputs, outputs_and_gradient(params, jax.random.key(2))[0])
  chex.assert_tree_all_finite(gradients)
  assert all(jnp.any(leaf[i] != 0) for leaf in jax.tree.leaves(gradients) for i in range(3))


@pytest.mark.parametrize("arrays", [(INPUTS,), (INPUTS, SOURCES), (INPUTS, SOURCES, VALUES)], ids=len)
def test_array_arguments_match_flax(arrays):
  ours, flax = (
    attention.MultiHeadAttention(2, qkv_features=6),
    nn.MultiHeadDotProductAttention(2, qkv_features=6),
  )
  params = random_parameters(ours, *arrays)
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    desired = flax.apply(params, *arrays)
  assert_close(ours.apply(params, *arrays), desired, 10 * FLOAT32)


def test_keys_and_values_prepared_together():
  layer = attention.MultiHeadAttention(2, qkv_features=6)
  params = random_parameters(layer, INPUTS, SOURCES, VALUES)
  keys_values = layer.apply(params, SOURCES, VALUES, method="project_kv")
  result = layer.apply(params, INPUTS, keys_values, method="attend_with_kv")
  assert_close(result, layer.apply(params, INPUTS, SOURCES, VALUES), FLOAT32)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_can_be_pickled(name):
  layer, options, inputs = LAYERS[name]
  module = layer(**options)
  unpickled = pickle.loads(pickle.dumps(module))
  assert unpickled == module
  outputs = jax.eval_shape(unpickled.init_with_output, jax.random.key(0), *inputs)
  assert outputs == jax.eval_shape(module.init_with_output, jax.random.key(0), *inputs)


@pytest.mark.parametrize("name", ["MultiHeadAttention", "EncoderLayer", "DecoderLayer"])
def test_a_vector_is_an_error(name):
  layer, options, inputs = LAYERS[name]
  vectors = [jnp.ones(6)] * len(inputs)
  with pytest.raises(ValueError, match=r"must have axes \[\.\.\. [ST] D\], got shape \(6,\)"):
    layer(**options).init(jax.random.key(0), *vectors)
