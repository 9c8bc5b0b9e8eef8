"""Runs and translations side by side: means and spreads over seeds, and which differences chance explains."""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from configs import base
from experiments.cli import config_fields, tables
from experiments.runs import provenance, workdir
from experiments.runs.workdir import WorkdirError
from experiments.translation.restore import load
from experiments.translation.run_config import data_files, read_config

# With fewer sentences a p-value says little.
FEW = 50


class Runs:
  """The numbers of runs: fields of their configs, and their metrics, `split/metric`.

  >>> runs = Runs([{"seed": 0, "width": 8, "test/bleu": 40.0}, {"seed": 1, "width": 8, "test/bleu": 42.0}])
  >>> runs.of(width=8).values("test/bleu")
  [40.0, 42.0]
  """

  def __init__(self, rows: Iterable[Mapping[str, Any]]):
    self.rows = list(rows)

  def of(self, **wanted: Any) -> "Runs":
    """Returns the runs with these values of some fields, each named by its last part."""

    def fits(row: Mapping[str, Any]) -> bool:
      short = {name.rpartition(".")[2]: value for name, value in row.items()}
      return all(short.get(name) == value for name, value in wanted.items())

    return Runs(row for row in self.rows if fits(row))

  def values(self, metric: str) -> list[float]:
    """Returns a metric of each run that has it."""
    return [row[metric] for row in self.rows if row.get(metric) is not None]


Groups = Mapping[str, Runs]  # by their names


def groups(folders: Sequence[pathlib.Path], names: Sequence[str] | None = None) -> dict[str, Runs]:
  """Returns finished runs, those of one config but for the seed together.

  Args:
    folders: of the runs.
    names: what each is called, the same for those of one config; None for the fields in which they differ, or
      the first folder if there are none.

  Raises:
    WorkdirError: if one is no run, or has no results yet.
  """
  configs = [dataclasses.replace(read_config(folder), seed=0) for folder in folders]
  different = differing(configs)
  if names is None and different:
    flat = map(config_fields.flat, configs)
    names = [", ".join(f"{field}={values[field]}" for field in different) for values in flat]
  elif names is None:
    more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
    names = [f"{folders[0]}{more}"] * len(folders)
  rows: dict[str, list[Mapping[str, float]]] = {}
  for name, folder in zip(names, folders, strict=True):
    rows.setdefault(name, []).append(results_of(folder))
  return {name: Runs(found) for name, found in rows.items()}


def results_of(folder: pathlib.Path) -> dict[str, float]:
  """Returns the metrics of a finished run, `split/metric`."""
  results = workdir.read_results(folder)
  return {f"{split}/{name}": value for split, found in results.items() for name, value in found.items()}


def splits(found: Groups) -> list[list[str]]:
  """Returns the splits that each run has."""
  rows = (row for group in found.values() for row in group.rows)
  return [list(dict.fromkeys(name.partition("/")[0] for name in row)) for row in rows]


def differing(configs: Sequence[base.Config]) -> list[str]:
  """Returns the fields in which configs differ."""
  flat = [config_fields.flat(config) for config in configs]
  return [name for name in flat[0] if len({repr(config[name]) for config in flat}) > 1]


def repeated(folders: Sequence[pathlib.Path]) -> list[str]:
  """Returns a line for each run that has the config and the seed of one before it: it is no other sample."""
  configs = [read_config(folder) for folder in folders]
  firsts = [configs.index(config) for config in configs]
  return [
    f"{folders[i]} has the config and the seed of {folders[first]}: no deviation is to be seen between them"
    for i, first in enumerate(firsts)
    if first < i
  ]


def table(found: Groups, split: str) -> str:
  """Returns the metrics of a split, a line for each group: mean, and standard deviation over its runs.

  >>> runs = [{"test/bleu": 40.0}, {"test/bleu": 42.0}]
  >>> print(table({"runs/a": Runs(runs[:1]), "seeds": Runs(runs)}, "test"))
  group   runs            bleu
  runs/a     1          40.000
  seeds      2  41.000 ± 1.414
  """
  metrics = metrics_of(found, split)
  lines = [["group", "runs", *metrics]]
  for name, group in found.items():
    lines.append([name, str(len(group.rows)), *(mean(group.values(metric)) for metric in metrics.values())])
  return tables.columns(lines)


def rows(found: Groups, split: str) -> list[dict[str, Any]]:
  """Returns what `table` shows as numbers, a row for each group, for CSV.

  >>> rows({"seeds": Runs([{"test/bleu": 40.0}, {"test/bleu": 42.0}])}, "test")
  [{'split': 'test', 'group': 'seeds', 'runs': 2, 'bleu': 41.0, 'bleu deviation': 1.4142135623730951}]
  """
  written = []
  for name, group in found.items():
    row: dict[str, Any] = {"split": split, "group": name, "runs": len(group.rows)}
    for title, metric in metrics_of(found, split).items():
      there = group.values(metric)
      row[title] = float(np.mean(there)) if there else None
      row[f"{title} deviation"] = float(np.std(there, ddof=1)) if len(there) > 1 else None
    written.append(row)
  return written


