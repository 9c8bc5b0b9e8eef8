"""Tests of experiments/translation/models.py."""

import dataclasses

import jax
import pytest

from attention.decoders import ATTENTIONS
from configs import base
from experiments.translation.batches import make_batch
from experiments.translation.models import ENCODERS, make_model

SOURCE_WORDS, TARGET_WORDS = 11, 13
CONFIG = base.Model(embedding_width=5, width=12, num_heads=3, num_layers=2, feed_forward_width=7)


def _model(**changes):
  config = dataclasses.replace(CONFIG, **changes)
  return make_model(config, source_vocabulary_size=SOURCE_WORDS, target_vocabulary_size=TARGET_WORDS)


def _shapes(model):
  batch = make_batch([[4, 5]], [[6]], source_length=3, target_length=2)
  arguments = (batch.sources, batch.source_lengths, batch.inputs)
  variables = jax.eval_shape(lambda: model.init(jax.random.key(0), *arguments))
  return jax.tree.map(lambda leaf: leaf.shape, variables["params"])


def test_the_recurrent_encoder_has_the_sizes_of_the_config():
  encoder = _shapes(_model(encoder="recurrent"))["encoder"]
  assert encoder["embedding"]["embedding"] == (SOURCE_WORDS, 5)
  assert {name for name in encoder if name != "embedding"} == {
    "forward_0",
    "backward_0",
    "forward_1",
    "backward_1",
  }
  # The width is that of each direction; three gates side by side.
  assert encoder["forward_0"]["input"] == (5, 36)
  assert encoder["forward_1"]["input"] == (24, 36)
  assert encoder["backward_1"]["recurrent"] == (12, 36)


def test_the_transformer_encoder_has_the_sizes_of_the_config():
  encoder = _shapes(_model(encoder="transformer"))["encoder"]
  assert encoder["embedding"]["embedding"] == (SOURCE_WORDS, 12)
  assert {name for name in encoder if name.startswith("layer_")} == {"layer_0", "layer_1"}
  layer = encoder["layer_1"]
  assert layer["attention"]["query"]["kernel"] == (12, 3, 4)
  assert layer["feed_forward"]["hidden"]["kernel"] == (12, 7)


def test_the_decoder_has_the_sizes_of_the_config():
  decoder = _shapes(_model(attention="multi_head"))["decoder"]
  assert decoder["embedding"]["embedding"] == (TARGET_WORDS, 5)
  assert decoder["logits"]["kernel"][-1] == TARGET_WORDS
  assert decoder["cell"]["recurrent"] == (12, 36)
  assert decoder["look_up"]["query"]["kernel"] == (12, 3, 4)


def test_the_dropout_rate_reaches_encoder_and_decoder():
  for encoder in ENCODERS:
    model = _model(encoder=encoder, dropout_rate=0.25)
    assert (model.encoder.dropout_rate, model.decoder.dropout_rate) == (0.25, 0.25)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_encoder_goes_with_every_attention(encoder, attention):
  model = _model(encoder=encoder, attention=attention)
  assert model.decoder.attention == attention
  shapes = _shapes(model)
  assert ("look_up" in shapes["decoder"]) == (attention != "none")
  summary_width = shapes["decoder"]["initial"]["kernel"][0]
  assert summary_width == (24 if encoder == "recurrent" else 12)


def test_models_of_equal_configs_are_equal():
  # They are static arguments of compiled functions: unequal ones would be compiled again.
  assert _model() == _model()
  assert hash(_model()) == hash(_model())
  assert _model() != _model(width=24)
