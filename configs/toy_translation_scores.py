r"""A sweep over the score function of the decoder's attention, on toy translation.

    python -m experiments.sweep --config=configs/toy_translation_scores.py --workdir=runs/scores \
        --num_parallel=2

With --config.train.num_train_steps=450 --config.train.eval_every_steps=150, the 6 runs take 8 minutes on 2
CPU cores (JAX 0.10.1). Test exact match 0.988 ± 0.004 (additive) and 0.980 ± 0.004 (scaled dot product),
alignment error rate 0.097 ± 0.009 and 0.114 ± 0.010.
"""

from typing import Any

from configs import base, toy_translation


def get_config() -> base.Config:
  return toy_translation.get_config()


def get_sweep() -> dict[str, list[Any]]:
  return {"model.attention": ["additive", "scaled_dot_product"], "seed": [0, 1, 2]}
