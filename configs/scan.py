"""SCAN (Lake and Baroni 2018, arXiv:1711.00350): commands to actions.

    python -m experiments.train --config=configs/scan.py --workdir=runs/scan_simple --config.data.split=simple

On one CPU core, with JAX 0.10.2: 170 to 290 s of training. Test exact match for the seeds 0, 1, 2, and
the best published:

    simple         1.000  1.000  1.000   0.998
    length         0.196  0.901  0.393   0.208
    add_jump       0.021  0.019  0.018   0.012
    add_turn_left  0.478  0.457  0.730   0.903
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
