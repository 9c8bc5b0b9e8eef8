"""Comparison of runs and of translations: mean and standard deviation over seeds, and significance tests."""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from configs import base
from experiments.cli import config_fields, messages
from experiments.cli.messages import shorten
from experiments.runs import workdir
from experiments.runs.record import check_same_data, read_config, read_record
from experiments.runs.restore import load
from experiments.runs.workdir import WorkdirError

# With fewer sentences, p-values are unreliable.
MIN_SENTENCES = 50

_MAX_NAME_LENGTH = 60  # characters of the name of a group

# Runs that differ in one of these fields, or in the file of the split, are evaluated on different sentences.
_DATA_FIELDS = (
  *("data.task", "data.split", "data.scan_max_train_actions", "data.lowercase"),
  "evaluation.num_eval_examples",
)


class Runs:
  """Config fields and metrics (`split/metric`) of some runs, one row per run.

  >>> runs = Runs([{"seed": 0, "width": 8, "test/bleu": 40.0}, {"seed": 1, "width": 8, "test/bleu": 42.0}])
  >>> runs.filter(width=8).values("test/bleu")
  [40.0, 42.0]
  """

  def __init__(self, rows: Iterable[Mapping[str, Any]]):
    self.rows = list(rows)

  def filter(self, **fields: Any) -> "Runs":
    """Returns the runs with these values. A field is named by the part after its last dot."""

    def matches(row: Mapping[str, Any]) -> bool:
      short_names = {name.rpartition(".")[2]: value for name, value in row.items()}
      return all(short_names.get(name) == value for name, value in fields.items())

    return Runs(row for row in self.rows if matches(row))

  def values(self, metric: str) -> list[float]:
    """Returns a metric of each run that has it."""
    return [row[metric] for row in self.rows if row.get(metric) is not None]


Groups = Mapping[str, Runs]  # runs by the name of their group


def group_runs(folders: Sequence[pathlib.Path], names: Sequence[str] | None = None) -> dict[str, Runs]:
  """Returns finished runs in groups. Runs of a group differ only in their seeds.

  Args:
    folders: folders of the runs.
    names: name of the group of each run. Default: the config fields that differ, or the first folder if none
      do or their values are long.

  Raises:
    WorkdirError: if a folder has no run, or the run has no results yet.
  """
  configs = _configs_without_seeds(folders)
  different = differing_fields(configs)
  flat = map(config_fields.flat, configs)
  values = [", ".join(f"{field}={fields[field]}" for field in different) for fields in flat]
  groups: dict[str, list[pathlib.Path]] = {}
  for name, folder in zip(names or values, folders, strict=True):
    groups.setdefault(name, []).append(folder)
  if names is None and not all(0 < len(name) <= _MAX_NAME_LENGTH for name in groups):
    groups = {_folder_name(group): group for group in groups.values()}
  return {name: Runs(map(read_metrics, group)) for name, group in groups.items()}


def differences(folders: Sequence[pathlib.Path], groups: Iterable[str]) -> str:
  """Returns a line with the config fields that differ between groups, or "" if their names have them."""
  fields = differing_fields(_configs_without_seeds(folders))
  if not fields or all(name.startswith(f"{fields[0]}=") for name in groups):
    return ""
  return f"the groups differ in {', '.join(f'config.{field}' for field in fields)}"


def _configs_without_seeds(folders: Sequence[pathlib.Path]) -> list[base.Config]:
  return [dataclasses.replace(read_config(folder), seed=0) for folder in folders]


def _folder_name(folders: Sequence[pathlib.Path]) -> str:
  """Returns the first folder, and the number of others."""
  return f"{folders[0]} and {len(folders) - 1} more" if len(folders) > 1 else str(folders[0])


def read_metrics(folder: pathlib.Path) -> dict[str, float]:
  """Returns the metrics of a finished run, by `split/metric`.

  Raises:
    WorkdirError: if the run is not finished, or its results are invalid.
  """
  results = workdir.read_results(folder)
  values = {f"{split}/{name}": value for split, metrics in results.items() for name, value in metrics.items()}
  if not values or not all(map(_is_number, values.values())):
    path, content = folder / "results.json", shorten(str(results))
    raise WorkdirError(f"{path}: expected numbers by split and metric, got {content}")
  return values


