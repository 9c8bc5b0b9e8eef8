"""Translation learnt from your own parallel text: tab-separated UTF-8, source first, plain or .gz."""

import dataclasses

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  return dataclasses.replace(
    config,
    data=dataclasses.replace(config.data, task="parallel_text"),
    model=dataclasses.replace(config.model, embedding_width=256, width=512, dropout_rate=0.3),
    train=dataclasses.replace(
      config.train, steps=3000, learning_rate=1e-3, steps_per_dispatch=1, validate_every=500
    ),
  )
