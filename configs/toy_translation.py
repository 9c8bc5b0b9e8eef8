"""Toy translation with a recurrent encoder and additive attention."""

from configs.base import Config


def get_config() -> Config:
  return Config()
