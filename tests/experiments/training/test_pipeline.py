"""Tests of the pipeline of experiments/training/loop.py."""

import json

import numpy as np
import pytest

from configs import base
from experiments.data.tasks import make_task
from experiments.training.loop import make_pipeline

CONFIG = base.Config(seed=3, train=base.Train(num_train_steps=11, batch_size=5))
TASK = make_task(CONFIG)


def pipeline():
  return make_pipeline(TASK, CONFIG.train, 1)


def assert_equal(batch, expected):
  for array, expected_array in zip(batch, expected, strict=True):
    np.testing.assert_array_equal(array, expected_array)


def test_pipelines_have_all_steps():
  batches = list(pipeline())
  assert len(batches) == 11
  for step, batch in enumerate(batches):
    assert_equal(batch, TASK.training_batch(step))


@pytest.mark.parametrize("num_done", [0, 1, 5, 10, 11])
def test_pipelines_resume_at_a_position(num_done):
  first, batches = pipeline(), list(pipeline())
  for _ in range(num_done):
    next(first)
  # The state as in a checkpoint. Prefetched batches are not lost.
  position = json.loads(json.dumps(first.get_state()))
  second = pipeline()
  second.set_state(position)
  rest = list(second)
  assert len(rest) == len(batches) - num_done
  for batch, expected in zip(rest, batches[num_done:], strict=True):
    assert_equal(batch, expected)


def test_eos_can_be_removed():
  train = base.Train(num_train_steps=3, batch_size=5, train_eos=False)
  for step, batch in enumerate(make_pipeline(TASK, train, 1)):
    expected = TASK.training_batch(step)
    np.testing.assert_array_equal(batch.targets, np.where(expected.targets == 2, 0, expected.targets))
    assert np.sum(expected.targets == 2) == 5 and batch.targets.dtype == expected.targets.dtype
    assert_equal(batch._replace(targets=expected.targets), expected)


def test_rows_are_padded_for_devices():
  train = base.Train(num_train_steps=2, batch_size=5, grad_accumulation_steps=2)
  for batch, expected in zip(make_pipeline(TASK, train, 3), make_pipeline(TASK, train, 1), strict=True):
    assert (len(batch.sources), len(expected.sources)) == (6, 6)
    assert_equal(batch, expected)
  assert len(next(make_pipeline(TASK, train, 4)).sources) == 8


def test_errors_in_batches_are_raised():
  class Broken:
    def training_batch(self, step):
      raise KeyError(step)

  with pytest.raises(KeyError):
    next(make_pipeline(Broken(), CONFIG.train, 1))
