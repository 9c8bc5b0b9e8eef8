"""Comparison of runs, and significance tests."""

import math

import numpy as np
import pytest
from helpers import scripts
from helpers.small_runs import write_finished_run

from configs import base
from experiments.comparison import compare
from experiments.runs import workdir
from experiments.runs.record import read_record, write_record
from experiments.runs.workdir import WorkdirError

REFERENCES = [f"the cat number {i} sees {i % 7} mice and {i % 5} birds" for i in range(80)]
WORSE = [line.replace("sees", "has seen") if i % 3 else line for i, line in enumerate(REFERENCES)]


def run_folder(folder, seed, attention, results, **data):
  """Creates the folder of a finished run."""
  config = base.Config(seed=seed, data=base.Data(**data), model=base.Model(attention=attention))
  return write_finished_run(folder, config, results)


def results_of(bleu):
  return {"test": {"sentences": 9.0, "bleu": bleu, "loss": 0.5}}


def run_compare(*folders, flags=()):
  return scripts.run("compare", f"--workdir={','.join(map(str, folders))}", *flags)


def test_seeds_share_one_line(tmp_path):
  runs = (0, "additive", 40.0), (0, "bilinear", 37.0), (1, "additive", 43.0), (2, "additive", 49.0)
  folders = [
    run_folder(tmp_path / str(i), seed, attention, results_of(bleu))
    for i, (seed, attention, bleu) in enumerate(runs)
  ]
  finished = run_compare(*folders)
  assert (finished.code, finished.errors) == (0, "")
  deviation = np.std([40.0, 43.0, 49.0], ddof=1)
  assert [line.replace(" ± ", "±").split() for line in finished.output.splitlines()] == [
    ["split:", "test"],
    ["group", "runs", "bleu", "loss"],
    ["model.attention=additive", "3", f"44.000±{deviation:.3f}", "0.500±0.000"],
    ["model.attention=bilinear", "1", "37.000", "0.500"],
  ]
  assert list(compare.group_runs(folders[2:])) == [f"{folders[2]} and 1 more"]
  assert list(compare.group_runs(folders[:1])) == [str(folders[0])]


def test_validation_is_the_fallback_split(tmp_path):
  first = run_folder(tmp_path / "a", 0, "additive", {"validation": {"bleu": 31.0}})
  second = run_folder(tmp_path / "b", 0, "bilinear", results_of(40.0) | {"validation": {"bleu": 29.0}})
  flag = f"--workdir={first},{second}"
  output = scripts.succeed("compare", flag).output
  assert "31.000" in output and "29.000" in output
  line = scripts.error_of("compare", flag, "--split=test", "--significance")
  assert "--split must be one of validation, got 'test'" in line


def test_missing_and_damaged_results_are_errors(tmp_path):
  folder = run_folder(tmp_path / "a", 0, "additive", [3])
  with pytest.raises(WorkdirError, match="expected metrics by split"):
    compare.group_runs([folder])
  for value in ("x", None, [1], {}, 10**400):
    workdir.write_json(folder / "results.json", results_of(value))
    with pytest.raises(WorkdirError, match=r"results\.json: expected numbers by split and metric, got"):
      compare.group_runs([folder])
  (folder / "results.json").unlink()
  with pytest.raises(WorkdirError, match="no results yet"):
    compare.group_runs([folder])


def test_duplicate_runs_are_reported(tmp_path):
  folders = [run_folder(tmp_path / str(i), i % 2, "additive", results_of(40.0)) for i in range(3)]
  line = f"{folders[2]} has the same config and seed as {folders[0]}: they are not independent samples"
  assert compare.duplicate_run_warnings(folders) == [line]
  assert run_compare(*folders).errors == f"{line}\n"


