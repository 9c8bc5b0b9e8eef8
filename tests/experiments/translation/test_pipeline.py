"""Tests of experiments/translation/pipeline.py."""

import json

import numpy as np
import pytest

from configs import base
from experiments.runs.rows import ALL, Rows
from experiments.tasks import make_task
from experiments.translation.pipeline import make_pipeline

CONFIG = base.Config(seed=3, train=base.Train(steps=11, batch_size=5))
TASK = make_task(CONFIG)


def pipeline(rows=ALL):
  return make_pipeline(TASK, CONFIG.train, rows)


def assert_equal(batch, expected):
  for array, wanted in zip(batch, expected, strict=True):
    np.testing.assert_array_equal(array, wanted)


def test_a_pipeline_has_the_batches_of_all_steps():
  batches = list(pipeline())
  assert len(batches) == 11
  for step, batch in enumerate(batches):
    assert_equal(batch, TASK.training_batch(step))


@pytest.mark.parametrize("done", [0, 1, 5, 10, 11])
def test_a_pipeline_goes_on_at_the_position_of_another(done):
  first, whole = pipeline(), list(pipeline())
  for _ in range(done):
    next(first)
  # As a checkpoint keeps it; what was made ahead is not lost.
  position = json.loads(json.dumps(first.get_state()))
  second = pipeline()
  second.set_state(position)
  rest = list(second)
  assert len(rest) == len(whole) - done
  for batch, expected in zip(rest, whole[done:], strict=True):
    assert_equal(batch, expected)


def test_the_end_of_a_sentence_is_no_target_where_it_is_not_learnt():
  train = base.Train(steps=3, batch_size=5, learns_end=False)
  for step, batch in enumerate(make_pipeline(TASK, train, ALL)):
    whole = TASK.training_batch(step)
    np.testing.assert_array_equal(batch.targets, np.where(whole.targets == 2, 0, whole.targets))
    assert np.sum(whole.targets == 2) == 5 and batch.targets.dtype == whole.targets.dtype
    assert_equal(batch._replace(targets=whole.targets), whole)


def test_a_position_belongs_to_all_processes():
  first = pipeline(Rows(0, 1, 6))
  next(first)
  position = first.get_state()
  halves = [pipeline(Rows(index, 2, 6)) for index in range(2)]
  for half in halves:
    half.set_state(position)
  together, first_half, second_half = next(first), *map(next, halves)
  halves = list(zip(first_half, second_half, strict=True))[:4]
  assert_equal([np.concatenate(parts) for parts in halves], together[:4])


def test_an_error_in_a_batch_is_raised_where_it_is_asked_for():
  class Broken:
    def training_batch(self, step, rows):
      raise KeyError(step)

  with pytest.raises(KeyError):
    next(make_pipeline(Broken(), CONFIG.train, ALL))
