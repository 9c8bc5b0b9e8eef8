"""A sweep: which score does the decoder's attention learn best with, on the toy?

python -m experiments.sweep --config=configs/toy_translation_scores.py --workdir=runs/scores --jobs=2
"""

from typing import Any

from configs import base


def get_config() -> base.Config:
  return base.Config()


def get_choices() -> dict[str, list[Any]]:
  return {"model.attention": ["additive", "scaled_dot_product"], "seed": [0, 1, 2]}