def test_different_tasks_give_a_warning(tmp_path):
  files = {"train_file": "a" * 30, "validation_file": "a", "test_file": "b" * 30}
  results = {"te\x1bst": {"bl\x07eu": 1.0}}
  folders = [
    run_folder(tmp_path / "a", 0, "additive", results),
    run_folder(tmp_path / "b", 0, "none", results, task="parallel_text", **files),
  ]
  finished = run_compare(*folders, flags=["--split=te\x1bst"])
  line = "the runs are evaluated on different sentences, because of data.task\n"
  assert (finished.code, finished.errors) == (0, line)
  warning = compare.different_data_warning(folders, "test")
  assert warning == f"{line[:-1]}, data.test_file"
  assert finished.output.startswith("split: te\\x1bst\n") and "bl\\x07eu" in finished.output
  # The fields that differ are too long for the table.
  *rows, line = finished.output.splitlines()[2:]
  assert [row.split()[0] for row in rows] == [*map(str, folders)]
  fields = "model.attention", "data.task", "data.train_file", "data.validation_file", "data.test_file"
  assert sorted(line.removeprefix("the groups differ in ").split(", ")) == sorted(
    f"config.{name}" for name in fields
  )


def test_moved_data_are_the_same(tmp_path):
  folders = [
    run_folder(tmp_path / name, 0, "none", {}, task="parallel_text", train_file="a", validation_file=name)
    for name in "ab"
  ]
  assert "data.validation_file" in compare.different_data_warning(folders, "validation")
  assert compare.different_data_warning(folders, "test") == ""
  for folder in folders:
    write_record(folder, read_record(folder)._replace(data={"data.validation_file": "checksum"}))
  assert compare.different_data_warning(folders, "validation") == ""


def test_components_are_not_imported(tmp_path, write_module):
  name = f"{write_module('print(1 / 7)')}:part"
  folder = run_folder(tmp_path / "a", 0, name, results_of(40.0), task=name)
  output = scripts.succeed("compare", f"--workdir={folder}").output
  assert "40.000" in output and "0.142" not in output


ERRORS = [
  ([], "--workdir must name the folder of a run, got none"),
  (["--workdir=,"], "--workdir must name folders of runs, separated by commas, got ','"),
  (["--workdir=nowhere"], "nowhere: no run here"),
  (["--workdir=a", "--significance"], "--significance needs at least two folders in --workdir, got 'a'"),
  (["--workdir=a,a/"], "--workdir must name different folders, got 'a,a/'"),
]


@pytest.mark.parametrize(("flags", "line"), ERRORS)
def test_user_errors_are_one_line(flags, line):
  assert line in scripts.error_of("compare", *flags)


def test_worse_translations_have_small_p():
  systems = {"a": REFERENCES, "b": WORSE, "c": REFERENCES}
  first, second, same = compare.significance(systems, REFERENCES, samples=200)
  assert [first["bleu"], first["chrf"]] == pytest.approx([100, 100])
  assert math.isnan(first["bleu p"]) and math.isnan(first["chrf p"])
  assert second["bleu"] < 90 and 0 < second["bleu p"] < 0.01
  assert same["bleu p"] == same["chrf p"] == 1
  assert not compare.sample_size_warning(50)
  assert "fewer than 50 sentences, got 49" in compare.sample_size_warning(49)


EQUAL = [
  ([""], [""]),
  (["the cat sees a bird"] * 80, ["the cat sees a bird"] * 80),
  (WORSE, [line.replace(" ", "  ") for line in WORSE]),  # the metrics ignore the difference
  (REFERENCES[:1], ["a dog"]),  # one sentence cannot be significant
]


@pytest.mark.parametrize(("first", "second"), EQUAL)
def test_equal_scores_have_p_1(first, second):
  _, row = compare.significance({"a": first, "b": second}, REFERENCES[: len(first)], samples=100)
  assert row["bleu p"] == row["chrf p"] == 1


@pytest.mark.parametrize("count", [1, 3])
def test_few_differences_are_not_significant(count):
  references = [f"{line} {i}" for i, line in enumerate(REFERENCES)]
  changed = ["a dog" if i < count else line for i, line in enumerate(references)]
  _, row = compare.significance({"a": references, "b": changed}, references)
  # Only exchanging all or none of the differing sentences keeps the difference.
  assert row["bleu p"] == pytest.approx(2 ** (1 - count), abs=0.06)
  assert row["chrf p"] == pytest.approx(2 ** (1 - count), abs=0.06)
