r"""What does chance make of SCAN?

    python -m experiments.sweep --config=experiments/studies/scan_seeds.py --workdir=runs/scan_seeds --jobs=2
    python -m experiments.study --study=scan_seeds --workdir=runs/scan_seeds

The four splits of Lake and Baroni (2018, arXiv:1711.00350) by configs/scan.py, ten seeds each.
"""

from typing import Any

from configs import base, scan
from experiments.studies.findings import Finding, Runs, table
from experiments.translation import figures
from experiments.translation.compare import mean

PUBLISHED = {"simple": 0.998, "length": 0.208, "add_jump": 0.012, "add_turn_left": 0.903}


def get_config() -> base.Config:
  return scan.get_config()


def get_choices() -> dict[str, list[Any]]:
  return {"data.split": [*PUBLISHED], "seed": [*range(10)]}


def write(runs: Runs) -> Finding:
  metric = "test/exact_match"
  found = runs.by("split", metric)
  rows = [
    [split, len(there), mean(there), f"{min(there):.3f}", f"{max(there):.3f}", PUBLISHED[split]]
    for split, there in found.items()
  ]
  text = table(["split", "seeds", "exact match", "worst", "best", "published best"], rows)
  return Finding(f"Test exact match:\n\n{text}", {"splits": figures.spread({"test exact match": found})})
