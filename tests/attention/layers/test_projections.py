"""Norms equal those of Flax; layers refuse parameters that they do not use."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import attention

rng = np.random.default_rng(0)
INPUTS = rng.normal(3, 2, size=(2, 5, 13)).astype(np.float32)
SCALE, BIAS = rng.normal(size=(2, 13)).astype(np.float32)


@pytest.mark.parametrize(
  ("ours", "theirs", "params"),
  [
    (attention.LayerNorm, nn.LayerNorm, {"scale": SCALE, "bias": BIAS}),
    (attention.RMSNorm, nn.RMSNorm, {"scale": SCALE}),
  ],
)
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_norms_match_flax(ours, theirs, params, dtype):
  actual = jax.jit(ours(epsilon=0.1, dtype=dtype).apply)({"params": params}, INPUTS)
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    desired = jax.jit(theirs(epsilon=0.1, dtype=dtype).apply)({"params": params}, INPUTS)
  assert actual.dtype == desired.dtype
  tolerance = 1e-5 if dtype is None else 2**-7
  actual, desired = (array.astype(jnp.float32) for array in (actual, desired))
  chex.assert_trees_all_close(actual, desired, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("norm", [attention.LayerNorm(), attention.RMSNorm()])
def test_half_precision_norms_use_float32(norm):
  names = ("scale", "bias") if isinstance(norm, attention.LayerNorm) else ("scale",)
  halves = {"params": {name: BIAS.astype(jnp.bfloat16) for name in names}}, INPUTS.astype(jnp.bfloat16)
  actual = jax.jit(norm.apply)(*halves)
  desired = jax.jit(norm.apply)(*jax.tree.map(np.float32, halves))
  assert actual.dtype == jnp.bfloat16
  np.testing.assert_array_equal(actual, desired.astype(jnp.bfloat16))


def all_parameters(**options):
  layer = attention.EncoderLayer(num_heads=2, mlp_dim=7, **options)
  return jax.eval_shape(layer.init, jax.random.key(0), jnp.ones((3, 4)))


def attention_with(**options):
  return lambda **others: attention.MultiHeadAttention(**others, **options)


def network_with(**options):
  return lambda *arguments, **others: attention.FeedForward(*arguments, **others, **options)


@pytest.mark.parametrize(
  ("given", "used", "message"),
  [
    ({}, {"self_attention_cls": attention_with(use_bias=False)}, "HeadLinear at 'attention/.*' has .*: bias"),
    (
      {"self_attention_cls": attention_with(use_sinks=True, use_gate=True, normalize_qk=True)},
      {},
      "MultiHeadAttention at 'attention' has .*: sinks, gate, query_ln, key_ln",
    ),
    ({}, {"feed_forward_cls": network_with(use_bias=False)}, "Linear at 'feed_forward/.*' has .*: bias"),
    ({"feed_forward_cls": network_with(use_gate=True)}, {}, "FeedForward at 'feed_forward' has .*: gate"),
    ({}, {"norm_cls": attention.RMSNorm}, "RMSNorm at 'attention_norm' has .* do not use: bias"),
  ],
  ids=["head_bias", "heads", "linear_bias", "gate", "norm_bias"],
)
def test_layers_refuse_unused_parameters(given, used, message):
  variables = all_parameters(**given)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(attention.EncoderLayer(2, 7, **used).apply, variables, jnp.ones((3, 4)))


class WithGate(attention.MultiHeadAttention):
  """A subclass with a parameter whose name an option of its base class has."""

  def setup(self):
    super().setup()
    self.gate = nn.Dense(3)

  def __call__(self, inputs):
    return super().__call__(inputs), self.gate(inputs)


class SharesScope(nn.Module):
  """A module with such a parameter that shares its scope."""

  def setup(self):
    self.layer = attention.MultiHeadAttention(num_heads=2)
    nn.share_scope(self, self.layer)
    self.gate = nn.Dense(3)

  def __call__(self, inputs):
    return self.layer(inputs), self.gate(inputs)


@pytest.mark.parametrize("module", [WithGate(num_heads=2), SharesScope()])
def test_other_modules_may_have_more_parameters(module):
  inputs = jnp.ones((3, 4))
  variables = jax.eval_shape(module.init, jax.random.key(0), inputs)
  assert "gate" in variables["params"]
  jax.eval_shape(module.apply, variables, inputs)
