"""The models of configs."""

import dataclasses

import jax
import pytest

import attention
from configs import base
from experiments.learning.model import make_model

CONFIG = base.Model(embed_dim=5, features=12, num_heads=3, num_layers=2, mlp_dim=7)


def make(**changes):
  config = dataclasses.replace(CONFIG, **changes)
  return make_model(config, source_vocabulary_size=11, target_vocabulary_size=13)


def shapes_of(model):
  words = jax.ShapeDtypeStruct((1, 2), "int32")
  lengths = jax.ShapeDtypeStruct((1,), "int32")
  variables = jax.eval_shape(model.init, jax.random.key(0), words, lengths, words)
  return jax.tree.map(lambda leaf: leaf.shape, variables["params"])


def test_recurrent_sizes_follow_the_config():
  shapes = shapes_of(make(encoder="recurrent", num_decoder_layers=3))
  encoder, decoder = shapes["encoder"], shapes["decoder"]
  assert encoder["embedding"]["embedding"] == (11, 5)
  assert set(encoder) == {"embedding", "forward_0", "backward_0", "forward_1", "backward_1"}
  # Each direction has 12 features. Three gates are concatenated.
  assert encoder["forward_0"]["input"] == (5, 36)
  assert encoder["forward_1"]["input"] == (24, 36)
  assert encoder["backward_1"]["recurrent"] == (12, 36)
  assert {name for name in decoder if name.startswith("cell")} == {"cell", "cell_1", "cell_2"}
  # The inputs of the first layer are embedding and context. Those of others are the layer below.
  assert decoder["cell"]["input"] == (5 + 24, 36)
  assert decoder["cell_2"]["input"] == (12, 36)
  assert decoder["logits"]["bias"] == (13,)


def test_transformer_sizes_follow_the_config():
  shapes = shapes_of(make(encoder="transformer", decoder="transformer", num_decoder_layers=3))
  for side, size, num_layers in (("encoder", 11, 2), ("decoder", 13, 3)):
    assert shapes[side]["embedding"]["embedding"] == (size, 12)
    names = {name for name in shapes[side] if name.startswith("layer_")}
    assert names == {f"layer_{i}" for i in range(num_layers)}
    assert shapes[side]["layer_1"]["feed_forward"]["hidden"]["kernel"] == (12, 7)
  assert shapes["encoder"]["layer_1"]["attention"]["query"]["kernel"] == (12, 3, 4)


@pytest.mark.parametrize("decoder", ["recurrent", "transformer"])
def test_tied_embeddings_are_the_output_projection(decoder):
  assert "logits" in shapes_of(make(decoder=decoder))["decoder"]
  assert "logits" not in shapes_of(make(decoder=decoder, tied_embeddings=True))["decoder"]


# Both sides have these fields, and the recurrent modules also the second group.
COMMON = {"dropout_rate": 0.25, "variational_dropout": True, "word_dropout_rate": 0.125}
RECURRENT = {"recurrent_dropout_rate": 0.375, "residual": True, "layer_norm": True}
TRANSFORMER = {"num_heads": 4, "mlp_dim": 17, "position_encoding": "rotary", "normalize_qk": True}


@pytest.mark.parametrize(
  ("kind", "options"), [("recurrent", COMMON | RECURRENT), ("transformer", COMMON | TRANSFORMER)]
)
def test_options_reach_both_sides(kind, options):
  model, default = make(encoder=kind, decoder=kind, **options), make(encoder=kind, decoder=kind)
  for name, value in options.items():
    for module, unchanged in ((model.encoder, default.encoder), (model.decoder, default.decoder)):
      assert getattr(module, name) == value != getattr(unchanged, name)


DECODER_OPTIONS = [
  ({"attend_order": "after"}, "attend_order", "after"),
  ({"input_feeding": True}, "input_feeding", True),
  ({"num_heads": 4}, "num_heads", 4),
  ({"normalizer": "entmax15"}, "normalizer", attention.Entmax15()),
  ({"normalizer": "sigmoid"}, "normalizer", attention.Sigmoid(subtract_log_length=True)),
  ({"qk_features": 7}, "qk_features", 7),
  ({"tied_embeddings": True}, "tied_embeddings", True),
]


@pytest.mark.parametrize(("changes", "field", "value"), DECODER_OPTIONS)
def test_options_of_the_recurrent_decoder(changes, field, value):
  decoder, default = make(**changes).decoder, make().decoder
  assert decoder == default.clone(parent=None, **{field: value}) != default
