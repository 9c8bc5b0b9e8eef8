"""SCAN (Lake and Baroni 2018, arXiv:1711.00350): commands to actions.

    python -m experiments.train --config=configs/scan.py --workdir=runs/scan_simple --config.data.split=simple

On one CPU core, with JAX 0.10.2: 170 to 290 s of training. Test exact match for the seeds 0, 1, 2, and
the best published:

    simple         1.000  1.000  1.000   0.998
    length         0.196  0.901  0.393   0.208
    add_jump       0.021  0.019  0.018   0.012
    add_turn_left  0.478  0.457  0.730   0.903
"""

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  config.data.task = "scan"
  config.data.num_buckets = 4
  config.model.dropout_rate = 0.1
  config.train.steps = 3000
  config.train.batch_size = 64
  config.train.learning_rate = 3e-3
  config.train.averaging = 0.995
  config.train.validate_every = 1000
  config.evaluation.checkpoint = "last"
  config.evaluation.sentences = 0
  config.evaluation.max_target_length = 60
  return config
