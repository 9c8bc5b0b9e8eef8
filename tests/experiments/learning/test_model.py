"""Tests of experiments/learning/model.py."""

import dataclasses
import itertools

import jax
import pytest
from helpers.fixtures import always

import attention
from attention.models.decoder_attention import ATTENTION_TYPES
from configs import base
from experiments.data.batches import make_batch
from experiments.learning.model import make_model

ENCODERS = ("recurrent", "transformer")
SOURCE_WORDS, TARGET_WORDS = 11, 13
CONFIG = base.Model(embed_dim=5, features=12, num_heads=3, num_layers=2, mlp_dim=7)


def _model(**changes):
  config = dataclasses.replace(CONFIG, **changes)
  return make_model(config, source_vocabulary_size=SOURCE_WORDS, target_vocabulary_size=TARGET_WORDS)


def _shapes(model):
  batch = make_batch([[4, 5]], [[6]], source_length=3, target_length=2)
  arguments = (batch.sources, batch.source_lengths, batch.inputs)
  variables = jax.eval_shape(lambda: model.init(jax.random.key(0), *arguments))
  return jax.tree.map(lambda leaf: leaf.shape, variables["params"])


def test_recurrent_encoders_follow_the_config():
  encoder = _shapes(_model(encoder="recurrent"))["encoder"]
  assert encoder["embedding"]["embedding"] == (SOURCE_WORDS, 5)
  assert {name for name in encoder if name != "embedding"} == {
    "forward_0",
    "backward_0",
    "forward_1",
    "backward_1",
  }
  # Each direction has this width. Three gates are concatenated.
  assert encoder["forward_0"]["input"] == (5, 36)
  assert encoder["forward_1"]["input"] == (24, 36)
  assert encoder["backward_1"]["recurrent"] == (12, 36)


def test_transformer_encoders_follow_the_config():
  encoder = _shapes(_model(encoder="transformer"))["encoder"]
  assert encoder["embedding"]["embedding"] == (SOURCE_WORDS, 12)
  assert {name for name in encoder if name.startswith("layer_")} == {"layer_0", "layer_1"}
  layer = encoder["layer_1"]
  assert layer["attention"]["query"]["kernel"] == (12, 3, 4)
  assert layer["feed_forward"]["hidden"]["kernel"] == (12, 7)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_tied_embeddings_are_the_output_projection(encoder):
  decoder = _shapes(_model(encoder=encoder, tied_embeddings=True))["decoder"]
  assert "logits" not in decoder
  assert decoder["logits_bias"] == (TARGET_WORDS,)
  assert decoder["readout"]["kernel"][-1] == 5


# Field, a value that differs from the default, and the encoders that have it. The decoder has all fields.
OPTIONS = [
  ("dropout_rate", 0.25, ENCODERS),
  ("variational_dropout", True, ENCODERS),
  ("word_dropout_rate", 0.125, ENCODERS),
  ("recurrent_dropout_rate", 0.375, ("recurrent",)),
  ("residual", True, ("recurrent",)),
  ("layer_norm", True, ("recurrent",)),
]


@pytest.mark.parametrize(("name", "value", "encoders"), OPTIONS, ids=[name for name, *_ in OPTIONS])
def test_options_reach_both_sides(name, value, encoders):
  for encoder in ENCODERS:
    default, model = _model(encoder=encoder), _model(encoder=encoder, **{name: value})
    assert getattr(model.decoder, name) == value != getattr(default.decoder, name)
    if encoder in encoders:
      assert getattr(model.encoder, name) == value != getattr(default.encoder, name)


@pytest.mark.parametrize(
  ("attention", "encoder"),
  always(
    ("additive", "recurrent"), ("none", "transformer"), of=[*itertools.product(ATTENTION_TYPES, ENCODERS)]
  ),
)
def test_all_combinations_are_valid(attention, encoder):
  model = _model(encoder=encoder, attention=attention)
  assert model.decoder.attention == attention
  shapes = _shapes(model)
  assert ("attention_layer" in shapes["decoder"]) == (attention != "none")
  summary_width = shapes["decoder"]["initial"]["kernel"][0]
  assert summary_width == (24 if encoder == "recurrent" else 12)


@pytest.mark.parametrize(
  ("changes", "expected"),
  [
    ({"attend_order": "after"}, {"attend_order": "after"}),
    ({"input_feeding": True}, {"input_feeding": True}),
    ({"normalizer": "entmax15"}, {"normalizer": attention.Entmax15()}),
    ({"normalizer": "sigmoid"}, {"normalizer": attention.Sigmoid(subtract_log_length=True)}),
    ({"qk_features": 7}, {"qk_features": 7}),
    ({"residual": True, "variational_dropout": True}, {"residual": True, "variational_dropout": True}),
  ],
)
def test_options_of_the_recurrent_decoder(changes, expected):
  decoder, default = _model(**changes).decoder, _model().decoder
  assert decoder == default.clone(parent=None, **expected)
  assert decoder != default


def test_decoders_have_num_decoder_layers():
  shapes = _shapes(_model(num_decoder_layers=3))
  assert {name for name in shapes["decoder"] if name.startswith("cell")} == {"cell", "cell_1", "cell_2"}
  assert {name for name in shapes["encoder"] if name.startswith("forward")} == {"forward_0", "forward_1"}
  # The inputs of the first layer are embedding and context. Those of others are the layer below.
  assert shapes["decoder"]["cell"]["input"] == (5 + 2 * 12, 36)
  assert shapes["decoder"]["cell_2"]["input"] == (12, 36)
