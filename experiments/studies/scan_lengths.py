r"""Which attention goes on beyond the lengths that it saw? SCAN, with and without learning where to end.

    python -m experiments.sweep --config=experiments/studies/scan_lengths.py \
        --workdir=runs/scan_lengths --jobs=2
    python -m experiments.study --study=scan_lengths --workdir=runs/scan_lengths

The split by length of configs/scan.py with 1,500 steps and five seeds: ways to attend at the published
cut-off of 22 actions, and additive attention at others. A model that never learns the end of a sentence
cannot stop; so all are also scored on the true number of actions, which they are told (Newman et al. 2020,
arXiv:2010.07174).
"""

from typing import Any

from configs import base, scan
from experiments.studies.findings import Finding, Runs, table
from experiments.translation import figures
from experiments.translation.compare import mean
from experiments.translation.translator import Translator

SEEDS = 0, 1, 2, 3, 4
RECURRENT = "additive", "location_aware", "coverage", "monotonic", "none"
POSITIONS = "sinusoidal", "relative", "rotary"
CUTOFFS = 22, 26, 30, 36
ENDS = True, False


def get_config() -> base.Config:
  config = scan.get_config()
  config.train.steps = 1500
  config.train.validate_every = 1500
  return config


def get_choices() -> list[dict[str, list[Any]]]:
  split: dict[str, list[Any]] = {"data.split": ["length"], "train.learns_end": [*ENDS], "seed": [*SEEDS]}
  transformer: dict[str, list[Any]] = {
    "model.encoder": ["transformer"],
    "model.decoder": ["transformer"],
    "model.num_layers": [2],
    "model.num_decoder_layers": [2],
    "train.learning_rate": [1e-3],
  }
  return [
    {"model.attention": [*RECURRENT], **split},
    {**transformer, "model.positions": [*POSITIONS], **split},
    {"data.scan_cutoff": [*CUTOFFS[1:]], **split},
  ]


def measure(translator: Translator) -> dict[str, float]:
  """Returns how many test commands have the right actions as far as they go."""
  examples = translator.task.examples("test", 0)
  endless = Translator(
    translator.task,
    translator.model,
    translator.params,
    batch_size=translator.batch_size,
    search=translator.search._replace(ends=False),
  )
  found = endless.n_best([example.source for example in examples], with_attention=False)
  is_right = [
    best.tokens[: len(example.target)] == example.target
    for (best, *_), example in zip(found, examples, strict=True)
  ]
  return {"told/exact_match": sum(is_right) / len(is_right)}


def write(runs: Runs) -> Finding:
  published = runs.of(scan_cutoff=22)
  groups = {f"GRU, {kind}": published.of(decoder="recurrent", attention=kind) for kind in RECURRENT}
  groups |= {
    f"transformer, {kind}": published.of(decoder="transformer", positions=kind) for kind in POSITIONS
  }
  ways = {
    "learns the end": (True, "test/exact_match"),
    "learns the end, is told the length": (True, "told/exact_match"),
    "never learns the end, is told the length": (False, "told/exact_match"),
  }
  rows = [
    [name, *(mean(group.of(learns_end=ends).values(metric)) for ends, metric in ways.values())]
    for name, group in groups.items()
  ]
  additive = runs.of(decoder="recurrent", attention="additive")
  lines: dict[str, dict[float, list[float]]] = {
    way: {cutoff: additive.of(scan_cutoff=cutoff, learns_end=ends).values(metric) for cutoff in CUTOFFS}
    for way, (ends, metric) in ways.items()
  }
  cutoffs = [[way, *(mean(there) for there in points.values())] for way, points in lines.items()]
  text = (
    f"Exact match of the test commands, of more than 22 actions:\n\n{table(['', *ways], rows)}\n\n"
    f"Additive attention, by the cut-off:\n\n{table(['', *CUTOFFS], cutoffs)}"
  )
  panels = {
    way: {name: group.of(learns_end=ends).values(metric) for name, group in groups.items()}
    for way, (ends, metric) in ways.items()
  }
  drawn = {"ways": figures.spread(panels)}
  drawn["cutoffs"] = figures.curves({"exact match": lines}, x="most actions in training")
  return Finding(text, drawn)
