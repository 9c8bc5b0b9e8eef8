r"""How much does attention help on long sentences?

**A lot**: for sentences of 13 and 14 words, which occur in training, 98.8% of the translations with attention
are exact, against 20.5% for a single fixed vector.

* The fixed vector is almost as good for 4 to 6 words (99.8%) and worse from 7 words on.
* Attention loses accuracy only beyond the training lengths: 91.8% for 15 to 17 words, 61.4% for 18 to 20,
  and 17.8% for 21 and 22.

**Setup.** The toy translation task with additive attention and without attention, 900 steps, five seeds: 12
minutes on two CPU cores. The fixed vector is the final state of the encoder. Training sentences have at most
14 words. Longer ones are from the split `length`.

**Limitations.** The language is artificial. `fixed_vector_multi30k` repeats the study with real text.

**Related results.** Bahdanau et al. 2015 (arXiv:1409.0473, figure 2) report that without attention, BLEU from
English to French falls for sentences longer than 20 to 30 words.

**Reproduce.**

    python -m experiments.sweep --config=experiments/studies/fixed_vector.py \
        --workdir=runs/fixed_vector --num_parallel=2
    python -m experiments.write_findings --study=fixed_vector --workdir=runs/fixed_vector
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from configs import base
from experiments.cli.messages import markdown
from experiments.data.task import Example
from experiments.evaluation.metrics import corpus_bleu, exact_match
from experiments.figures import figures
from experiments.inference.translator import Translator
from experiments.studies import analysis
from experiments.studies.analysis import SEEDS, Runs, StudyReport, mean_with_star, significance_note

LengthRanges = Sequence[tuple[int, int]]

LENGTH_RANGES = (4, 6), (7, 9), (10, 12), (13, 14), (15, 17), (18, 20), (21, 22)
MODELS = {"additive": "attention", "none": "fixed vector"}
METRICS = {"exact match": "exact_match", "BLEU": "bleu"}


def get_config() -> base.Config:
  return analysis.with_num_steps(base.Config(), 900)


def get_sweep() -> dict[str, list[Any]]:
  return {"model.attention": [*MODELS], "seed": SEEDS}


def measure(translator: Translator) -> dict[str, float]:
  """Returns exact match and BLEU for each range of source lengths of the test and length splits."""
  examples = [*translator.task.examples("test", 1000), *translator.task.examples("length", 1000)]
  lengths = [len(example.source) for example in examples]
  return by_length(
    translator, examples, lengths, LENGTH_RANGES, {"exact_match": exact_match, "bleu": corpus_bleu}
  )


def by_length(
  translator: Translator,
  examples: Sequence[Example],
  lengths: Sequence[int],
  length_ranges: LengthRanges,
  metrics: Mapping[str, Callable[[Sequence[str], Sequence[str]], float]],
) -> dict[str, float]:
  """Returns the metrics of the translations for each range of lengths."""
  translations = [best.text for best in translator.translate([example.source_text for example in examples])]
  values: dict[str, float] = {}
  for first, last in length_ranges:
    indices = [i for i, length in enumerate(lengths) if first <= length <= last]
    texts, references = [translations[i] for i in indices], [examples[i].target_text for i in indices]
    values |= {f"{first}-{last} words/{name}": metric(texts, references) for name, metric in metrics.items()}
  return values


def write(
  runs: Runs,
  length_ranges: LengthRanges = LENGTH_RANGES,
  metrics: Mapping[str, str] = METRICS,
  num_seeds: str = "five",
) -> StudyReport:
  """Returns a table and a figure of each metric by source length."""
  panels: dict[str, dict[str, dict[float, list[float]]]] = {}
  tables = []
  for title, metric in metrics.items():
    lines = {
      model: {
        (first + last) / 2: runs.filter(attention=kind).values(f"{first}-{last} words/{metric}")
        for first, last in length_ranges
      }
      for kind, model in MODELS.items()
    }
    panels[title] = lines
    digits = 1 if metric == "bleu" else 3
    baseline = lines[MODELS["additive"]]
    rows = [
      [name, *(mean_with_star(values, baseline[length], digits) for length, values in points.items())]
      for name, points in lines.items()
    ]
    header = ["source words", *(f"{first}-{last}" for first, last in length_ranges)]
    tables.append(f"{title[0].upper()}{title[1:]} by source length:\n\n{markdown(header, rows)}")
  tables.append(significance_note("the model with attention", num_seeds))
  return StudyReport("\n\n".join(tables), {"lengths": figures.curves(panels, x="source length (words)")})
