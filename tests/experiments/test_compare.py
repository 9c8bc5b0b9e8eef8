"""Tests of experiments/compare.py and experiments/comparison/compare.py."""

import json
import math

import numpy as np
import pytest
from helpers import scripts
from sacrebleu.metrics import BLEU

from configs import base
from experiments.comparison import compare
from experiments.runs import workdir
from experiments.runs.record import Record, read_record, write_record
from experiments.runs.workdir import WorkdirError

REFERENCES = [f"the cat number {i} sees {i % 7} mice and {i % 5} birds" for i in range(80)]
WORSE = [line.replace("sees", "has seen") if i % 3 else line for i, line in enumerate(REFERENCES)]


def run_folder(folder, seed, attention, bleu, **data):
  config = base.Config(seed=seed, data=base.Data(**data), model=base.Model(attention=attention))
  folder.mkdir()
  write_record(folder, Record(config, {}, ""))
  workdir.write_json(folder / "results.json", {"test": {"sentences": 9.0, "bleu": bleu, "loss": 0.5}})
  return folder


def run_compare(*folders, flags=()):
  return scripts.run("compare", f"--workdir={','.join(map(str, folders))}", *flags)


def test_seeds_share_one_line(tmp_path):
  folders = [
    run_folder(tmp_path / "a0", 0, "additive", 40.0),
    run_folder(tmp_path / "b0", 0, "bilinear", 37.0),
    run_folder(tmp_path / "a1", 1, "additive", 43.0),
    run_folder(tmp_path / "a2", 2, "additive", 49.0),
  ]
  finished = run_compare(*folders)
  assert finished.code == 0, finished.errors
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
  folders = [run_folder(tmp_path / "a", 0, "additive", 40.0), run_folder(tmp_path / "b", 0, "bilinear", 37.0)]
  for folder, bleu in zip(folders, (31.0, 29.0), strict=True):
    workdir.write_json(folder / "results.json", {"validation": {"sentences": 9.0, "bleu": bleu}})
  finished = run_compare(*folders)
  assert finished.code == 0, finished.errors
  assert "31.000" in finished.output and "29.000" in finished.output
  workdir.write_json(folders[0] / "results.json", {"validation": {"bleu": 31.0}, "test": {"bleu": 40.0}})
  finished = run_compare(*folders, flags=["--split=test", "--significance"])
  assert finished.code == 2 and finished.output == ""
  assert "--split must be one of validation, got 'test'" in finished.errors


def test_duplicate_runs_are_reported(tmp_path):
  folders = [
    run_folder(tmp_path / name, seed, "additive", 40.0) for name, seed in zip("abc", (0, 1, 0), strict=True)
  ]
  line = f"{folders[2]} has the same config and seed as {folders[0]}: they are not independent samples"
  finished = run_compare(*folders)
  assert (finished.code, finished.errors) == (0, f"{line}\n")


def test_missing_results_are_errors(tmp_path):
  folder = run_folder(tmp_path / "a", 0, "additive", 40.0)
  (folder / "results.json").write_text(json.dumps([3]), "utf-8")
  with pytest.raises(WorkdirError, match="expected metrics by split"):
    compare.group_runs([folder])
  (folder / "results.json").unlink()
  with pytest.raises(WorkdirError, match="no results yet"):
    compare.group_runs([folder])


@pytest.mark.parametrize("value", ["x", None, [1], {}, 10**400])
def test_damaged_results_are_errors(tmp_path, value):
  folder = run_folder(tmp_path / "a", 0, "additive", value)
  finished = run_compare(folder)
  assert (finished.code, finished.errors.count("\n")) == (2, 1)
  assert f"{folder / 'results.json'}: expected numbers by split and metric" in finished.errors


def test_different_tasks_give_a_warning(tmp_path):
  files = {"train_file": "a" * 30, "validation_file": "a", "test_file": "b" * 30}
  folders = [
    run_folder(tmp_path / "a", 0, "additive", 40.0),
    run_folder(tmp_path / "b", 0, "none", 37.0, task="parallel_text", **files),
  ]
  finished = run_compare(*folders)
  line = "the runs are evaluated on different sentences, because of data.task, data.test_file\n"
  assert (finished.code, finished.errors) == (0, line)
  # The fields that differ are too long for the table.
  *rows, line = finished.output.splitlines()[2:]
  assert [row.split()[0] for row in rows] == [*map(str, folders)]
  fields = "model.attention", "data.task", "data.train_file", "data.validation_file", "data.test_file"
  assert sorted(line.removeprefix("the groups differ in ").split(", ")) == sorted(
    f"config.{name}" for name in fields
  )


def test_moved_data_are_the_same(tmp_path):
  folders = [
    run_folder(tmp_path / name, 0, "none", 37.0, task="parallel_text", train_file="a", validation_file=name)
    for name in "ab"
  ]
  assert "data.validation_file" in compare.different_data_warning(folders, "validation")
  assert compare.different_data_warning(folders, "test") == ""
  for folder in folders:
    write_record(folder, read_record(folder)._replace(data={"data.validation_file": "checksum"}))
  assert compare.different_data_warning(folders, "validation") == ""


def test_control_characters_are_escaped(tmp_path):
  folder = run_folder(tmp_path / "a", 0, "additive", 40.0)
  workdir.write_json(folder / "results.json", {"te\x1bst": {"bl\x07eu": 1.0}})
  finished = run_compare(folder, flags=["--split=te\x1bst"])
  assert finished.output.startswith("split: te\\x1bst\n") and "bl\\x07eu" in finished.output


