"""Runs and translations side by side: means and spreads over seeds, and which differences chance explains."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from configs import base
from experiments.commands import fields, tables
from experiments.runs import provenance, workdir
from experiments.runs.workdir import WorkdirError
from experiments.translation.loading import load
from experiments.translation.report import Results
from experiments.translation.settings import read_config

# With fewer sentences a p-value says little.
FEW = 50


class Group(NamedTuple):
  """Runs of one config, but for the seed.

  Attributes:
    name: the fields in which it differs from the other groups; where there is no other, its first folder.
    results: of each run.
  """

  name: str
  results: list[Results]


def groups(folders: Sequence[pathlib.Path], names: Sequence[str] | None = None) -> list[Group]:
  """Returns finished runs, those of one config together.

  Args:
    folders: of the runs.
    names: what each is called, the same for those of one config; None for the fields in which they differ.

  Raises:
    WorkdirError: if one is no run, or has no results yet.
  """
  configs = [dataclasses.replace(read_config(folder), seed=0) for folder in folders]
  results = [workdir.read_results(folder) for folder in folders]
  different = differing(configs)

  def name(members: Sequence[int]) -> str:
    first, *others = members
    if names is not None:
      return names[first]
    if not different:
      return f"{folders[first]}{f' and {len(others)} more' if others else ''}"
    values = fields.flat(configs[first])
    return ", ".join(f"{field}={values[field]}" for field in different)

  found: dict[str, list[int]] = {}
  for i, config in enumerate(configs):
    found.setdefault(repr(config), []).append(i)
  return [Group(name(members), [results[i] for i in members]) for members in found.values()]


def differing(configs: Sequence[base.Config]) -> list[str]:
  """Returns the fields in which configs differ."""
  flat = [fields.flat(config) for config in configs]
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


def table(found: Sequence[Group], split: str) -> str:
  """Returns the metrics of a split, a line for each group: mean, and standard deviation over its runs.

  >>> runs = [{"test": {"bleu": 40.0}}, {"test": {"bleu": 42.0}}]
  >>> print(table([Group("runs/a", runs[:1]), Group("seeds", runs)], "test"))
  group   runs            bleu
  runs/a     1          40.000
  seeds      2  41.000 ± 1.414
  """
  metrics = values(found, split)
  lines = [["group", "runs", *metrics]]
  for group in found:
    means = (mean(of_groups.get(group.name, [])) for of_groups in metrics.values())
    lines.append([group.name, str(len(group.results)), *means])
  return tables.columns(lines)


def rows(found: Sequence[Group], split: str) -> list[dict[str, Any]]:
  """Returns what `table` shows as numbers, a row for each group, for CSV.

  >>> rows([Group("seeds", [{"test": {"bleu": 40.0}}, {"test": {"bleu": 42.0}}])], "test")
  [{'split': 'test', 'group': 'seeds', 'runs': 2, 'bleu': 41.0, 'bleu deviation': 1.4142135623730951}]
  """
  metrics = values(found, split)
  written = []
  for group in found:
    row: dict[str, Any] = {"split": split, "group": group.name, "runs": len(group.results)}
    for metric, of_groups in metrics.items():
      there = of_groups.get(group.name, [])
      row[metric] = float(np.mean(there)) if there else None
      row[f"{metric} deviation"] = float(np.std(there, ddof=1)) if len(there) > 1 else None
    written.append(row)
  return written


def values(found: Sequence[Group], split: str) -> dict[str, dict[str, list[float]]]:
  """Returns metric -> group -> the value of each run that has one."""
  per_metric: dict[str, dict[str, list[float]]] = {}
  for group in found:
    for results in group.results:
      for metric, value in results.get(split, {}).items():
        if metric != "sentences":
          per_metric.setdefault(metric, {}).setdefault(group.name, []).append(value)
  return per_metric


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
    provenance.check_same_data(folder, provenance.digests([config.data.validation, config.data.test]))
    translator = load(folder)
    examples = translator.task.examples(split, config.evaluation.sentences)
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

  Raises:
    ValueError: if there are not as many translations as references.
  """
  for name, translations in systems.items():
    if len(translations) != len(references):
      raise ValueError(f"{name} must have as many lines as the references, got {len(translations):,}")
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
