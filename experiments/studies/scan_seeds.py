r"""How much do SCAN results vary with the seed?

**On two of four splits, very much**: exact match ranges from 17.4% to 81.9% on `length`, and from 18.5% to
66.3% on `add_turn_left`. On `simple` all seeds reach at least 99.9%, and on `add_jump` none exceeds 1.6%.

* On `length`, models often stop too early. About half of the errors of the three worst seeds are outputs that
  are right but end early. With the true length given, the ten seeds reach 59.6% to 89.6%.
* On `add_turn_left`, models stop too late. With the true length given, the mean rises from 52.2% to 86.4%.

**Setup.** The four splits of Lake and Baroni 2018 (arXiv:1711.00350) with `configs/scan.py`, ten seeds each:
two hours on two CPU cores. "Length given" decodes without end-of-sequence tokens and truncates to the true
number of actions.

**Limitations.** One architecture is trained on all splits. Published results are of the best architecture for
each split; for `add_turn_left` that is a smaller GRU (one layer of 100 units), which was not trained here.

**Related results.** The published means over five runs are in the table. On `length` the mean here is higher
(0.437 instead of 0.208). The published 0.903 on `add_turn_left` does not repeat.

**Reproduce.**

    python -m experiments.sweep --config=experiments/studies/scan_seeds.py --workdir=runs/scan_seeds \
        --num_parallel=2
    python -m experiments.write_findings --study=scan_seeds --workdir=runs/scan_seeds
"""

from typing import Any

from configs import scan
from experiments.cli.messages import markdown
from experiments.comparison import compare
from experiments.figures import figures
from experiments.studies import scan_lengths
from experiments.studies.analysis import Runs, StudyReport

SEEDS = range(10)
PUBLISHED = {"simple": 0.998, "length": 0.208, "add_jump": 0.012, "add_turn_left": 0.903}

get_config = scan.get_config
measure = scan_lengths.measure


def get_sweep() -> dict[str, list[Any]]:
  return {"data.split": [*PUBLISHED], "seed": [*SEEDS]}


def write(runs: Runs) -> StudyReport:
  metrics = ["test/exact_match", "test/ends_early", "oracle_length/exact_match"]
  rows = []
  for split, published in PUBLISHED.items():
    exact_match, ends_early, length_given = (runs.filter(split=split).values(metric) for metric in metrics)
    worst, best = (f"{pick(exact_match):.3f}" if exact_match else "-" for pick in (min, max))
    means = [compare.format_mean(values) for values in (exact_match, ends_early, length_given)]
    rows.append([split, means[0], worst, best, published, *means[1:]])
  titles = ["right but ends early", "exact match, length given"]
  header = ["split", "exact match", "worst", "best", "published", *titles]
  length_runs = runs.filter(split="length")
  by_seed = [
    [seed, *(f"{value:.3f}" for metric in metrics for value in length_runs.filter(seed=seed).values(metric))]
    for seed in SEEDS
  ]
  text = (
    "Results on the test commands: mean and standard deviation over ten seeds.\n\n"
    f"{markdown(header, rows)}\n\n"
    "The split `length` by seed:\n\n"
    f"{markdown(['seed', 'exact match', *titles], by_seed)}"
  )
  groups = {split: runs.filter(split=split) for split in PUBLISHED}
  panels = {"exact match": "test/exact_match", "exact match, length given": "oracle_length/exact_match"}
  return StudyReport(text, {"splits": figures.dot_plot(compare.metric_panels(groups, panels))})
