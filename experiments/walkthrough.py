"""Prints an introduction to attention in five short lessons, from one head to the parts of a translator.

    python -m experiments.walkthrough --figures=runs/walkthrough

Each lesson is a file in `experiments/introduction/`. Parameters are random; nothing is trained.
"""

import jax
from absl import flags

from experiments.cli import flags as cli
from experiments.cli.io import output_folder
from experiments.introduction import (
  heads_from_config,
  masked_attention,
  self_attention,
  soft_lookup,
  translator_parts,
)

_FIGURES = flags.DEFINE_string("figures", "runs/walkthrough", "folder for the heatmaps")


def main() -> None:
  folder = output_folder(_FIGURES)
  lessons = self_attention, heads_from_config, soft_lookup, masked_attention, translator_parts
  rng = jax.random.key(0, impl="unsafe_rbg")  # faster to compile
  for lesson_rng, module in zip(jax.random.split(rng, len(lessons)), lessons, strict=True):
    print("\n".join(module.lesson(lesson_rng, folder)), flush=True)


if __name__ == "__main__":
  cli.run(main)
