"""Ensembles, and the weights of each head."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers.fixtures import FLOAT32, always, assert_close
from helpers.model_reference import MODEL, compiled, random_parameters

import attention

B, T, S, V, E, H = 2, 3, 5, 13, 4, 6
LENGTHS = jnp.array([5, 2])
random = np.random.default_rng(0)
SOURCES = jnp.asarray(random.integers(4, V, (B, S)))
TARGETS = jnp.asarray(random.integers(4, V, (B, T)))


def translator(kind, encoder="recurrent"):
  made = {
    "recurrent": attention.RecurrentEncoder(V, E, H),
    "transformer": attention.TransformerEncoder(V, H, num_layers=3, num_heads=2, mlp_dim=7),
  }[encoder]
  return attention.Seq2Seq(made, attention.RecurrentDecoder(V, E, H, kind, num_heads=2))


def test_ensemble_averages_probabilities():
  models = [translator(kind) for kind in ("additive", "none", "multi_head")]
  params = [
    random_parameters(model, SOURCES, LENGTHS, TARGETS, seed=i)["params"] for i, model in enumerate(models)
  ]
  ensemble = attention.Ensemble(tuple(models))
  variables = {"params": params}
  state, memory = compiled(ensemble, "encode")(variables, SOURCES, LENGTHS)
  alone = [
    compiled(model)({"params": own}, SOURCES, LENGTHS, TARGETS)
    for model, own in zip(models, params, strict=True)
  ]
  for t in range(T):
    state, scores, weights = compiled(ensemble, "step")(variables, state, TARGETS[:, t], memory)
    logits = [np.asarray(item[:, t], np.float64) for item, _ in alone]
    expected = np.mean([np.exp(item) / np.exp(item).sum(-1, keepdims=True) for item in logits], axis=0)
    assert_close(np.exp(scores), expected, MODEL)
    attended = [item[:, t] for _, item in alone if item is not None]
    assert len(attended) == 2
    assert_close(weights, np.mean(attended, axis=0), MODEL)


def test_members_have_separate_parameters():
  model = translator("additive")
  params = [random_parameters(model, SOURCES, LENGTHS, TARGETS, seed=seed)["params"] for seed in (0, 1)]
  result = []
  for first, second in ((0, 1), (1, 0), (0, 0)):
    variables = {"params": [params[first], params[second]]}
    ensemble = attention.Ensemble((model, model))
    state, memory = compiled(ensemble, "encode")(variables, SOURCES, LENGTHS)
    result.append(compiled(ensemble, "step")(variables, state, TARGETS[:, 0], memory)[1])
  assert_close(result[0], result[1], MODEL)
  assert np.max(np.abs(result[0] - result[2])) > 0.01


def test_invalid_members_raise():
  ensemble = attention.Ensemble((translator("none"),))
  with pytest.raises(ValueError, match=r"^params must have one entry per member, 1, got 2$"):
    ensemble.apply({"params": [{}, {}]}, method="encode")
  with pytest.raises(ValueError, match=r"^method must be encode or step, got 'output_features'$"):
    ensemble.apply({"params": [{}]}, method="output_features")


def test_members_without_attention_have_no_weights():
  model = translator("none")
  own = random_parameters(model, SOURCES, LENGTHS, TARGETS)["params"]
  ensemble, variables = attention.Ensemble((model,)), {"params": [own]}
  state, memory = compiled(ensemble, "encode")(variables, SOURCES, LENGTHS)
  assert compiled(ensemble, "step")(variables, state, TARGETS[:, 0], memory)[2] is None


@pytest.mark.parametrize(
  ("encoder", "kind"),
  always(
    *(("recurrent", "none"), ("transformer", "multi_head")),
    of=list(itertools.product(("recurrent", "transformer"), ("additive", "multi_head", "none"))),
  ),
)
def test_head_weights_average_to_returned_weights(kind, encoder):
  model = translator(kind, encoder)
  variables = random_parameters(model, SOURCES, LENGTHS, TARGETS)
  of_encoder, of_decoder = compiled(model, "attention_weights")(variables, SOURCES, LENGTHS, TARGETS)
  _, mean = compiled(model)(variables, SOURCES, LENGTHS, TARGETS)
  if kind == "none":
    assert of_decoder is None and mean is None
  else:
    assert of_decoder.shape == (B, 1, {"additive": 1, "multi_head": 2}[kind], T, S)
    assert_close(of_decoder.mean(axis=(1, 2)), mean, FLOAT32)
  if kind == "multi_head":
    assert np.max(np.abs(of_decoder[:, 0, 0] - of_decoder[:, 0, 1])) > 0.001
  if encoder == "recurrent":
    assert of_encoder is None
    return
  assert of_encoder.shape == (B, 3, 2, S, S)
  np.testing.assert_allclose(of_encoder.sum(axis=-1), 1.0, rtol=1e-5)
  assert not np.any(of_encoder[1, ..., 2:])  # padding has no weight
  # The first layer's weights, computed by the layer alone from the embedded words.
  # The first layer's, by the layer alone, of the embedded words.
  of_its_own = {"params": variables["params"]["encoder"]}
  alone, weights = compiled(model.encoder, return_weights=True)(of_its_own, SOURCES, LENGTHS)
  assert_close(weights, of_encoder, FLOAT32)
  assert_close(alone.memory, compiled(model.encoder)(of_its_own, SOURCES, LENGTHS).memory, FLOAT32)
  assert np.max(np.abs(weights[:, 0] - weights[:, 1])) > 0.001


def test_encoder_layer_returns_weights_and_cache():
  layer = attention.EncoderLayer(num_heads=2, mlp_dim=7)
  inputs = jnp.asarray(random.normal(size=(B, S, H)), jnp.float32)
  variables = random_parameters(layer, inputs)
  mask = attention.masks.causal()
  outputs, weights = layer.apply(variables, inputs, mask=mask, return_weights=True)
  cache = layer.apply(variables, inputs, S, method="init_cache")
  cached, cached_weights, cache = layer.apply(variables, inputs, mask=mask, cache=cache, return_weights=True)
  assert_close(cached, outputs, MODEL)
  assert_close(cached_weights, weights, MODEL)
  assert weights.shape == (B, 2, S, S) and not np.any(np.triu(weights, 1))
  assert cache.length.tolist() == [S] * B


def test_custom_decoder_needs_no_heads():
  class Wrapped(nn.Module):
    inner: attention.RecurrentDecoder

    def prepare(self, *arguments):
      return self.inner.prepare(*arguments)

    def __call__(self, *arguments, **options):
      return self.inner(*arguments, **options)

  model = attention.Seq2Seq(attention.RecurrentEncoder(V, E, H), Wrapped(attention.RecurrentDecoder(V, E, H)))
  variables = random_parameters(model, SOURCES, LENGTHS, TARGETS)
  of_encoder, of_decoder = compiled(model, "attention_weights")(variables, SOURCES, LENGTHS, TARGETS)
  assert of_encoder is None
  assert_close(of_decoder[:, 0, 0], compiled(model)(variables, SOURCES, LENGTHS, TARGETS)[1], FLOAT32)
