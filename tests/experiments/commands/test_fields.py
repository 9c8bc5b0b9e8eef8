"""Tests of experiments/commands/fields.py."""

import dataclasses
import json

import pytest

from configs import base
from experiments.commands.fields import closest, flat, from_dict


def test_the_closest_name_is_named_only_if_it_is_close():
  assert closest("batchsize", ["steps", "batch_size"]) == "; did you mean 'batch_size'?"
  assert closest("colour", ["steps", "batch_size"]) == ""


def test_a_config_is_told_flat():
  fields = flat(base.Config(seed=7, train=base.Train(steps=13)))
  assert (fields["seed"], fields["train.steps"], fields["data.unit"]) == (7, 13, "word")
  groups = [field for field in dataclasses.fields(base.Config) if field.name != "seed"]
  assert len(fields) == 1 + sum(len(dataclasses.fields(getattr(base.Config(), g.name))) for g in groups)


def test_a_config_is_made_of_what_json_holds():
  config = base.Config(seed=7, data=base.Data(task="scan"), train=base.Train(steps=13))
  again = from_dict(base.Config, json.loads(json.dumps(dataclasses.asdict(config))))
  assert again == config
  assert type(again.data) is base.Data


@pytest.mark.parametrize("change", [{"colour": 1}, {"steps": None}], ids=["one more", "one less"])
def test_other_names_of_fields_are_an_error_that_says_which(change):
  values = dataclasses.asdict(base.Train()) | change
  values = {name: value for name, value in values.items() if value is not None}
  said = "also colour" if "colour" in change else "no steps"
  with pytest.raises(ValueError, match=rf"^expected the fields accumulation, averaging, .*, got {said}$"):
    from_dict(base.Train, values)
