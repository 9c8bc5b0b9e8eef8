r"""How well does attention align?

    python -m experiments.sweep --config=experiments/studies/alignment.py --workdir=runs/alignment \
        --num_parallel=2
    python -m experiments.write_findings --study=alignment --workdir=runs/alignment

Ways to attend on the toy, whose true alignments are known, 450 steps, five seeds. A target word is linked
to the source word with the largest weight. Weights are also read one word earlier and one later: some
decoders look at a word's source when they have read the word, and not when they are to say it. Beside them
stands eflomal, a statistical aligner (https://pypi.org/project/eflomal), if it is installed, on as many
sentences. The best of a transformer's heads is that of each run, by these very sentences. 75 minutes on two
cores.

Answer: as well as can be, if it is told how. Trained to translate and nothing else, most ways to attend have
an error rate of 0.10 to 0.15; cosine scores and a decoder that looks after it has read its word and feeds its
features back do better. That of coverage is 0.04 in three runs and 0.2 in two. The guided loss (Chen et al.
2016, arXiv:1607.01628), here with the true links and not those of an aligner as in the paper, brings all
decoders to what is left if every word is linked once, rightly where it has a true link (the last line):
articles that translate nothing. eflomal, which is told nothing and sees the whole target sentence, comes near
that. No decoder here aligns better by a shift of one word: a decoder with the states of Bahdanau et al. looks
at the word that it is to say, and so do those that look after reading. Translating well and aligning well are
two things: cosine and guided attention translate as well as additive attention, and align better; decoders
that look after reading align well and go less far beyond the lengths they saw. The weights of a sigmoid do
not compete: in a run that was looked at they stay at 1 on all that was translated before, so the largest of
them says nothing.
"""

import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from configs import base
from experiments.cli.tables import markdown
from experiments.studies import analysis
from experiments.studies.analysis import NOTE, SEEDS, TRANSFORMER, Row, Runs, StudyReport, beside
from experiments.tasks import Example, sentence_sampler
from experiments.tasks.grammar import Pair
from experiments.text.alignments import parse_alignment
from experiments.translation import compare, figures
from experiments.translation.metrics import AlignedAttention, alignment_error_rate
from experiments.translation.translator import Translator

KINDS = (
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
  **{kind: {"model.attention": [kind]} for kind in KINDS},
  "looks after": {"model.attend_order": ["after"]},
  "looks after, input feeding": {"model.attend_order": ["after"], "model.input_feeding": [True]},
  **{kind: {"model.normalizer": [kind]} for kind in ("sparsemax", "entmax15", "sigmoid")},
  "coverage loss": {"train.coverage_loss_weight": [1.0]},
  "guided": GUIDED,
  "looks after, guided": {"model.attend_order": ["after"], **GUIDED},
  "transformer": DEEP,
  "transformer, guided": {**DEEP, **GUIDED},
}
ONE_LINK = "one link a word, true if it has any"
SPLITS = "test", "length", "composition"
SHIFTS = {-1: "one word earlier", 0: "as it is", 1: "one word later"}


def get_config() -> base.Config:
  return analysis.with_steps(base.Config(), 450)


def get_sweep() -> dict[str, dict[str, list[Any]]]:
  return {variant: {**fields, "seed": SEEDS} for variant, fields in VARIANTS.items()}


def measure(translator: Translator) -> dict[str, float]:
  """Returns the alignment error rates of shifted weights, and of each layer and head."""
  examples = translator.task.examples("test", 1000)
  scored: Any = translator.score_tokens([(example.source, example.target) for example in examples])
  found = {
    f"aer/shift={shift}": _error_rate([_shifted(one.attention, shift) for one in scored], examples)
    for shift in SHIFTS
  }
  heads: Any = translator.heads([(example.source_text, example.target_text) for example in examples])
  L, N = heads[0].decoder.shape[:2]
  for layer, head in np.ndindex(L, N) if L * N > 1 else ():
    weights = [one.decoder[layer, head] for one in heads]
    found[f"aer/layer={layer} head={head}"] = _error_rate(weights, examples)
  return found


