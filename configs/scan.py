"""SCAN (Lake and Baroni 2018, arXiv:1711.00350): commands to actions.

    python -m experiments.train --config=configs/scan.py --workdir=runs/scan_simple --config.data.split=simple

Test exact match of ten seeds: mean, worst and best, and the best mean in the paper
(docs/findings/scan_seeds.md):

    simple         1.000  0.999  1.000   0.998
    length         0.437  0.174  0.819   0.208
    add_jump       0.009  0.001  0.016   0.012
    add_turn_left  0.522  0.185  0.663   0.903

Training takes three to five minutes on one CPU core (JAX 0.10.1).
"""

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  config.data.task = "scan"
  config.data.num_buckets = 4
  config.model.encoder = "recurrent"
  config.model.attention = "additive"
  config.model.embed_dim = 64
  config.model.features = 128
  config.model.dropout_rate = 0.1
  config.train.num_train_steps = 3000
  config.train.batch_size = 64
  config.train.learning_rate = 3e-3
  config.train.ema_decay = 0.995
  config.train.eval_every_steps = 1000
  config.evaluation.checkpoint = "last"
  config.evaluation.num_eval_examples = 0  # all
  config.evaluation.max_decode_length = 60
  return config
