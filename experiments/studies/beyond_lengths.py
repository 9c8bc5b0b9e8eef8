r"""Which attention generalizes to longer sentences?

**Location-aware attention does**: on sentences longer than any in training, it is exactly right 98.7% of the
time. Monotonic (85.0%) and coverage attention (82.4%) follow. Additive attention reaches 64.9%, scaled
dot-product attention 41.7%, and the best Transformer (rotary positions) 34.1%.

* The three best use past attention weights. Attention by content alone generalizes less.
* Location-aware and monotonic attention align worse than additive attention: their alignment error rates are
  0.209 and 0.214, that of additive attention is 0.093.
* Relative positions (15.2%) are hardly better than sinusoidal ones (13.1%). Without positions, Transformers
  translate only 45.2% of the test sentences, whose lengths occur in training.

**Setup.** The toy translation task, 900 steps, five seeds: 75 minutes on two CPU cores. Training sentences
have at most 14 words. Those of the split `length` have 15 to 22. GRU models have one bidirectional encoder
layer of 128 units per direction and one decoder layer. Transformers have the same width, two layers in the
encoder and in the decoder, and a lower learning rate (3e-3 instead of 8e-3).

**Limitations.** The language is artificial. Neither architecture was tuned for this task.

**Related results.** Chorowski et al. 2015 (arXiv:1506.07503) report that location-aware attention generalizes
to longer speech.

**Reproduce.**

    python -m experiments.sweep --config=experiments/studies/beyond_lengths.py \
        --workdir=runs/beyond_lengths --num_parallel=2
    python -m experiments.write_findings --study=beyond_lengths --workdir=runs/beyond_lengths
"""

from typing import Any

from configs import base
from experiments.comparison import compare
from experiments.figures import figures
from experiments.studies import analysis
from experiments.studies.analysis import SEEDS, TRANSFORMER, Runs, StudyReport, significance_note

ATTENTION_TYPES = "additive", "scaled_dot_product", "location_aware", "coverage", "monotonic", "local", "none"
POSITION_ENCODINGS = "sinusoidal", "relative", "rotary", "none"
METRICS = {
  "test": "test/exact_match",
  "length": "length/exact_match",
  "composition": "composition/exact_match",
  "alignment error rate": "test/alignment_error_rate",
}


def get_config() -> base.Config:
  return analysis.with_num_steps(base.Config(), 900)


def get_sweep() -> dict[str, dict[str, list[Any]]]:
  positions: dict[str, list[Any]] = {
    "model.position_encoding": [*POSITION_ENCODINGS],
    "train.learning_rate": [3e-3],
  }
  return {
    "GRU": {"model.attention": [*ATTENTION_TYPES], "seed": SEEDS},
    "transformer": {**TRANSFORMER, **positions, "seed": SEEDS},
  }


def write(runs: Runs) -> StudyReport:
  groups = {
    f"GRU, {kind if kind != 'none' else 'no attention'}": runs.filter(group="GRU", attention=kind)
    for kind in ATTENTION_TYPES
  }
  groups |= {
    f"Transformer, {kind if kind != 'none' else 'no positions'}": runs.filter(
      group="transformer", position_encoding=kind
    )
    for kind in POSITION_ENCODINGS
  }
  text = (
    "Exact match on three splits, and the alignment error rate on the test split:\n\n"
    f"{analysis.table(groups, METRICS)}\n\n"
    f"{significance_note('additive attention')}"
  )
  return StudyReport(text, {"splits": figures.dot_plot(compare.metric_panels(groups, METRICS))})
