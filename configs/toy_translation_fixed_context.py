r"""Toy translation without attention: the decoder sees one vector for the whole sentence.

    python -m experiments.train --config=configs/toy_translation_fixed_context.py \
        --workdir=runs/toy_translation_fixed_context

On 2 CPU cores: 63 s of training; test exact match 0.841.
"""

from configs import base, toy_translation


def get_config() -> base.Config:
  config = toy_translation.get_config()
  config.model.attention = "none"  # the context is the final state of the encoder
  return config