def _is_number(value: Any) -> bool:
  """Returns whether a JSON value is a number that fits into a float."""
  return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1023)


def splits_of_runs(groups: Groups) -> list[list[str]]:
  """Returns the splits that each run has metrics of."""
  rows = (row for group in groups.values() for row in group.rows)
  return [list(dict.fromkeys(name.partition("/")[0] for name in row)) for row in rows]


def differing_fields(configs: Sequence[base.Config]) -> list[str]:
  """Returns the names of the fields in which configs differ."""
  flat = [config_fields.flat(config) for config in configs]
  return [name for name in flat[0] if len({repr(config[name]) for config in flat}) > 1]


def duplicate_run_warnings(folders: Sequence[pathlib.Path]) -> list[str]:
  """Returns a warning for each run that repeats the config and seed of an earlier one."""
  configs = [read_config(folder) for folder in folders]
  firsts = [configs.index(config) for config in configs]
  return [
    f"{folders[i]} has the same config and seed as {folders[first]}: they are not independent samples"
    for i, first in enumerate(firsts)
    if first < i
  ]


def different_data_warning(folders: Sequence[pathlib.Path], split: str) -> str:
  """Returns a warning if runs have different sentences in a split, else an empty string."""
  fields = *_DATA_FIELDS, f"data.{split}_file"
  values = [{name: _value_or_digest(folder, name) for name in fields} for folder in folders]
  different = [name for name in fields if len({row[name] for row in values}) > 1]
  if not different:
    return ""
  return f"the runs are evaluated on different sentences, because of {', '.join(different)}"


def _value_or_digest(folder: pathlib.Path, name: str) -> Any:
  """Returns a config field of a run, or None. A file has its checksum as value, since it may have moved."""
  record = read_record(folder)
  return record.data.get(name, config_fields.flat(record.config).get(name))


def table(groups: Groups, split: str) -> str:
  """Returns the metrics of a split as text: mean and standard deviation, one line per group.

  >>> runs = [{"test/bleu": 40.0}, {"test/bleu": 42.0}]
  >>> print(table({"runs/a": Runs(runs[:1]), "seeds": Runs(runs)}, "test"))
  group   runs            bleu
  runs/a     1          40.000
  seeds      2  41.000 ± 1.414
  """
  metrics = split_metrics(groups, split)
  lines = [["group", "runs", *metrics]]
  for name, group in groups.items():
    means = (format_mean(group.values(metric)) for metric in metrics.values())
    lines.append([name, str(len(group.rows)), *means])
  return messages.columns(lines)


