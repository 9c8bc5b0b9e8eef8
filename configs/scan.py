"""SCAN (Lake and Baroni 2018, arXiv:1711.00350): commands to actions.

    python -m experiments.train --config=configs/scan.py --workdir=runs/scan_simple --config.data.split=simple

On one CPU core: 300 s of training; test exact match of the split "simple" 0.999 (seed 0) and 1.000 (seed 1).
The other splits are length, add_jump and add_turn_left.
"""

import dataclasses

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  return dataclasses.replace(
    config,
    data=dataclasses.replace(config.data, task="scan", num_buckets=4),
    model=dataclasses.replace(config.model, dropout_rate=0.1),
    train=dataclasses.replace(
      config.train, steps=3000, batch_size=64, learning_rate=3e-3, averaging=0.995, validate_every=1000
    ),
    evaluation=dataclasses.replace(config.evaluation, checkpoint="last", sentences=0, max_target_length=60),
  )
