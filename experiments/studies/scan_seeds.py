r"""What does chance make of SCAN?

    python -m experiments.sweep --config=experiments/studies/scan_seeds.py --workdir=runs/scan_seeds \
        --num_parallel=2
    python -m experiments.write_findings --study=scan_seeds --workdir=runs/scan_seeds

The four splits of Lake and Baroni (2018, arXiv:1711.00350) by configs/scan.py, ten seeds each; two hours on
two cores. Published are the means, over five runs, of the architecture that did best on the split.

Answer: much. By the seed alone exact match is 0.174 to 0.819 on `length`, 0.185 to 0.663 on `add_turn_left`;
on `simple` all seeds learn everything, on `add_jump` nothing. What makes the difference is largely where a
model stops. On `length`, half of what the three worst get wrong is right as far as it goes and ends too
early; told the true number of actions, the same ten are right for 0.596 to 0.896. On `add_turn_left` they go
on beyond the end (hardly any ends early): told it, they are right for 0.864 and not 0.522. What is published
there, 0.903 without being told, does not repeat. It is of a smaller GRU (100 units, one layer), chosen among
many as the best on this split; others were not tried here. On `length` our mean is above the published one.
"""

from typing import Any

from configs import scan
from experiments.cli.tables import markdown
from experiments.studies import scan_lengths
from experiments.studies.analysis import Runs, StudyReport
from experiments.translation import compare, figures

SEEDS = range(10)
PUBLISHED = {"simple": 0.998, "length": 0.208, "add_jump": 0.012, "add_turn_left": 0.903}

get_config = scan.get_config
measure = scan_lengths.measure  # how much of what is wrong only ends early


def get_sweep() -> dict[str, list[Any]]:
  return {"data.split": [*PUBLISHED], "seed": [*SEEDS]}


def write(runs: Runs) -> StudyReport:
  metrics = ["test/exact_match", "test/ends_early", "told/exact_match"]
  rows = []
  for split, published in PUBLISHED.items():
    there, early, told = (runs.of(split=split).values(metric) for metric in metrics)
    worst, best = (f"{pick(there):.3f}" if there else "-" for pick in (min, max))
    rows.append([split, compare.mean(there), worst, best, published, compare.mean(early), compare.mean(told)])
  header = ["split", "exact match", "worst", "best", "published", "right but ends early", "told the length"]
  by_length = runs.of(split="length")
  by_seed = [
    [seed, *(f"{value:.3f}" for metric in metrics for value in by_length.of(seed=seed).values(metric))]
    for seed in SEEDS
  ]
  text = (
    f"Of the test commands:\n\n{markdown(header, rows)}\n\n"
    f"The split `length`, by seed:\n\n"
    f"{markdown(['seed', 'exact match', 'right but ends early', 'told the length'], by_seed)}"
  )
  groups = {split: runs.of(split=split) for split in PUBLISHED}
  panels = {"exact match": "test/exact_match", "exact match, told the length": "told/exact_match"}
  return StudyReport(text, {"splits": figures.spread(compare.panels(groups, panels))})
