"""SCAN: commands to actions.

python -m experiments.train --config=configs/scan.py --config.data.split=simple --workdir=runs/scan_simple
"""

import dataclasses

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  return dataclasses.replace(
    config,
    data=dataclasses.replace(config.data, task="scan"),
    model=dataclasses.replace(config.model, dropout_rate=0.1),
    train=dataclasses.replace(
      config.train, steps=2000, batch_size=64, learning_rate=3e-3, validate_every=1000, steps_per_dispatch=1
    ),
    evaluation=dataclasses.replace(config.evaluation, checkpoint="last", sentences=0, max_target_length=60),
  )
