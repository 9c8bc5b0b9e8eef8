r"""Does attention generalize to longer SCAN commands?

**No attention type is significantly better than additive attention (26.3% exact)**, and stopping is half of
the problem: with the true output length given, additive attention is right for 61.0% of the commands.
Transformers with sinusoidal positions improve from 0.1% to 53.4%.

* Location-aware attention (29.1%), the best on the toy translation task, and models without attention
  (32.7%) do not differ significantly from additive attention. Coverage (19.8%) and monotonic attention (0.5%)
  are worse.
* Longer training commands help more than any attention type: with up to 26 actions in training, additive
  attention is right for 86.7% of the longer commands.
* Training without end-of-sequence tokens hardly helps: the difference is not significant with up to 22
  training actions, and is 0.4 points with up to 26.

**Setup.** The length split of SCAN with `configs/scan.py`, 1,500 steps and five seeds: 105 minutes on two CPU
cores. The published cutoff is 22 training actions. Additive attention is also trained with cutoffs of 26, 30
and 36. "Length given" decodes without end-of-sequence tokens and truncates to the true number of actions. The
study `scan_seeds` has additive attention with twice as many steps, which is more accurate.

**Limitations.** Each cutoff is tested on the commands that are longer, so cutoffs have different test sets.
SCAN actions are not in the order of the commands, so monotonic attention does not fit them.

**Related results.** Newman et al. 2020 (arXiv:2010.07174) report that models trained without end-of-sequence
tokens generalize better to longer sequences. That hardly repeats here.

**Reproduce.**

    python -m experiments.sweep --config=experiments/studies/scan_lengths.py \
        --workdir=runs/scan_lengths --num_parallel=2
    python -m experiments.write_findings --study=scan_lengths --workdir=runs/scan_lengths
"""

from typing import Any

from configs import base, scan
from experiments.cli.messages import markdown
from experiments.comparison import compare
from experiments.figures import figures
from experiments.inference.translator import Translator
from experiments.studies import analysis
from experiments.studies.analysis import (
  SEEDS,
  TRANSFORMER,
  Runs,
  StudyReport,
  mean_with_star,
  significance_note,
)

ATTENTION_TYPES = "additive", "location_aware", "coverage", "monotonic", "none"
POSITION_ENCODINGS = "sinusoidal", "relative", "rotary"
CUTOFFS = 22, 26, 30, 36


def get_config() -> base.Config:
  return analysis.with_num_steps(scan.get_config(), 1500)


def get_sweep() -> dict[str, dict[str, list[Any]]]:
  split: dict[str, list[Any]] = {"data.split": ["length"], "seed": SEEDS}
  positions: dict[str, list[Any]] = {
    "model.position_encoding": [*POSITION_ENCODINGS],
    "train.learning_rate": [1e-3],
  }
  return {
    "GRU": {"model.attention": [*ATTENTION_TYPES], **split},
    "transformer": {**TRANSFORMER, **positions, **split},
    "longer": {"data.scan_max_train_actions": [*CUTOFFS[1:]], **split},
    "no EOS": {"data.scan_max_train_actions": [*CUTOFFS], "train.train_eos": [False], **split},
  }


def measure(translator: Translator) -> dict[str, float]:
  """Returns how often outputs are right but end early, and exact match with the true length given.

  `oracle_length/exact_match` is the exact match of outputs that are truncated to the true number of actions.
  """
  examples = translator.task.examples("test", 0)
  sources = [example.source for example in examples]
  no_eos_translator = translator.with_decode_options(allow_eos=False)
  outputs, no_eos_outputs = (
    [best.tokens for best, *_ in model.n_best(sources, with_attention=False)]
    for model in (translator, no_eos_translator)
  )
  targets = [example.target for example in examples]
  is_proper_prefix = [
    len(actions) < len(target) and actions == target[: len(actions)]
    for actions, target in zip(outputs, targets, strict=True)
  ]
  is_right = [
    actions[: len(target)] == target for actions, target in zip(no_eos_outputs, targets, strict=True)
  ]
  return {
    "test/ends_early": sum(is_proper_prefix) / len(examples),
    "oracle_length/exact_match": sum(is_right) / len(examples),
  }


def write(runs: Runs) -> StudyReport:
  groups = {
    f"GRU, {'no attention' if kind == 'none' else kind}": runs.filter(group="GRU", attention=kind)
    for kind in ATTENTION_TYPES
  }
  groups |= {
    f"Transformer, {kind}": runs.filter(group="transformer", position_encoding=kind)
    for kind in POSITION_ENCODINGS
  }
  metrics = {"exact match": "test/exact_match", "exact match, length given": "oracle_length/exact_match"}
  additive = runs.filter(decoder="recurrent", attention="additive")
  evaluations = {
    "trained with EOS": (additive.filter(train_eos=True), "test/exact_match"),
    "trained with EOS, length given": (additive.filter(train_eos=True), "oracle_length/exact_match"),
    "trained without EOS, length given": (runs.filter(group="no EOS"), "oracle_length/exact_match"),
  }
  lines: dict[str, dict[float, list[float]]] = {
    name: {cutoff: group.filter(scan_max_train_actions=cutoff).values(metric) for cutoff in CUTOFFS}
    for name, (group, metric) in evaluations.items()
  }
  baseline = lines["trained with EOS, length given"]
  by_cutoff = [
    [name, *(mean_with_star(points[cutoff], baseline[cutoff]) for cutoff in CUTOFFS)]
    for name, points in lines.items()
  ]
  cutoffs = (additive.filter(scan_max_train_actions=cutoff) for cutoff in CUTOFFS)
  sizes = (next(iter(group.values("test/sentences")), 0) for group in cutoffs)
  by_cutoff.append(["test commands", *(f"{size:,.0f}" for size in sizes)])
  text = (
    "Exact match on the test commands, which have more than 22 actions:\n\n"
    f"{analysis.table(groups, metrics)}\n\n"
    f"{significance_note('additive attention')}\n\n"
    "Additive attention by the maximum number of training actions:\n\n"
    f"{markdown(['', *CUTOFFS], by_cutoff)}\n\n"
    "Here an asterisk marks a difference from the second row, with the same test."
  )
  figures_by_name = {
    "attention": figures.dot_plot(compare.metric_panels(groups, metrics)),
    "cutoffs": figures.curves({"exact match": lines}, x="maximum number of training actions"),
  }
  return StudyReport(text, figures_by_name)
