"""All encoders with all attentions."""

import dataclasses

import jax
import pytest

from attention.models.decoder_attention import ATTENTION_TYPES
from configs import base
from experiments.learning.model import make_model

pytestmark = pytest.mark.slow

CONFIG = base.Model(embed_dim=5, features=12, num_heads=3, num_layers=2, mlp_dim=7)


def make(**changes):
  config = dataclasses.replace(CONFIG, **changes)
  return make_model(config, source_vocabulary_size=11, target_vocabulary_size=13)


def shapes_of(model):
  words = jax.ShapeDtypeStruct((1, 2), "int32")
  lengths = jax.ShapeDtypeStruct((1,), "int32")
  variables = jax.eval_shape(model.init, jax.random.key(0), words, lengths, words)
  return jax.tree.map(lambda leaf: leaf.shape, variables["params"])


@pytest.mark.parametrize("encoder", ["recurrent", "transformer"])
@pytest.mark.parametrize("attention", ATTENTION_TYPES)
def test_encoders_and_attentions_combine(attention, encoder):
  decoder = shapes_of(make(encoder=encoder, attention=attention))["decoder"]
  assert ("attention_layer" in decoder) == (attention != "none")
  assert decoder["initial"]["kernel"][0] == (24 if encoder == "recurrent" else 12)
