"""The batches of a run, made ahead of time, from any step on."""

from typing import Any

import grain

from configs import base
from experiments.translation.batches import Batch, Rows, stack
from experiments.translation.tasks import Task

# Calls whose batches are made ahead, by one thread.
_AHEAD = 2


def make_pipeline(task: Task, config: base.Train, rows: Rows) -> grain.DatasetIterator:
  """Returns an iterator over the batches of each call of the compiled steps, arrays [K B ...].

  Its `get_state` and `set_state` are about its position, which belongs to a checkpoint.

  Args:
    task: makes the batches.
    config: how many, and how many for each call.
    rows: which rows this process makes.
  """
  count = config.steps_per_dispatch

  def call(first: int) -> Batch:
    steps = range(first, min(first + count, config.steps))
    return stack([task.training_batch(step, rows) for step in steps])

  calls: Any = grain.MapDataset.range(0, config.steps, count).map(call)
  return iter(calls.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)))
