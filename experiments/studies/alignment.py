r"""How well do attention weights align words?

**With a guided alignment loss, as well as possible**: the alignment error rate is 0.032, and the lower bound
with one link per target word is 0.031. Trained for translation only, additive attention reaches 0.115, cosine
attention 0.068, and a decoder that attends after its state update, with input feeding, 0.047. The statistical
aligner eflomal reaches 0.034.

* Coverage attention varies with the seed: its error rate is 0.04 in three runs, and about 0.2 in two.
* No variant aligns better if its weights are shifted by one word.
* Good translation and good alignment are different properties. Cosine and guided attention translate as well
  as additive attention and align better. A decoder that attends after its state update, with input feeding,
  also aligns better, but it translates fewer of the longer sentences.
* Sigmoid weights do not sum to one, so the largest weight is a poor link (0.879). In a run that we inspected,
  they stay near 1 on all words that are already translated.

**Setup.** The toy translation task, whose true alignments are known. Models are trained for 450 steps with
five seeds, which takes 75 minutes on two CPU cores. A target word is linked to the source word with the
largest weight. "Before" and "after" use the weights of the previous and the next target word. "Attends after"
is `attend_order="after"`: the decoder attends after it has updated its state with the previous word. "Guided"
adds the guided alignment loss with the true alignments. The best head of a Transformer is selected separately
for each run. eflomal (https://pypi.org/project/eflomal) aligns as many sentence pairs as the models are
trained on. The last row links each target word once, correctly if it has a true link. Its errors are
articles, which have no true link.

**Limitations.** The language is artificial. The best head is selected on the sentences that it is scored on.
Guided attention uses true alignments, and eflomal sees the whole target sentence, which a decoder does not.

**Related results.** Chen et al. 2016 (arXiv:1607.01628) introduced guided alignment, with links of a
statistical aligner instead of true links.

**Reproduce.**

    python -m experiments.sweep --config=experiments/studies/alignment.py --workdir=runs/alignment \
        --num_parallel=2
    python -m experiments.write_findings --study=alignment --workdir=runs/alignment
"""

import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from configs import base
from experiments.cli.messages import markdown
from experiments.comparison import compare
from experiments.data.alignments import parse_alignment
from experiments.data.task import Example
from experiments.data.toy import sentence_sampler
from experiments.data.toy.grammar import Pair
from experiments.evaluation.metrics import AlignedAttention, alignment_error_rate
from experiments.figures import figures
from experiments.inference.translator import Translator
from experiments.studies import analysis
from experiments.studies.analysis import (
  SEEDS,
  TRANSFORMER,
  Row,
  Runs,
  StudyReport,
  mean_with_star,
  significance_note,
)

ATTENTION_TYPES = (
  "additive",
  "scaled_dot_product",
  "bilinear",
  "cosine",
  "location_aware",
  "coverage",
  "monotonic",
  "local",
)
GUIDED = {"train.alignment_loss_weight": [1.0]}
DEEP = {**TRANSFORMER, "train.learning_rate": [3e-3]}
VARIANTS: dict[str, dict[str, list[Any]]] = {
  **{kind: {"model.attention": [kind]} for kind in ATTENTION_TYPES},
  "attends after": {"model.attend_order": ["after"]},
  "attends after, input feeding": {"model.attend_order": ["after"], "model.input_feeding": [True]},
  **{kind: {"model.normalizer": [kind]} for kind in ("sparsemax", "entmax15", "sigmoid")},
  "coverage loss": {"train.coverage_loss_weight": [1.0]},
  "guided": GUIDED,
  "attends after, guided": {"model.attend_order": ["after"], **GUIDED},
  "transformer": DEEP,
  "transformer, guided": {**DEEP, **GUIDED},
}
ONE_LINK = "lower bound with one link per word"
SPLITS = "test", "length", "composition"
SHIFTS = {-1: "AER, before", 0: "AER", 1: "AER, after"}


def get_config() -> base.Config:
  return analysis.with_num_steps(base.Config(), 450)


def get_sweep() -> dict[str, dict[str, list[Any]]]:
  return {variant: {**fields, "seed": SEEDS} for variant, fields in VARIANTS.items()}


def measure(translator: Translator) -> dict[str, float]:
  """Returns the alignment error rates of shifted weights, and of each layer and head."""
  examples = translator.task.examples("test", 1000)
  scored: Any = translator.score_tokens([(example.source, example.target) for example in examples])
  rates = {
    f"aer/shift={shift}": _error_rate([_shift(pair.attention, shift) for pair in scored], examples)
    for shift in SHIFTS
  }
  heads: Any = translator.heads([(example.source_text, example.target_text) for example in examples])
  L, N = heads[0].decoder.shape[:2]
  for layer, head in np.ndindex(L, N) if L * N > 1 else ():
    weights = [sentence.decoder[layer, head] for sentence in heads]
    rates[f"aer/layer={layer} head={head}"] = _error_rate(weights, examples)
  return rates


