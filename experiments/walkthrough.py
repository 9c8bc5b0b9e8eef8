"""Walks through attention in five short lessons, from one head to the parts of a translator.

    python -m experiments.walkthrough [--figures=runs/walkthrough]

What it computes is in `experiments/introduction/systems.py`, to be read beside the numbers.
"""

import pathlib

import jax
from absl import flags

from experiments.commands import flags as commands
from experiments.introduction.lessons import lessons

_FIGURES = flags.DEFINE_string("figures", "runs/walkthrough", "folder for the heat-maps")


def main() -> None:
  if not _FIGURES.value:
    raise commands.UsageError("--figures must name a folder, got none")
  rng = jax.random.key(0, impl="unsafe_rbg")  # programs that draw from it compile sooner
  for lesson in lessons(rng, pathlib.Path(_FIGURES.value)):
    print(lesson, flush=True)


if __name__ == "__main__":
  commands.run(main)