def others() -> Iterator[Row]:
  """Yields what the truth allows, and what eflomal finds beside as many sentences as were trained on."""
  truth = [AlignedAttention(_one_link(pair), pair.alignment) for pair in _test_pairs()]
  yield {"run": ONE_LINK, "test/alignment_error_rate": alignment_error_rate(truth)}
  if shutil.which("eflomal-align") is None:
    return
  for time in range(len(SEEDS)):  # each with other chances
    for way, rate in _eflomal().items():
      yield {"run": f"eflomal, {way} ({time})", "test/alignment_error_rate": rate}


def _eflomal() -> dict[str, float]:
  """Returns the alignment error rates of each direction, and of the links that both have."""
  train, tests = get_config().train, _test_pairs()
  count = train.num_train_steps * train.batch_size
  pairs = [*tests, *(sentence_sampler.pair(seed=0, split="train", index=i) for i in range(count))]
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for side in ("source", "target"):
      (folder / side).write_text("".join(f"{' '.join(getattr(pair, side))}\n" for pair in pairs), "utf-8")
    files = ["-s", "source", "-t", "target", "-f", "forward", "-r", "reverse"]
    subprocess.run(["eflomal-align", *files], check=True, cwd=folder)
    found = {}
    for way in ("forward", "reverse"):
      lines = (folder / way).read_text("utf-8").splitlines()[: len(tests)]
      found[way] = [parse_alignment(line.strip()) for line in lines]
  found["both"] = [one & other for one, other in zip(found["forward"], found["reverse"], strict=True)]
  rates = {}
  for way, links in found.items():
    common = sum(len(each & pair.alignment) for each, pair in zip(links, tests, strict=True))
    total = sum(len(each) + len(pair.alignment) for each, pair in zip(links, tests, strict=True))
    rates[way] = 1 - 2 * common / total
  return rates


def write(runs: Runs) -> StudyReport:
  groups = {name: runs.of(group=name) for name in VARIANTS}
  metrics = {split: f"{split}/exact_match" for split in SPLITS}
  metrics |= {title: f"aer/shift={shift}" for shift, title in SHIFTS.items()}
  rows = analysis.rows_beside(groups, metrics.values())
  rows = [[*row, _best_head(group)] for row, group in zip(rows, groups.values(), strict=True)]
  aligners: dict[str, list[float]] = {}
  for row in runs.of(config=None).rows:
    aligners.setdefault(row["run"].partition(" (")[0], []).append(row["test/alignment_error_rate"])
  for name, rates in aligners.items():
    rate = beside(rates, groups["additive"].values("aer/shift=0"))
    rows.append([name, "-", "-", "-", "-", rate, "-", "-"])
  panels = {"test exact match": "test/exact_match", "alignment error rate": "aer/shift=0"}
  text = (
    "Exact match of the splits, and alignment error rates of the test split, read one word earlier, as they "
    f"are, and one word later:\n\n{markdown(['', *metrics, 'best head'], rows)}\n\n"
    f"{NOTE.format('the first line')}"
  )
  return StudyReport(text, {"variants": figures.spread(compare.panels(groups, panels))})


def _best_head(group: Runs) -> str:
  """Returns the lowest error rate of a head in each run; heads of two runs have nothing in common."""
  heads = (
    [v for name, v in row.items() if name.startswith("aer/layer") and v is not None] for row in group.rows
  )
  return compare.mean([min(rates) for rates in heads if rates])


def _test_pairs() -> list[Pair]:
  return [sentence_sampler.pair(seed=0, split="test", index=i) for i in range(1000)]


def _one_link(pair: Pair) -> np.ndarray:
  """Returns weights of 1, where each word is truly linked, and somewhere else where it is not."""
  weights = np.zeros((len(pair.target) + 1, len(pair.source) + 1))  # with the ends of sentences
  for t in range(len(pair.target)):
    weights[t, min((s for linked, s in pair.alignment if linked == t), default=0)] = 1
  return weights


def _error_rate(weights: list[np.ndarray], examples: list[Example]) -> float:
  pairs = zip(weights, examples, strict=True)
  return alignment_error_rate([AlignedAttention(each, example.alignment or ()) for each, example in pairs])


def _shifted(weights: np.ndarray, shift: int) -> np.ndarray:
  """Returns weights whose row t is that of t + shift; rows beyond the end are zero."""
  T = len(weights)
  return np.pad(weights, ((max(-shift, 0), max(shift, 0)), (0, 0)))[max(shift, 0) :][:T]