def extra_rows() -> Iterator[Row]:
  """Yields the lower bound, and the error rates of eflomal if it is installed."""
  truth = [AlignedAttention(_one_link_per_word(pair), pair.alignment) for pair in _test_pairs()]
  yield {"run": ONE_LINK, "test/alignment_error_rate": alignment_error_rate(truth)}
  if shutil.which("eflomal-align") is None:
    return
  for repetition in range(len(SEEDS)):  # eflomal is random and has no seed option
    for direction, rate in _eflomal_error_rates().items():
      yield {"run": f"eflomal, {direction} ({repetition})", "test/alignment_error_rate": rate}


def _eflomal_error_rates() -> dict[str, float]:
  """Returns the alignment error rates of eflomal in each direction, and of the intersection."""
  train, tests = get_config().train, _test_pairs()
  count = train.num_train_steps * train.batch_size
  pairs = [*tests, *(sentence_sampler.pair(seed=0, split="train", index=i) for i in range(count))]
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for side in ("source", "target"):
      (folder / side).write_text("".join(f"{' '.join(getattr(pair, side))}\n" for pair in pairs), "utf-8")
    files = ["-s", "source", "-t", "target", "-f", "forward", "-r", "reverse"]
    subprocess.run(["eflomal-align", *files], check=True, cwd=folder)
    alignments = {}
    for direction in ("forward", "reverse"):
      lines = (folder / direction).read_text("utf-8").splitlines()[: len(tests)]
      alignments[direction] = [parse_alignment(line.strip()) for line in lines]
  both = zip(alignments["forward"], alignments["reverse"], strict=True)
  alignments["both"] = [forward & reverse for forward, reverse in both]
  rates = {}
  for direction, predictions in alignments.items():
    num_correct = sum(len(links & pair.alignment) for links, pair in zip(predictions, tests, strict=True))
    total = sum(len(links) + len(pair.alignment) for links, pair in zip(predictions, tests, strict=True))
    rates[direction] = 1 - 2 * num_correct / total
  return rates


def write(runs: Runs) -> StudyReport:
  groups = {name: runs.filter(group=name) for name in VARIANTS}
  metrics = {split: f"{split}/exact_match" for split in SPLITS}
  metrics |= {title: f"aer/shift={shift}" for shift, title in SHIFTS.items()}
  rows = analysis.comparison_rows(groups, metrics.values())
  rows = [[*row, _best_head(group)] for row, group in zip(rows, groups.values(), strict=True)]
  aligners: dict[str, list[float]] = {}
  for row in runs.filter(config=None).rows:
    aligners.setdefault(row["run"].partition(" (")[0], []).append(row["test/alignment_error_rate"])
  for name, rates in aligners.items():
    rate = mean_with_star(rates, groups["additive"].values("aer/shift=0"))
    rows.append([name, "-", "-", "-", "-", rate, "-", "-"])
  panels = {"exact match (test)": "test/exact_match", "alignment error rate (test)": "aer/shift=0"}
  text = (
    "Exact match on three splits, and the alignment error rate (AER) on the test split:\n\n"
    f"{markdown(['', *metrics, 'AER, best head'], rows)}\n\n"
    f"{significance_note('additive attention')}"
  )
  return StudyReport(text, {"variants": figures.dot_plot(compare.metric_panels(groups, panels))})


def _best_head(group: Runs) -> str:
  """Returns the lowest error rate of a head, averaged over runs. The best head differs between runs."""
  heads = (
    [v for name, v in row.items() if name.startswith("aer/layer") and v is not None] for row in group.rows
  )
  return compare.format_mean([min(rates) for rates in heads if rates])


def _test_pairs() -> list[Pair]:
  return [sentence_sampler.pair(seed=0, split="test", index=i) for i in range(1000)]


def _one_link_per_word(pair: Pair) -> np.ndarray:
  """Returns one-hot weights: a true link of each target word if it has one, else source position 0."""
  weights = np.zeros((len(pair.target) + 1, len(pair.source) + 1))  # one more for EOS
  for t in range(len(pair.target)):
    weights[t, min((s for linked, s in pair.alignment if linked == t), default=0)] = 1
  return weights


def _error_rate(weights: list[np.ndarray], examples: list[Example]) -> float:
  pairs = zip(weights, examples, strict=True)
  return alignment_error_rate(
    [AlignedAttention(matrix, example.alignment or ()) for matrix, example in pairs]
  )


def _shift(weights: np.ndarray, shift: int) -> np.ndarray:
  """Returns weights whose row t is row t + shift of the input, or zero."""
  T = len(weights)
  return np.pad(weights, ((max(-shift, 0), max(shift, 0)), (0, 0)))[max(shift, 0) :][:T]
