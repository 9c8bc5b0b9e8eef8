"""Toy translation with a transformer encoder and a decoder with multi-head attention."""

import dataclasses

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  return dataclasses.replace(
    config,
    model=dataclasses.replace(config.model, encoder="transformer", attention="multi_head", num_layers=2),
    train=dataclasses.replace(config.train, steps=1200, learning_rate=3e-3),
  )