@pytest.mark.parametrize(
  ("flags", "line"),
  [
    ((), "--workdir must name the folder of a run, got none"),
    (("--workdir=,",), "--workdir must name folders of runs, separated by commas, got ','"),
    (("--workdir=nowhere",), "nowhere: no run here"),
    (("--workdir=a", "--significance"), "--significance needs at least two folders in --workdir, got 'a'"),
    (("--workdir=a,a/",), "--workdir must name different folders, got 'a,a/'"),
  ],
)
def test_user_errors_are_one_line(flags, line):
  finished = scripts.run("compare", *flags)
  assert (finished.code, finished.output) == (2, "")
  assert line in finished.errors and finished.errors.count("\n") == 1


@pytest.mark.exhaustive
def test_runs_are_tested_for_significance(tmp_path):
  flags = (
    "--config.data.num_buckets=1",
    "--config.model.attention=none",
    *("--config.model.features=4", "--config.model.embed_dim=4"),
    *("--config.train.num_train_steps=2", "--config.train.batch_size=2"),
    *("--config.evaluation.num_eval_examples=3", "--config.evaluation.num_validation_examples=2"),
    *("--config.evaluation.batch_size=3", "--config.evaluation.max_decode_length=5"),
  )
  folders = [str(tmp_path / name) for name in "ab"]
  for seed, folder in enumerate(folders):
    trained = scripts.run("train", f"--workdir={folder}", f"--config.seed={seed}", *flags)
    assert trained.code == 0, trained.errors
  finished = run_compare(*folders, flags=["--significance"])
  assert finished.code == 0, finished.errors
  assert finished.errors == "p-values are unreliable with fewer than 50 sentences, got 3\n"
  rows = finished.output.split("\n\n")[1].splitlines()
  assert rows[0].split() == ["system", "bleu", "bleu", "p", "chrf", "chrf", "p"]
  assert [row.split()[0] for row in rows[1:]] == folders
  path = tmp_path / "b" / "run.json"
  path.write_text(
    path.read_text("utf-8").replace('"num_eval_examples": 3', '"num_eval_examples": 2'), "utf-8"
  )
  failed = run_compare(*folders, flags=["--significance"])
  assert failed.code == 2
  assert (
    f"runs must have the same sentences, got different ones in {folders[0]} and {folders[1]}" in failed.errors
  )


def test_worse_translations_have_small_p():
  first, second, same = compare.significance(
    {"a": REFERENCES, "b": WORSE, "c": REFERENCES}, REFERENCES, samples=200
  )
  assert [first["bleu"], first["chrf"]] == pytest.approx([100, 100])
  assert math.isnan(first["bleu p"]) and math.isnan(first["chrf p"])
  assert second["bleu"] < 90 and 0 < second["bleu p"] < 0.01
  assert same["bleu p"] == same["chrf p"] == 1
  assert not compare.sample_size_warning(
    50
  ) and "fewer than 50 sentences, got 49" in compare.sample_size_warning(49)


SPACED = [line.replace(" ", "  ") for line in WORSE]


@pytest.mark.parametrize(
  ("first", "second"),
  [
    *(([line] * count, [line] * count) for line in ("", "the cat sees a bird") for count in (1, 2, 80)),
    (WORSE, SPACED),  # the metrics ignore the difference
    (REFERENCES[:1], ["a dog"]),  # one sentence cannot be significant
  ],
)
def test_equal_scores_have_p_1(first, second):
  _, row = compare.significance({"a": first, "b": second}, REFERENCES[: len(first)], samples=100)
  assert row["bleu p"] == row["chrf p"] == 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_differences_are_not_significant(count):
  references = [f"{line} {i}" for i, line in enumerate(REFERENCES)]
  changed = ["a dog" if i < count else line for i, line in enumerate(references)]
  _, row = compare.significance({"a": references, "b": changed}, references)
  # Only exchanging all or none of the differing sentences keeps the difference.
  assert row["bleu p"] == pytest.approx(2 ** (1 - count), abs=0.06)
  assert row["chrf p"] == pytest.approx(2 ** (1 - count), abs=0.06)


def _permutation_p(first, second, references, rng, samples=300):
  """Returns the p-value of a permutation test, computed from whole translations."""

  def difference(first, second):
    scores = [BLEU().corpus_score(list(lines), [references]).score for lines in (first, second)]
    return abs(scores[0] - scores[1])

  observed, count = difference(first, second), 0
  for swapped in rng.random((samples, len(first))) < 0.5:
    pairs = [(b, a) if swap else (a, b) for swap, a, b in zip(swapped, first, second, strict=True)]
    count += difference(*zip(*pairs, strict=True)) >= observed - 1e-9
  return (count + 1) / (samples + 1)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_p_matches_permutation_test(seed):
  rng = np.random.default_rng(seed)
  shares = 0.3, (0.3, 0.36, 0.6)[seed]
  first, second = (
    [" ".join("x" if rng.random() < share else word for word in line.split()) for line in REFERENCES]
    for share in shares
  )
  _, row = compare.significance({"a": first, "b": second}, REFERENCES)
  assert row["bleu p"] == pytest.approx(_permutation_p(first, second, REFERENCES, rng), abs=0.1)
