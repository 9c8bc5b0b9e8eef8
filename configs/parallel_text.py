"""Translation learnt from your own parallel text: tab-separated UTF-8, source first, plain or .gz.

    python -m experiments.train --config=configs/parallel_text.py --workdir=runs/parallel_text \
        --config.data.train=train.tsv --config.data.validation=validation.tsv

SCORE
"""

import dataclasses

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  return dataclasses.replace(
    config,
    data=dataclasses.replace(config.data, task="parallel_text"),
    model=dataclasses.replace(config.model, embedding_width=256, width=256, dropout_rate=0.3),
    train=dataclasses.replace(
      config.train, steps=1500, learning_rate=2e-3, steps_per_dispatch=1, validate_every=300
    ),
    evaluation=dataclasses.replace(config.evaluation, sentences=0),
  )
