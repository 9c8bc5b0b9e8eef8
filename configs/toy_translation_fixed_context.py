"""Toy translation without attention: the decoder sees one vector for the whole sentence."""

import dataclasses

from configs import base


def get_config() -> base.Config:
  config = base.Config()
  return dataclasses.replace(config, model=dataclasses.replace(config.model, attention="none"))
