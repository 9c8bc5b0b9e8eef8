r"""Which attention goes on beyond the lengths that it saw? The toy.

    python -m experiments.sweep --config=experiments/studies/beyond_lengths.py \
        --workdir=runs/beyond_lengths --jobs=2
    python -m experiments.study --study=beyond_lengths --workdir=runs/beyond_lengths

Ways to attend, 900 steps, five seeds. Sentences of the split `length` are longer than those in training.
"""

from typing import Any

from configs import base
from experiments.studies.findings import Finding, Runs, table
from experiments.translation import figures
from experiments.translation.compare import mean

SEEDS = 0, 1, 2, 3, 4
RECURRENT = "additive", "scaled_dot_product", "location_aware", "coverage", "monotonic", "local", "none"
POSITIONS = "sinusoidal", "relative", "rotary", "none"
METRICS = {
  "test": "test/exact_match",
  "length": "length/exact_match",
  "composition": "composition/exact_match",
  "alignment error rate": "test/alignment_error_rate",
}


def get_config() -> base.Config:
  config = base.Config()
  config.train.validate_every = 900
  return config


def get_choices() -> list[dict[str, list[Any]]]:
  return [
    {"model.attention": [*RECURRENT], "seed": [*SEEDS]},
    {
      "model.encoder": ["transformer"],
      "model.decoder": ["transformer"],
      "model.num_layers": [2],
      "model.num_decoder_layers": [2],
      "train.learning_rate": [3e-3],
      "model.positions": [*POSITIONS],
      "seed": [*SEEDS],
    },
  ]


def write(runs: Runs) -> Finding:
  groups = {f"GRU, {kind}": runs.of(decoder="recurrent", attention=kind) for kind in RECURRENT}
  groups |= {f"transformer, {kind}": runs.of(decoder="transformer", positions=kind) for kind in POSITIONS}
  rows = [[name, *(mean(group.values(m)) for m in METRICS.values())] for name, group in groups.items()]
  panels = {
    title: {name: group.values(metric) for name, group in groups.items()} for title, metric in METRICS.items()
  }
  text = table(["", *METRICS], rows)
  return Finding(
    f"Exact match, and alignment error rate of the test split:\n\n{text}", {"splits": figures.spread(panels)}
  )
