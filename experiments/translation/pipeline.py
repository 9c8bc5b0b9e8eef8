"""The batches of a run, made ahead of time, from any step on."""

from typing import Any

import grain

from configs import base
from experiments.runs.rows import Rows
from experiments.tasks import Task
from experiments.text.batches import Batch, without_ends

# Batches that are made ahead, by one thread.
_AHEAD = 16


def make_pipeline(task: Task, config: base.Train, rows: Rows) -> grain.DatasetIterator:
  """Returns an iterator over the batches of a run's steps.

  Its `get_state` and `set_state` are about its position, which belongs to a checkpoint.

  Args:
    task: makes the batches.
    config: how many.
    rows: which rows this process makes.
  """
  steps: Any = grain.MapDataset.range(config.steps)

  def batch(step: int) -> Batch:
    made = task.training_batch(step, rows)
    return made if config.learns_end else without_ends(made)

  batches = steps.map(batch)
  return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)))
