"""`flax_attention_fn` in Flax's layers, linen and NNX: equal to Flax's function, and what Flax cannot do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from helpers.model_reference import random_parameters

import attention
from attention import flax_attention_fn, masks, positions

B, T, S, N, H, D = 2, 5, 7, 3, 4, 11
assert_close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
RNG = np.random.default_rng(0)
INPUTS, MEMORY = RNG.normal(size=(B, T, D)).astype(np.float32), RNG.normal(size=(B, S, D)).astype(np.float32)
SLOPES = np.array([1.0, 0.5, 0.25], np.float32)
# Flax's masks are floats. Each query may attend to at least one key.
MASK = (RNG.random((B, 1, T, S)) < 0.6).astype(np.float32)
MASK[..., 2] = 1
CAUSAL = nn.make_causal_mask(jnp.ones((B, T)))


def linen_layer(**options):
  return nn.MultiHeadDotProductAttention(N, qkv_features=N * H, **options)


def nnx_layer(variables, **options):
  """Returns the NNX layer with the parameters of the linen layer."""
  layer = nnx.MultiHeadAttention(N, D, N * H, decode=False, rngs=nnx.Rngs(0), **options)
  for name in ("query", "key", "value", "out"):
    for kind, array in variables["params"][name].items():
      getattr(getattr(layer, name), kind)[...] = array
  return layer


VARIABLES = random_parameters(linen_layer(), INPUTS, MEMORY)


def test_results_and_gradients_equal_those_of_flax():
  def loss(layer):
    def of(variables, inputs):
      return jnp.sum(jnp.sin(layer.apply(variables, inputs, MEMORY, mask=MASK)))

    return jax.jit(jax.value_and_grad(of, argnums=(0, 1)))(VARIABLES, INPUTS)

  ours, theirs = loss(linen_layer(attention_fn=flax_attention_fn())), loss(linen_layer())
  jax.tree.map(assert_close, ours, theirs)
  layer = nnx_layer(VARIABLES, attention_fn=flax_attention_fn())
  assert_close(jnp.sum(jnp.sin(layer(INPUTS, MEMORY, mask=MASK))), theirs[0])


def test_masks_and_biases_are_combined():
  query, key, value = (RNG.normal(size=(B, size, N, H)).astype(np.float32) for size in (T, S, S))
  bias = RNG.normal(size=(1, N, T, S)).astype(np.float32)
  t, s = np.arange(T)[:, None], np.arange(S)
  function = flax_attention_fn(mask=masks.sliding_window(2, 3), bias=positions.ALiBi(SLOPES))
  actual = function(query, key, value, bias, MASK, is_causal=True)
  window = (t - s <= 2) & (s <= t)
  desired = nn.dot_product_attention(
    query, key, value, bias - SLOPES[:, None, None] * np.abs(t - s), MASK * window
  )
  rows = np.any(MASK * window, axis=-1)[:, 0, :, None, None]  # Flax returns the mean of values for empty rows
  assert_close(actual, np.where(rows, desired, 0))
  # The mask of a call may be one of this library.
  assert_close(
    nnx_layer(VARIABLES, attention_fn=flax_attention_fn())(INPUTS, mask=masks.causal()),
    linen_layer().apply(VARIABLES, INPUTS, mask=CAUSAL),
  )


def test_other_scores_normalizers_and_grouped_heads():
  query = RNG.normal(size=(B, T, N, H)).astype(np.float32)
  key, value = RNG.normal(size=(2, B, S, 1, H)).astype(np.float32)
  score, normalizer = attention.Additive(jnp.arange(1.0, 1 + H)), attention.Sparsemax()
  actual = flax_attention_fn(score=score, normalizer=normalizer)(query, key, value)
  scores = np.einsum(
    "H,BNTSH->BNTS",
    np.arange(1.0, 1 + H),
    np.tanh(query.swapaxes(1, 2)[:, :, :, None] + key.swapaxes(1, 2)[:, :, None]),
  )
  ordered = -np.sort(-scores, axis=-1)
  sums = np.cumsum(ordered, axis=-1)
  sizes = np.arange(1, S + 1)
  support = np.sum(1 + sizes * ordered > sums, axis=-1, keepdims=True)
  threshold = (np.take_along_axis(sums, support - 1, axis=-1) - 1) / support
  desired = np.einsum("BNTS,BSD->BTND", np.maximum(scores - threshold, 0), value[:, :, 0])
  assert_close(actual, desired)


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_decoding_equals_the_whole_sequence(kind):
  allowed = np.ones((B, N, 1, T), bool)
  allowed[1, :, :, 0] = False  # padding
  allowed[:, 2, :, 3] = False  # for one head
  rules = {"mask": masks.sliding_window(2, 0), "bias": positions.ALiBi(SLOPES)}
  whole = linen_layer(attention_fn=flax_attention_fn(**rules)).apply(VARIABLES, INPUTS, mask=allowed)
  function = flax_attention_fn(**rules, decode=True)
  if kind == "linen":
    layer = linen_layer(attention_fn=function, decode=True)
    cache = layer.init(jax.random.key(0), INPUTS)["cache"]

    def step(cache, token):
      output, new = layer.apply(VARIABLES | {"cache": cache}, token, mask=allowed, mutable=["cache"])
      return new["cache"], output

    _, steps = jax.lax.scan(step, cache, INPUTS.swapaxes(0, 1)[:, :, None])
  else:
    layer = nnx_layer(VARIABLES, attention_fn=function)
    layer.init_cache(INPUTS.shape)
    # flax#5591: with its own function, the queries of later steps would attend to the first key only.
    step = nnx.jit(lambda layer, token: layer(token, mask=allowed, decode=True, is_causal=True))
    steps = jnp.stack([step(layer, INPUTS[:, [t]]) for t in range(T)])
  assert_close(steps[:, :, 0].swapaxes(0, 1)[:, 1:], whole[:, 1:])
  assert_close(steps[0, 0, 0], whole[0, 0])


def test_weights_are_sown():
  layer = linen_layer(attention_fn=flax_attention_fn(mask=masks.causal()))
  _, state = layer.apply(VARIABLES, INPUTS, sow_weights=True, mutable="intermediates")
  theirs = linen_layer().apply(VARIABLES, INPUTS, mask=CAUSAL, sow_weights=True, mutable="intermediates")[1]
  (weights,), (desired,) = (each["intermediates"]["attention_weights"] for each in (state, theirs))
  assert_close(weights, desired)
  other = nnx_layer(VARIABLES, attention_fn=layer.attention_fn)
  _, state = nnx.capture(other, nnx.Intermediate)(INPUTS, sow_weights=True)
  assert_close(state["attention_weights"][0], desired)


def test_half_precision():
  vectors = [RNG.normal(size=(B, S, N, H)).astype(jnp.bfloat16) for _ in range(3)]
  function = flax_attention_fn()
  exact = nn.dot_product_attention(*(array.astype(np.float32) for array in vectors))
  assert_close(function(*vectors, dtype=jnp.float32), exact)
  result = function(*vectors)
  assert result.dtype == jnp.bfloat16
  assert_close(result.astype(np.float32), exact, rtol=0.01, atol=0.01)
  layer = linen_layer(attention_fn=function, dtype=jnp.bfloat16)  # force_fp32_for_softmax is False
  for options, dtype in (({}, jnp.bfloat16), ({"force_fp32_for_softmax": True}, jnp.float32)):
    output, state = layer.clone(**options).apply(VARIABLES, INPUTS, sow_weights=True, mutable="intermediates")
    assert output.dtype == jnp.bfloat16
    assert state["intermediates"]["attention_weights"][0].dtype == dtype


@pytest.mark.parametrize("is_shared", [True, False])
def test_dropout_of_pairs(is_shared):
  # Values 1 and equal scores: the context is the number of kept keys / (S (1 - rate)).
  query, key = jnp.zeros((B, T, N, H)), jnp.zeros((B, 101, N, H))
  function = jax.jit(functools.partial(flax_attention_fn(), dropout_rate=0.25, broadcast_dropout=is_shared))
  context = function(query, key, jnp.ones_like(key), dropout_rng=jax.random.key(3))[..., 0]
  assert_close(np.mean(context), 1, atol=0.05)
  assert np.unique(context.round(5)[..., 0]).size > 1  # queries differ
  same = np.ptp(context, axis=(0, 2))  # over sentences and heads
  assert (same < 1e-6).all() if is_shared else (same > 1e-3).all()
  assert_close(flax_attention_fn()(query, key, key + 1, dropout_rate=0.25, deterministic=True), 1)
  layer = linen_layer(attention_fn=flax_attention_fn(), dropout_rate=0.5)
  outputs = [
    layer.apply(VARIABLES, INPUTS, deterministic=False, rngs={"dropout": jax.random.key(seed)})
    for seed in (1, 1, 2)
  ]
  assert_close(outputs[0], outputs[1])
  assert np.max(np.abs(outputs[0] - outputs[2])) > 0.01


def test_precision_is_passed_on():
  vectors = [jnp.ones((T, N, H))] * 3
  text = str(
    jax.make_jaxpr(functools.partial(flax_attention_fn(), precision=jax.lax.Precision.HIGH))(*vectors)
  )
  assert "Precision.HIGH," in text and "HIGHEST" not in text


@pytest.mark.parametrize(
  ("options", "arguments", "error"),
  [
    (
      {"mask": masks.causal()},
      {"mask": np.ones((1, 1, 1, S))},
      "decode of flax_attention_fn must be True if",
    ),
    (
      {"mask": masks.causal(), "decode": True},
      {"mask": masks.causal()},
      "with True the mask of the call must be an array",
    ),
    ({}, {"qk_attn_weights_einsum": jnp.einsum}, "einsum_dot_general and other einsums must be None"),
    ({}, {"precision": 3}, "precision must be None, default, high or highest, got 3"),
    ({}, {"dropout_rate": 0.1}, "dropout_rng must be a PRNG key"),
    ({}, {"mask": np.ones((S, 1))}, "mask must be broadcastable"),
    ({}, {"mask": lambda t, s: t >= s}, "mask must be an array"),
  ],
)
def test_errors(options, arguments, error):
  query, key = jnp.ones((B, 1, N, H)), jnp.ones((B, S, N, H))
  with pytest.raises(ValueError, match=error):
    flax_attention_fn(**options)(query, key, key, **arguments)


def test_invalid_options():
  with pytest.raises(ValueError, match="score must be a Score"):
    flax_attention_fn(score=attention.Additive)
  with pytest.raises(ValueError, match="mask must be"):
    flax_attention_fn(mask=lambda t, s: t >= s)
