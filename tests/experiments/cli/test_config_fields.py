"""Config fields by their full names."""

import dataclasses
import json

import pytest

from configs import base
from experiments.cli.config_fields import closest, flat, from_dict, set_field


def test_only_close_names_are_suggested():
  assert closest("batchsize", ["steps", "batch_size"]) == "; did you mean 'batch_size'?"
  assert closest("colour", ["steps", "batch_size"]) == ""


def test_configs_are_flattened():
  config = base.Config(seed=7, train=base.Train(num_train_steps=13))
  set_field(config, "data.tokenization", "character")
  fields = flat(config)
  names = "seed", "train.num_train_steps", "data.tokenization"
  assert [fields[name] for name in names] == [7, 13, "character"]
  groups = base.Data, base.Model, base.Train, base.Evaluation
  assert len(fields) == 2 + sum(len(dataclasses.fields(group)) for group in groups)


def test_configs_round_trip_through_json():
  config = base.Config(seed=7, data=base.Data(task="scan"), train=base.Train(num_train_steps=13))
  restored = from_dict(base.Config, json.loads(json.dumps(dataclasses.asdict(config))))
  assert restored == config and type(restored.data) is base.Data


def test_unknown_fields_are_errors():
  for values, message in (
    ({"colour": 1}, r"^fields must be among alignment_loss_weight, batch_size, .*, got colour$"),
    (3, r"^expected a dict of fields alignment_loss_weight, .*, got 3$"),
  ):
    with pytest.raises(ValueError, match=message):
      from_dict(base.Train, values)


def test_missing_fields_have_defaults():
  config = base.Config(seed=7, model=base.Model(features=3))
  values = dataclasses.asdict(config)
  del values["model"]["encoder"], values["evaluation"]
  assert from_dict(base.Config, values) == config