def csv_rows(groups: Groups, split: str) -> list[dict[str, Any]]:
  """Returns the numbers of `table` as rows for CSV, one per group.

  >>> csv_rows({"seeds": Runs([{"test/bleu": 40.0}, {"test/bleu": 42.0}])}, "test")
  [{'split': 'test', 'group': 'seeds', 'runs': 2, 'bleu': 41.0, 'bleu deviation': 1.4142135623730951}]
  """
  rows = []
  for name, group in groups.items():
    row: dict[str, Any] = {"split": split, "group": name, "runs": len(group.rows)}
    for title, metric in split_metrics(groups, split).items():
      values = group.values(metric)
      row[title] = float(np.mean(values)) if values else None
      row[f"{title} deviation"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    rows.append(row)
  return rows


def split_metrics(groups: Groups, split: str) -> dict[str, str]:
  """Returns the metrics of a split except the number of sentences, by title."""
  names = dict.fromkeys(name for group in groups.values() for row in group.rows for name in row)
  titles = {name.removeprefix(f"{split}/"): name for name in names if name.startswith(f"{split}/")}
  return {title: name for title, name in titles.items() if title != "sentences"}


def metric_panels(groups: Groups, metrics: Mapping[str, str]) -> dict[str, dict[str, list[float]]]:
  """Returns title -> group -> values of a metric, as `figures.dot_plot` expects them."""
  return {
    title: {name: group.values(metric) for name, group in groups.items()} for title, metric in metrics.items()
  }


def format_mean(values: Sequence[float], digits: int = 3) -> str:
  """Returns mean and sample standard deviation as text.

  >>> format_mean([0.5, 0.7]), format_mean([0.5]), format_mean([])
  ('0.600 ± 0.141', '0.500', '-')
  """
  if not values:
    return "-"
  text = f"{np.mean(values):.{digits}f}"
  return f"{text} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else text


def translate_split(folders: Sequence[pathlib.Path], split: str) -> tuple[dict[str, list[str]], list[str]]:
  """Returns the translations of a split by each run, and the references.

  Raises:
    WorkdirError: if a folder has no run, or its split has different sentences from the first run's.
    DataError: if a data file has changed since a run began.
  """
  systems: dict[str, list[str]] = {}
  references: list[str] = []
  for folder in folders:
    config = check_same_data(folder, "validation", "test")
    translator = load(folder)
    examples = translator.task.examples(split, config.evaluation.num_eval_examples)
    run_references = [example.target_text for example in examples]
    if systems and run_references != references:
      raise WorkdirError(
        f"runs must have the same sentences, got different ones in {folders[0]} and {folder}"
      )
    hypotheses = translator.n_best([example.source for example in examples], with_attention=False)
    systems[str(folder)], references = [best.text for best, *_ in hypotheses], run_references
  return systems, references


def significance(
  systems: Mapping[str, Sequence[str]], references: Sequence[str], samples: int = 1000
) -> list[dict[str, Any]]:
  """Returns BLEU and chrF of systems, and p-values of their differences from the first system.

  The test is paired approximate randomization, a two-sided permutation test. The implementation of sacrebleu
  is not used: it does not count permutations with the same difference as the systems, so its p-values are far
  too small if few sentences differ.

  Args:
    systems: translations by the name of the system, one per reference.
    references: reference translations, plain text.
    samples: number of random permutations.

  Returns:
    One row per system: "system", and for each metric the score ("bleu") and p-value ("bleu p"), NaN for the
    first system.

  References:
    Riezler and Maxwell 2005, "On Some Pitfalls in Automatic Evaluation and Significance Testing for MT".
  """
  metrics: dict[str, Metric] = {"bleu": BLEU(references=[references]), "chrf": CHRF(references=[references])}
  rows: list[dict[str, Any]] = [{"system": name} for name in systems]
  for name, metric in metrics.items():
    # Sufficient statistics of the metric for each sentence, [sentence statistic].
    first, *_ = statistics = [
      np.asarray(metric._extract_corpus_statistics(list(lines), None)) for lines in systems.values()
    ]
    for row, system_statistics in zip(rows, statistics, strict=True):
      row[name] = _score(metric, system_statistics)
      is_first = system_statistics is first
      row[f"{name} p"] = math.nan if is_first else _p_value(metric, first, system_statistics, samples)
  return rows


def _p_value(metric: Metric, first: np.ndarray, second: np.ndarray, samples: int) -> float:
  """Returns the share of random exchanges of sentences with at least the difference of the two systems."""
  rng = np.random.default_rng(0)
  difference = abs(_score(metric, first) - _score(metric, second))
  count = 0
  for _ in range(samples):
    exchanged = rng.random((len(first), 1)) < 0.5
    a, b = np.where(exchanged, second, first), np.where(exchanged, first, second)
    count += abs(_score(metric, a) - _score(metric, b)) >= difference - 1e-9
  return (count + 1) / (samples + 1)


def _score(metric: Metric, statistics: np.ndarray) -> float:
  return metric._compute_score_from_stats(statistics.sum(axis=0).tolist()).score


def sample_size_warning(num_sentences: int) -> str:
  """Returns a warning if there are too few sentences for a p-value, else an empty string."""
  if num_sentences >= MIN_SENTENCES:
    return ""
  return f"p-values are unreliable with fewer than {MIN_SENTENCES} sentences, got {num_sentences:,}"


def significance_table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns the rows of `significance` as text.

  >>> row = {"system": "a.en", "bleu": 40.0, "bleu p": math.nan, "chrf": 6.0, "chrf p": 0.5}
  >>> print(significance_table([row]))
  system  bleu  bleu p  chrf  chrf p
  a.en    40.0       -   6.0  0.5000
  """
  lines = [["system", "bleu", "bleu p", "chrf", "chrf p"]]
  for row in rows:
    cells = [row["system"]]
    for name in ("bleu", "chrf"):
      p = row[f"{name} p"]
      cells += [f"{row[name]:.1f}", "-" if math.isnan(p) else f"{p:.4f}"]
    lines.append(cells)
  return messages.columns(lines)
