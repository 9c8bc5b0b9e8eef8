r"""Toy translation with a transformer encoder, and a decoder with multi-head attention.

    python -m experiments.train --config=configs/toy_translation_transformer.py \
        --workdir=runs/toy_translation_transformer

On 2 CPU cores: 124 s of training; test exact match 0.992, alignment error rate 0.094.
"""

from configs import base, toy_translation


def get_config() -> base.Config:
  config = toy_translation.get_config()
  config.model.encoder = "transformer"
  config.model.attention = "multi_head"
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.mlp_dim = 256
  config.train.num_train_steps = 1200
  config.train.learning_rate = 3e-3
  return config