def metrics_of(found: Groups, split: str) -> dict[str, str]:
  """Returns the metrics that are compared on a split, by their titles."""
  names = dict.fromkeys(name for group in found.values() for row in group.rows for name in row)
  titles = {name.removeprefix(f"{split}/"): name for name in names if name.startswith(f"{split}/")}
  return {title: name for title, name in titles.items() if title != "sentences"}


def panels(found: Groups, metrics: Mapping[str, str]) -> dict[str, dict[str, list[float]]]:
  """Returns title -> group -> the values of a metric, for `figures.spread`."""
  return {
    title: {name: group.values(metric) for name, group in found.items()} for title, metric in metrics.items()
  }


def mean(there: Sequence[float], digits: int = 3) -> str:
  """Returns mean and standard deviation (of a sample) of values.

  >>> mean([0.5, 0.7]), mean([0.5]), mean([])
  ('0.600 ± 0.141', '0.500', '-')
  """
  if not there:
    return "-"
  text = f"{np.mean(there):.{digits}f}"
  return f"{text} ± {np.std(there, ddof=1):.{digits}f}" if len(there) > 1 else text


def translations(folders: Sequence[pathlib.Path], split: str) -> tuple[dict[str, list[str]], list[str]]:
  """Returns what each run translates a split of its task to, and the true translations.

  Raises:
    WorkdirError: if one is no run, or has other sentences than the first.
    DataError: if a file of data is not what it was when a run began.
  """
  systems: dict[str, list[str]] = {}
  references: list[str] = []
  for folder in folders:
    config = read_config(folder)
    provenance.check_same_data(folder, data_files(config, "validation", "test"))
    translator = load(folder)
    examples = translator.task.examples(split, config.evaluation.num_eval_examples)
    own = [example.target_text for example in examples]
    if systems and own != references:
      raise WorkdirError(
        f"{folder} has other sentences than {folders[0]}: they cannot be compared one by one"
      )
    found = translator.n_best([example.source for example in examples], with_attention=False)
    systems[str(folder)], references = [best.text for best, *_ in found], own
  return systems, references


def significance(
  systems: Mapping[str, Sequence[str]], references: Sequence[str], samples: int = 1000
) -> list[dict[str, Any]]:
  """Returns BLEU and chrF of translations, and how likely chance alone makes them differ from the first.

  Paired approximate randomization, a two-sided permutation test: Riezler and Maxwell 2005, "On Some Pitfalls
  in Automatic Evaluation and Significance Testing for MT". (Those of sacrebleu do not count permutations that
  differ as much as the systems do, so where few sentences differ their p is far too small.)

  Args:
    systems: the translations of each, one for each reference.
    references: the true ones, plain text.
    samples: number of random permutations.

  Returns:
    For each system its name, and for each metric "score", and "p", NaN for the first.
  """
  metrics: dict[str, Metric] = {"bleu": BLEU(references=[references]), "chrf": CHRF(references=[references])}
  found: list[dict[str, Any]] = [{"system": name} for name in systems]
  for name, metric in metrics.items():
    # What each sentence contributes to the metric, [sentence statistic].
    first, *_ = contributed = [
      np.asarray(metric._extract_corpus_statistics(list(lines), None)) for lines in systems.values()
    ]
    for row, own in zip(found, contributed, strict=True):
      row[name] = _score(metric, own)
      row[f"{name} p"] = math.nan if own is first else _p(metric, first, own, samples)
  return found


def _p(metric: Metric, first: np.ndarray, other: np.ndarray, samples: int) -> float:
  """Returns the share of random exchanges of sentences after which two systems differ at least as much."""
  rng = np.random.default_rng(0)
  difference = abs(_score(metric, first) - _score(metric, other))
  count = 0
  for _ in range(samples):
    exchanged = rng.random((len(first), 1)) < 0.5
    one, two = np.where(exchanged, other, first), np.where(exchanged, first, other)
    count += abs(_score(metric, one) - _score(metric, two)) >= difference - 1e-9
  return (count + 1) / (samples + 1)


def _score(metric: Metric, contributed: np.ndarray) -> float:
  return metric._compute_score_from_stats(contributed.sum(axis=0).tolist()).score


def too_few(count: int) -> str:
  """Returns a line if there are too few sentences for a p-value, or nothing."""
  return f"p is unreliable with fewer than {FEW} sentences, got {count:,}" if count < FEW else ""


def significance_table(found: Sequence[Mapping[str, Any]]) -> str:
  """Returns what `significance` found as text.

  >>> row = {"system": "a.en", "bleu": 40.0, "bleu p": math.nan, "chrf": 6.0, "chrf p": 0.5}
  >>> print(significance_table([row]))
  system  bleu  bleu p  chrf  chrf p
  a.en    40.0       -   6.0  0.5000
  """
  rows = [["system", "bleu", "bleu p", "chrf", "chrf p"]]
  for row in found:
    cells = [row["system"]]
    for name in ("bleu", "chrf"):
      p = row[f"{name} p"]
      cells += [f"{row[name]:.1f}", "-" if math.isnan(p) else f"{p:.4f}"]
    rows.append(cells)
  return tables.columns(rows)
