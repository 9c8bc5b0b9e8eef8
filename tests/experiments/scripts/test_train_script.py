"""train.py: the files and the output of a run."""

import gzip
import json

import pytest

from experiments.runs import workdir

pytestmark = pytest.mark.slow

SPLITS = ("validation", "test", "length", "composition")
METRICS = {"sentences", "exact_match", "bleu", "chrf", "token_accuracy", "loss"}
METRICS |= {"alignment_error_rate", "attention_mass"}


def contents(folder):
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_records_have_flags_and_launches(trained, small):
  folder, _ = trained
  config = json.loads((folder / "run.json").read_text("utf-8"))["config"]
  assert (config["seed"], config["train"]["num_train_steps"], config["model"]["features"]) == (0, 6, 8)
  command = json.loads((folder / "launches.jsonl").read_text("utf-8"))["command"]
  assert command[1:4] == ["-m", "experiments.train", f"--workdir={folder}"] and command[-1] == small[-1]


def test_metrics_are_recorded(trained):
  folder, _ = trained
  records = workdir.read_metrics(folder)
  losses = {record["step"]: record["train/loss"] for record in records if "train/loss" in record}
  assert list(losses) == [2, 4, 6] and losses[6] < losses[2]
  assert [record["step"] for record in records if "validation/alignment_error_rate" in record] == [3, 6]
  (events,) = (folder / "tensorboard").glob("events.out.tfevents.*")
  assert b"train/tokens_per_second" in events.read_bytes()


def test_requested_steps_are_profiled(trained):
  folder, output = trained
  (trace,) = (folder / "profile").rglob("*.trace.json.gz")
  events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
  assert {int(event["args"]["step_num"]) for event in events if event.get("name") == "train"} == {2, 3}
  assert f"wrote a profile to {folder / 'profile'}" in output


def test_results_have_splits_and_metrics(trained):
  results = json.loads((trained[0] / "results.json").read_text("utf-8"))
  assert tuple(results) == SPLITS
  for values in results.values():
    assert set(values) == METRICS and values["sentences"] == 5
    assert 0.0 <= values["alignment_error_rate"] <= 1.0 and 0.0 < values["attention_mass"] < 1.0


def test_figures_are_drawn(trained):
  folder, output = trained
  figures = sorted((folder / "figures").iterdir())
  assert [path.name for path in figures] == [*(f"attention_{i}.png" for i in range(5)), "training_curves.png"]
  for path in figures:
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and f"wrote {path}" in output


def test_progress_and_translations_are_printed(trained):
  _, output = trained
  for text in ("step 2/6, loss ", "tokens/s", "s left", "step 6, validation: 3 sentences, exact match "):
    assert text in output
  assert [line.split()[0] for line in output.splitlines() if line.startswith(SPLITS)] == list(SPLITS)
  assert output.count("  source  ") == output.count("  translation  ") == 5


def test_finished_runs_do_not_train_again(trained, run, small):
  folder, _ = trained
  before = contents(folder)
  finished = run("train", f"--workdir={folder}", *small)
  assert "resuming after step 6 of 6" in finished.output
  assert "loss " not in finished.output.split("split ")[0]
  after = contents(folder)
  changed = {path.name for path in before if path.suffix != ".png" and after[path] != before[path]}
  assert changed == {"launches.jsonl"}
