r"""What does a fixed vector lose?

    python -m experiments.sweep --config=experiments/studies/fixed_vector.py \
        --workdir=runs/fixed_vector --num_parallel=2
    python -m experiments.write_findings --study=fixed_vector --workdir=runs/fixed_vector

The toy with and without attention, 900 steps, five seeds; 12 minutes on two cores. Sentences of up to 14
words are of lengths seen in training; longer ones are those of the split `length`.

Answer: the long sentences. One vector, the encoder's summary, translates short sentences nearly as well; it
loses from seven words on, and at 13 and 14 words, lengths seen in training, four of five translations are
wrong. Attention loses hardly anything at the lengths it saw; beyond them it loses, too, from 18 words on
much. This repeats Bahdanau et al. 2015 (arXiv:1409.0473, figure 2), where BLEU from English to French falls
beyond 20 to 30 words without attention.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from configs import base
from experiments.cli.tables import markdown
from experiments.studies import analysis
from experiments.studies.analysis import NOTE, SEEDS, Runs, StudyReport, beside
from experiments.tasks import Example
from experiments.translation import figures
from experiments.translation.metrics import corpus_bleu, exact_match
from experiments.translation.translator import Translator

Bands = Sequence[tuple[int, int]]

BANDS = (4, 6), (7, 9), (10, 12), (13, 14), (15, 17), (18, 20), (21, 22)
KINDS = {"additive": "with attention", "none": "one vector"}
METRICS = {"exact match": "exact_match", "BLEU": "bleu"}


def get_config() -> base.Config:
  return analysis.with_steps(base.Config(), 900)


def get_sweep() -> dict[str, list[Any]]:
  return {"model.attention": [*KINDS], "seed": SEEDS}


def measure(translator: Translator) -> dict[str, float]:
  """Returns exact match and BLEU of the test sentences of each band of lengths, in words of the source."""
  examples = [*translator.task.examples("test", 1000), *translator.task.examples("length", 1000)]
  lengths = [len(example.source) for example in examples]
  return by_length(translator, examples, lengths, BANDS, {"exact_match": exact_match, "bleu": corpus_bleu})


def by_length(
  translator: Translator,
  examples: Sequence[Example],
  lengths: Sequence[int],
  bands: Bands,
  metrics: Mapping[str, Callable[[Sequence[str], Sequence[str]], float]],
) -> dict[str, float]:
  """Returns the metrics of the translations of examples, for each band of their lengths."""
  found = [best.text for best in translator.translate([example.source_text for example in examples])]
  values: dict[str, float] = {}
  for first, last in bands:
    chosen = [i for i, length in enumerate(lengths) if first <= length <= last]
    texts, references = [found[i] for i in chosen], [examples[i].target_text for i in chosen]
    values |= {f"{first}-{last} words/{name}": metric(texts, references) for name, metric in metrics.items()}
  return values


def write(runs: Runs, bands: Bands = BANDS, metrics: Mapping[str, str] = METRICS) -> StudyReport:
  """Returns tables and curves of the metrics of each band."""
  panels: dict[str, dict[str, dict[float, list[float]]]] = {}
  tables = []
  for title, metric in metrics.items():
    lines = {
      shown: {
        (first + last) / 2: runs.of(attention=kind).values(f"{first}-{last} words/{metric}")
        for first, last in bands
      }
      for kind, shown in KINDS.items()
    }
    panels[title] = lines
    digits = 1 if metric == "bleu" else 3
    base = lines[KINDS["additive"]]
    rows = [
      [name, *(beside(there, base[band], digits) for band, there in points.items())]
      for name, points in lines.items()
    ]
    header = ["words", *(f"{first}-{last}" for first, last in bands)]
    tables.append(f"{title[0].upper()}{title[1:]}, by the words of the source:\n\n{markdown(header, rows)}")
  tables.append(NOTE.format("the line above"))
  return StudyReport("\n\n".join(tables), {"lengths": figures.curves(panels, x="words of the source")})
