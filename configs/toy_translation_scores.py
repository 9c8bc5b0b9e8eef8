r"""A sweep: which score does the decoder's attention learn best with, on the toy?

    python -m experiments.sweep --config=configs/toy_translation_scores.py --workdir=runs/scores \
        --num_parallel=2

With --config.train.num_train_steps=450 --config.train.eval_every_steps=150, on 2
CPU cores: 8 minutes for the 6 runs, killed twice on the way; test exact match 0.988 ± 0.004 (additive) and
0.980 ± 0.004 (scaled dot product), alignment error rate 0.097 ± 0.009 and 0.114 ± 0.010.
"""

from typing import Any

from configs import base, toy_translation


def get_config() -> base.Config:
  return toy_translation.get_config()


def get_sweep() -> dict[str, list[Any]]:
  return {"model.attention": ["additive", "scaled_dot_product"], "seed": [0, 1, 2]}
