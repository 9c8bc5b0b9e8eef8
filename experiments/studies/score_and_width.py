r"""Which score, and how wide?

    python -m experiments.sweep --config=experiments/studies/score_and_width.py \
        --workdir=runs/score_and_width --num_parallel=2
    python -m experiments.write_findings --study=score_and_width --workdir=runs/score_and_width

Five scores of the decoder's attention on the toy, 450 steps, five seeds. Queries and keys are projected to 16
to 512 units; the model around them stays as it is. The bilinear score has no width of its own. 50 minutes on
two cores.

Answer: the score first. To additive and cosine attention more width does no harm, and from 64 units on no
good; with 16, additive attention aligns worse. The dot product is worse at each larger width and hardly
learns at 512, as its scores grow with the width; the scale of Vaswani et al. mends most of that. This
repeats, more clearly, what Britz et al. found on WMT, whose multiplicative score has no scale either: it
falls behind at 1,024 units, and additive attention does not. The cosine, which they did not try, also aligns
best. All this is after 450 steps, half of the toy's training: it says how fast each learns.
"""

from typing import Any

from configs import base
from experiments.cli.tables import markdown
from experiments.studies import analysis
from experiments.studies.analysis import NOTE, SEEDS, Runs, StudyReport, beside
from experiments.translation import figures

SCORES = "additive", "dot_product", "scaled_dot_product", "cosine"
WIDTHS = 16, 64, 128, 512


def get_config() -> base.Config:
  return analysis.with_steps(base.Config(), 450)


def get_sweep() -> dict[str, dict[str, list[Any]]]:
  return {
    "projected": {"model.attention": [*SCORES], "model.qk_features": [*WIDTHS], "seed": SEEDS},
    "bilinear": {"model.attention": ["bilinear"], "seed": SEEDS},
  }


def write(runs: Runs) -> StudyReport:
  metrics = {"exact match": "test/exact_match", "alignment error rate": "test/alignment_error_rate"}
  tables, panels = [], {}
  for title, metric in metrics.items():
    found: dict[str, dict[float, list[float]]] = {
      score: {width: runs.of(attention=score, qk_features=width).values(metric) for width in WIDTHS}
      for score in SCORES
    }
    panels[title] = found
    additive = found["additive"]
    rows = [
      [score, *(beside(there[width], additive[width]) for width in WIDTHS)] for score, there in found.items()
    ]
    bilinear = beside(runs.of(group="bilinear").values(metric), additive[128])
    tables.append(
      f"Test {title} (bilinear, which has the model's width of 128: {bilinear}):\n\n"
      f"{markdown(['score', *WIDTHS], rows)}"
    )
  figure = figures.curves(panels, x="width of queries and keys", doubles=True)
  published = markdown(
    ["score", 128, 256, 512, 1024],
    [["multiplicative", 22.03, 22.33, 21.78, 18.22], ["additive", 22.23, 22.33, 22.47, "22.10"]],
  )
  tables.append(NOTE.format("additive attention of that width"))
  tables.append(f"Published, BLEU (Britz et al. 2017, arXiv:1703.03906):\n\n{published}")
  return StudyReport("\n\n".join(tables), {"widths": figure})
