"""Tests of experiments/translation/pipeline.py."""

import json

import numpy as np
import pytest

from configs import base
from experiments.translation.batches import ALL, Rows, stack
from experiments.translation.pipeline import make_pipeline
from experiments.translation.tasks import make_task

CONFIG = base.Config(seed=3, train=base.Train(steps=11, batch_size=5, steps_per_dispatch=2))
TASK = make_task(CONFIG)


def pipeline(rows=ALL):
  return make_pipeline(TASK, CONFIG.train, rows)


def assert_equal(batches, expected):
  for array, wanted in zip(batches, expected, strict=True):
    np.testing.assert_array_equal(array, wanted)


def test_calls_have_the_batches_of_their_steps_and_the_last_has_what_is_left():
  calls = list(pipeline())
  assert [len(batches.sources) for batches in calls] == [2, 2, 2, 2, 2, 1]
  for i, batches in enumerate(calls):
    assert_equal(batches, stack([TASK.training_batch(step) for step in range(2 * i, min(2 * i + 2, 11))]))


@pytest.mark.parametrize("done", range(7))
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
  for batches, expected in zip(rest, whole[done:], strict=True):
    assert_equal(batches, expected)


def test_a_position_belongs_to_all_processes():
  first = pipeline(Rows(0, 1, 6))
  next(first)
  position = first.get_state()
  halves = [pipeline(Rows(index, 2, 6)) for index in range(2)]
  for half in halves:
    half.set_state(position)
  together, first_half, second_half = next(first), *map(next, halves)
  assert_equal(
    [np.concatenate(parts, axis=1) for parts in zip(first_half, second_half, strict=True)], together
  )


def test_an_error_in_a_batch_is_raised_where_it_is_asked_for():
  class Broken:
    def training_batch(self, step, rows):
      raise KeyError(step)

  with pytest.raises(KeyError):
    next(make_pipeline(Broken(), CONFIG.train, ALL))
