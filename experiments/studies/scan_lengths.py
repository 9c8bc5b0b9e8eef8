r"""Which attention goes on beyond the lengths that it saw? SCAN, with and without learning where to end.

    python -m experiments.sweep --config=experiments/studies/scan_lengths.py \
        --workdir=runs/scan_lengths --num_parallel=2
    python -m experiments.write_findings --study=scan_lengths --workdir=runs/scan_lengths

The split by length of configs/scan.py with 1,500 steps and five seeds: ways to attend at the published
cut-off of 22 actions, and additive attention at others. A model that never learns the end of a sentence
cannot stop; so all are also scored on the true number of actions, which they are told (Newman et al. 2020,
arXiv:2010.07174). With twice the steps additive attention is right more often: see `scan_seeds`. 105 minutes
on two cores.

Answer: none does, and half of the trouble is to stop. Told the length, additive attention is right more than
twice as often, and transformers with sinusoidal or rotary positions, by themselves right almost never, are
right for more than half of the commands. Of the ways to attend none goes further than additive attention;
chance could explain what parts it from location-aware attention, the best on the toy, and from none at all:
SCAN's commands say what to repeat, and its actions are not in their order. Longer commands in training help
more than any way to attend, as far as can be told: each cut-off is tested on the commands beyond it. That
models which never learn the end go on better, as Newman et al. report, hardly repeats: at 22 actions chance
could explain the difference, at 26 it is 0.004. Tried: the four cut-offs below, of 22 to 36 actions.
"""

from typing import Any

from configs import base, scan
from experiments.cli.tables import markdown
from experiments.studies import analysis
from experiments.studies.analysis import NOTE, SEEDS, TRANSFORMER, Runs, StudyReport, beside
from experiments.translation import compare, figures
from experiments.translation.translator import Translator

RECURRENT = "additive", "location_aware", "coverage", "monotonic", "none"
POSITION_ENCODINGS = "sinusoidal", "relative", "rotary"
CUTOFFS = 22, 26, 30, 36


def get_config() -> base.Config:
  return analysis.with_steps(scan.get_config(), 1500)


def get_sweep() -> dict[str, dict[str, list[Any]]]:
  split: dict[str, list[Any]] = {"data.split": ["length"], "seed": SEEDS}
  positions: dict[str, list[Any]] = {
    "model.position_encoding": [*POSITION_ENCODINGS],
    "train.learning_rate": [1e-3],
  }
  return {
    "GRU": {"model.attention": [*RECURRENT], **split},
    "transformer": {**TRANSFORMER, **positions, **split},
    "longer": {"data.scan_max_train_actions": [*CUTOFFS[1:]], **split},
    "endless": {"data.scan_max_train_actions": [*CUTOFFS], "train.train_eos": [False], **split},
  }


def measure(translator: Translator) -> dict[str, float]:
  """Returns of how many test commands the actions are right but end early, or are right as far as they go.

  `told/exact_match` is of as many actions as there should be: the model is told when to stop.
  """
  examples = translator.task.examples("test", 0)
  sources = [example.source for example in examples]
  endless = translator.with_search(ends=False)
  found, told = (
    [best.tokens for best, *_ in each.n_best(sources, with_attention=False)] for each in (translator, endless)
  )
  targets = [example.target for example in examples]
  is_beginning = [
    len(actions) < len(target) and actions == target[: len(actions)]
    for actions, target in zip(found, targets, strict=True)
  ]
  is_right = [actions[: len(target)] == target for actions, target in zip(told, targets, strict=True)]
  return {
    "test/ends_early": sum(is_beginning) / len(examples),
    "told/exact_match": sum(is_right) / len(examples),
  }


def write(runs: Runs) -> StudyReport:
  groups = {f"GRU, {kind}": runs.of(group="GRU", attention=kind) for kind in RECURRENT}
  groups |= {
    f"transformer, {kind}": runs.of(group="transformer", position_encoding=kind)
    for kind in POSITION_ENCODINGS
  }
  metrics = {"finds the end": "test/exact_match", "is told the length": "told/exact_match"}
  additive = runs.of(decoder="recurrent", attention="additive")
  ways = {
    "learns and finds the end": (additive.of(train_eos=True), "test/exact_match"),
    "learns the end, is told the length": (additive.of(train_eos=True), "told/exact_match"),
    "never learns the end, is told the length": (runs.of(group="endless"), "told/exact_match"),
  }
  lines: dict[str, dict[float, list[float]]] = {
    way: {cutoff: group.of(scan_max_train_actions=cutoff).values(metric) for cutoff in CUTOFFS}
    for way, (group, metric) in ways.items()
  }
  told = lines["learns the end, is told the length"]
  by_cutoff = [
    [way, *(beside(points[cutoff], told[cutoff]) for cutoff in CUTOFFS)] for way, points in lines.items()
  ]
  cutoffs = (additive.of(scan_max_train_actions=cutoff) for cutoff in CUTOFFS)
  sizes = (next(iter(each.values("test/sentences")), 0) for each in cutoffs)
  by_cutoff.append(["commands in the test", *(f"{size:,.0f}" for size in sizes)])
  text = (
    "Exact match of the test commands, of more than 22 actions:\n\n"
    f"{analysis.table(groups, metrics)}\n\n"
    f"{NOTE.format('additive attention')}\n\n"
    f"Additive attention, by the most actions in training:\n\n{markdown(['', *CUTOFFS], by_cutoff)}\n\n"
    "The star as above, beside the line of models that learn the end and are told the length."
  )
  drawn = {
    "ways": figures.spread(compare.panels(groups, metrics)),
    "cutoffs": figures.curves({"exact match": lines}, x="most actions in training"),
  }
  return StudyReport(text, drawn)
