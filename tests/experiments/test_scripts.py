"""Tests of scripts, with a short training run of the toy task and one on files."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from helpers import scripts

from experiments.data.parallel_corpus import read_pairs
from experiments.data.toy import grammar, sentence_sampler
from experiments.runs import workdir

STEPS = 60
SIZES = (
  "--config.data.num_buckets=1",
  "--config.model.features=32",
  "--config.model.embed_dim=16",
  "--config.evaluation.num_eval_examples=20",
  "--config.evaluation.num_validation_examples=10",
  "--config.evaluation.batch_size=20",
  "--config.evaluation.max_decode_length=7",
  "--config.train.learning_rate=0.01",
)
SMALL = (
  *SIZES,
  f"--config.train.num_train_steps={STEPS}",
  "--config.train.batch_size=32",
  "--config.train.warmup_fraction=0.2",
  "--config.train.log_every_steps=10",
  "--config.train.eval_every_steps=20",
  "--config.train.ema_decay=0.9",
  "--config.model.dropout_rate=0.1",
)
SPLITS = ("validation", "test", "length", "composition")
METRICS = {
  "sentences",
  "exact_match",
  "bleu",
  "chrf",
  "token_accuracy",
  "loss",
}
ATTENTION_METRICS = {"alignment_error_rate", "attention_mass"}
TEXT = "the red cat does not see the zebra"


@pytest.fixture(scope="module")
def run():
  """Returns a function that runs a script, which must succeed."""

  def succeed(script, *flags, **options):
    finished = scripts.run(script, *flags, **options)
    assert finished.code == 0, finished
    return finished

  return succeed


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """The folder of a run, and its output. The script runs in a subprocess, as users run it."""
  folder = tmp_path_factory.mktemp("runs") / "toy"
  finished = subprocess.run(
    [sys.executable, "-m", "experiments.train", f"--workdir={folder}", "--profile=12:14", *SMALL],
    cwd=scripts.ROOT,
    capture_output=True,
    encoding="utf-8",
    check=False,
  )
  assert finished.returncode == 0, finished.stderr
  return folder, finished.stdout


def _contents(folder):
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _values(folder, name):
  """Returns the values of a metric by step."""
  return {record["step"]: record[name] for record in workdir.read_metrics(folder) if name in record}


def _is_png(path):
  return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_records_have_the_flags(trained):
  folder, _ = trained
  config = json.loads((folder / "run.json").read_text("utf-8"))["config"]
  assert config["seed"] == 0
  assert config["train"]["num_train_steps"] == STEPS
  assert config["model"]["features"] == 32
  assert config["model"]["attention"] == "additive"


def test_recorded_loss_falls(trained):
  folder, _ = trained
  losses = _values(folder, "train/loss")
  assert list(losses) == [10, 20, 30, 40, 50, 60]
  # At first, the 372 words have about equal probabilities.
  assert 5.0 < losses[10] < np.log(372) + 0.2
  assert losses[60] < losses[10] - 1.0
  validated = _values(folder, "validation/loss")
  assert list(validated) == [20, 40, 60]
  assert validated[60] < validated[20]
  assert set(_values(folder, "validation/alignment_error_rate")) == {20, 40, 60}


def test_tensorboard_has_events(trained):
  folder, _ = trained
  (events,) = (folder / "tensorboard").glob("events.out.tfevents.*")
  content = events.read_bytes()
  assert b"train/loss" in content
  assert b"validation/bleu" in content
  assert b"train/tokens_per_second" in content


def test_requested_steps_are_profiled(trained):
  folder, output = trained
  (trace,) = (folder / "profile").rglob("*.trace.json.gz")
  events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
  steps = {int(event["args"]["step_num"]) for event in events if event.get("name") == "train"}
  assert steps == {12, 13, 14}
  assert f"wrote a profile to {folder / 'profile'}" in output


def test_launches_are_recorded(trained):
  folder, _ = trained
  (line,) = (folder / "launches.jsonl").read_text("utf-8").splitlines()
  launch = json.loads(line)
  assert launch["command"][1:4] == ["-m", "experiments.train", f"--workdir={folder}"]
  assert launch["command"][-1] == SMALL[-1]
  assert launch["versions"]["jax"] == jax.__version__
  assert launch["device"].startswith("cpu: ")
  assert (launch["devices"], launch["processes"]) == (1, 1)


def test_results_have_splits_and_metrics(trained):
  folder, _ = trained
  results = json.loads((folder / "results.json").read_text("utf-8"))
  assert tuple(results) == SPLITS
  for values in results.values():
    assert set(values) == METRICS | ATTENTION_METRICS
    assert values["sentences"] == 20
    assert 0.0 <= values["alignment_error_rate"] <= 1.0
    assert 0.0 < values["attention_mass"] < 1.0


def test_figures_are_drawn(trained):
  folder, output = trained
  names = ["attention_0.png", *(f"attention_{i}.png" for i in range(1, 5)), "training_curves.png"]
  figures = sorted((folder / "figures").iterdir())
  assert [path.name for path in figures] == names
  assert all(map(_is_png, figures))
  assert all(f"wrote {path}" in output for path in figures)


def test_training_prints_progress_and_translations(trained):
  _, output = trained
  assert f"step 10/{STEPS}, loss " in output
  assert "tokens/s" in output
  assert "s left" in output
  assert f"step {STEPS}, validation: 10 sentences, exact match " in output
  assert [line.split()[0] for line in output.splitlines() if line.startswith(SPLITS)] == list(SPLITS)
  assert output.count("  source  ") == output.count("  translation  ") == 5


@pytest.mark.exhaustive
def test_finished_runs_do_not_train_again(trained, run):
  folder, _ = trained
  before = _contents(folder / "checkpoints") | {"metrics": (folder / "metrics.jsonl").read_bytes()}
  results = (folder / "results.json").read_bytes()
  finished = run("train", f"--workdir={folder}", *SMALL)
  assert f"resuming after step {STEPS} of {STEPS}" in finished.output
  assert "loss " not in finished.output.split("split ")[0]
  after = _contents(folder / "checkpoints") | {"metrics": (folder / "metrics.jsonl").read_bytes()}
  assert after == before
  assert (folder / "results.json").read_bytes() == results


def test_changed_fields_are_errors(trained):
  folder, _ = trained
  before = _contents(folder)
  finished = scripts.run("train", f"--workdir={folder}", *SMALL, "--config.train.batch_size=16")
  assert finished.code == 2
  assert finished.errors.startswith(f"error: {folder} has a run with a different config: ")
  assert "train.batch_size 32 (now 16)" in finished.errors
  assert finished.errors.count("\n") == 1
  assert "train.num_train_steps" not in finished.errors
  assert _contents(folder) == before


@pytest.mark.exhaustive
def test_resumed_runs_are_bit_identical(trained, run, tmp_path):
  uninterrupted, _ = trained
  folder = tmp_path / "run"
  with scripts.start("train", f"--workdir={folder}", *SMALL) as running:
    running.wait_for(f"step 10/{STEPS}")
    os.kill(running.process.pid, signal.SIGINT)
    stopped = running.finish()
  assert stopped.code == 130
  assert "run the same command again to resume" in stopped.errors
  step = scripts.newest_checkpoint(folder).step
  assert 0 < step < STEPS
  assert not (folder / "results.json").exists()
  # The interrupted run can translate.
  assert len(run("translate", f"--workdir={folder}", f"--text={TEXT}").output.splitlines()) == 1
  resumed = run("train", f"--workdir={folder}", *SMALL)
  assert f"resuming after step {step} of {STEPS}" in resumed.output
  first, second = scripts.newest_checkpoint(uninterrupted), scripts.newest_checkpoint(folder)
  assert first.step == second.step == STEPS
  jax.tree.map(np.testing.assert_array_equal, first.state, second.state)
  for name in ("metrics.jsonl", "results.json"):
    assert (folder / name).read_bytes() == (uninterrupted / name).read_bytes()
  assert len((folder / "launches.jsonl").read_text("utf-8").splitlines()) == 2


def test_evaluate_prints_the_training_table(trained, run):
  folder, printed = trained
  before = _contents(folder)
  table = run("evaluate", f"--workdir={folder}").output
  assert table in printed
  header, *rows = table.splitlines()
  assert set(header.split()) == {"split"} | METRICS | ATTENTION_METRICS
  assert [row.split()[0] for row in rows] == list(SPLITS)
  assert _contents(folder) == before


@pytest.mark.exhaustive
def test_evaluate_uses_sentences(trained, run):
  before = _contents(trained[0])
  header, *rows = run("evaluate", f"--workdir={trained[0]}", "--num_examples=10").output.splitlines()
  column = header.split().index("sentences")
  assert [row.split()[column] for row in rows] == ["10"] * len(SPLITS)
  assert _contents(trained[0]) == before


@pytest.mark.exhaustive
def test_evaluate_uses_checkpoint(trained, run, tmp_path):
  folder = shutil.copytree(trained[0], tmp_path / "run")
  config = json.loads((folder / "run.json").read_text("utf-8"))["config"]
  assert config["evaluation"]["checkpoint"] == "best"
  # Here the best checkpoint is the last. After its deletion, the previous one is the last.
  last = run("evaluate", f"--workdir={folder}", "--checkpoint=last").output
  shutil.rmtree(folder / "checkpoints" / str(STEPS))
  assert run("evaluate", f"--workdir={folder}", "--checkpoint=last").output != last


def test_evaluate_needs_a_number_of_sentences(trained):
  before = _contents(trained[0])
  finished = scripts.run("evaluate", f"--workdir={trained[0]}", "--num_examples=0")
  assert (finished.code, finished.errors.count("\n")) == (2, 1), finished
  assert _contents(trained[0]) == before


@pytest.mark.exhaustive
def test_translate_reports_unknown_words(trained, run, tmp_path):
  figure = tmp_path / "map.png"
  finished = run("translate", f"--workdir={trained[0]}", f"--text={TEXT}", f"--attention_png={figure}")
  assert len(finished.output.splitlines()) == 1
  assert finished.errors == f"unknown words: zebra\nwrote {figure}\n"
  assert _is_png(figure)


@pytest.mark.exhaustive
def test_translate_reports_truncated_translations(trained, run):
  # After a few training steps, translations of long sentences have no EOS within 7 tokens.
  text = " and ".join(["the cat sees the dog"] * 12)
  finished = run("translate", f"--workdir={trained[0]}", f"--text={text}")
  assert finished.errors.splitlines() == [
    "sources longer than in training (14 tokens): 1, up to 71 tokens",
    "translations truncated to --max_length=7 tokens: 1",
  ]


@pytest.mark.exhaustive
def test_invalid_utf_8_lines_raise(trained):
  command = [sys.executable, "-m", "experiments.translate", f"--workdir={trained[0]}"]
  finished = subprocess.run(
    command, cwd=scripts.ROOT, input="caff\xe8\n".encode("latin-1"), capture_output=True, check=False
  )
  assert finished.returncode == 2
  assert finished.stderr.startswith(b"error: standard input: expected UTF-8")


@pytest.mark.parametrize("flags", [(), ("--replace_unknown",)])
def test_translate_prints_one_line_each(trained, run, flags):
  known_text = TEXT.replace("zebra", "cat")
  lines = f"{TEXT}\n\n{known_text}\nthe cat sees\n{known_text}"
  finished = run("translate", f"--workdir={trained[0]}", *flags, lines=lines)
  assert finished.errors == "unknown words: zebra\n"
  first, empty, second, third, last = finished.output.split("\n")[:-1]
  assert empty == ""
  assert second == last
  assert first
  assert third


@pytest.mark.exhaustive
def test_empty_text_has_no_figure(trained, tmp_path):
  figure = tmp_path / "map.png"
  finished = scripts.run("translate", f"--workdir={trained[0]}", "--text= ", f"--attention_png={figure}")
  assert (finished.code, finished.errors.count("\n")) == (2, 1), finished


@pytest.mark.exhaustive
def test_unwritable_figures_are_errors(trained, tmp_path):
  (tmp_path / "file").write_text("mine", "utf-8")
  figure = tmp_path / "file" / "map.png"
  flags = (f"--workdir={trained[0]}", "--text=the cat", f"--attention_png={figure}")
  finished = scripts.run("translate", *flags)
  assert finished.code == 2, finished
  assert str(tmp_path / "file") in finished.errors
  assert finished.errors.count("\n") == 1


@pytest.fixture(scope="module")
def exported(tmp_path_factory, run):
  """Exported training sentences, and compressed validation sentences."""
  folder = tmp_path_factory.mktemp("exported")
  train, validation = folder / "train.tsv", folder / "validation.tsv.gz"
  flags = ("--config.seed=5",)
  finished = run("export_data", *flags, "--num_examples=50", f"--output={train}")
  assert finished.output == f"wrote 50 pairs to {train}\n"
  run("export_data", *flags, "--split=validation", "--num_examples=10", f"--output={validation}")
  return train, validation


def test_exported_sentences_match_the_task(exported):
  # Training sentences depend on the seed, validation sentences do not.
  splits = ("train", 5, 50), ("validation", 0, 10)
  for path, (split, seed, count) in zip(exported, splits, strict=True):
    pairs = read_pairs(path)
    assert len(pairs) == count
    for index, pair in enumerate(pairs):
      source, target, alignment = sentence_sampler.pair(seed=seed, split=split, index=index)
      assert pair[:3] == (" ".join(source), grammar.join(target), alignment) and not pair.possible


def test_exported_alignments_are_source_first(exported):
  line = exported[0].read_text("utf-8").splitlines()[0]
  *_, alignment = sentence_sampler.pair(seed=5, split="train", index=0)
  links = {tuple(map(int, link.split("-"))) for link in line.split("\t")[2].split(" ")}
  assert links == {(source, target) for target, source in alignment}


@pytest.fixture(scope="module")
def trained_on_files(exported, run, tmp_path_factory):
  """The folder, output and flags of a run on the exported sentences, without attention."""
  folder = tmp_path_factory.mktemp("runs") / "files"
  train, validation = exported
  flags = (
    "--config=configs/parallel_text.py",
    f"--config.data.train_file={train}",
    f"--config.data.validation_file={validation}",
    "--config.data.tokenization=word",
    "--config.model.attention=none",
    *SIZES,
    "--config.train.num_train_steps=20",
    "--config.train.batch_size=10",
    "--config.train.log_every_steps=10",
    "--config.train.eval_every_steps=20",
    "--config.train.warmup_fraction=0.25",
  )
  return folder, run("train", f"--workdir={folder}", *flags), flags


@pytest.mark.exhaustive
def test_training_on_files(trained_on_files):
  folder, finished, _ = trained_on_files
  losses = _values(folder, "train/loss")
  assert list(losses) == [10, 20]
  assert losses[20] < losses[10] - 0.1
  results = json.loads((folder / "results.json").read_text("utf-8"))
  assert {split: set(values) for split, values in results.items()} == {"validation": METRICS}
  assert results["validation"]["sentences"] == 10
  assert finished.output.count("  source  ") == 5


@pytest.mark.exhaustive
def test_vocabularies_are_saved(trained_on_files, exported):
  folder, *_ = trained_on_files
  words = [word for pair in read_pairs(exported[0]) for word in pair.source.split()]
  frequent = {word for word in words if words.count(word) >= 2}
  assert set((folder / "vocabulary.source.txt").read_text("utf-8").splitlines()) == frequent


@pytest.mark.exhaustive
def test_models_without_attention_have_curves(trained_on_files):
  folder, *_ = trained_on_files
  assert [path.name for path in (folder / "figures").iterdir()] == ["training_curves.png"]


@pytest.mark.exhaustive
def test_maps_need_attention(trained_on_files, tmp_path):
  folder, *_ = trained_on_files
  figure = tmp_path / "map.png"
  flags = (f"--workdir={folder}", "--text=the cat", f"--attention_png={figure}")
  finished = scripts.run("translate", *flags)
  assert finished.code == 2
  error = finished.errors.splitlines()[-1]
  assert error == "error: --attention_png needs a model with attention"
  assert not figure.exists()


@pytest.mark.exhaustive
def test_translation_needs_no_training_files(trained_on_files, exported, run, tmp_path):
  folder = shutil.copytree(trained_on_files[0], tmp_path / "run")
  moved = exported[0].rename(exported[0].with_suffix(".moved"))
  try:
    finished = run("translate", f"--workdir={folder}", "--text=the zebra")
    run("evaluate", f"--workdir={folder}")
  finally:
    moved.rename(exported[0])
  assert finished.errors == "unknown words: zebra\n"


@pytest.mark.exhaustive
def test_runs_on_files_resume(trained_on_files, run):
  folder, _, flags = trained_on_files
  results = (folder / "results.json").read_bytes()
  finished = run("train", f"--workdir={folder}", *flags)
  assert "resuming after step 20 of 20" in finished.output
  assert (folder / "results.json").read_bytes() == results


def test_head_weights_need_a_word(trained, tmp_path):
  finished = scripts.run(
    "plot_heads", f"--workdir={trained[0]}", "--text= ", f"--output={tmp_path / 'heads'}"
  )
  assert (finished.code, finished.errors) == (2, "error: --text must have at least one word, got ' '\n")


@pytest.mark.exhaustive
def test_head_weights_are_written(trained, run, tmp_path):
  output = tmp_path / "heads"
  flags = (f"--workdir={trained[0]}", f"--output={output}")
  finished = run("plot_heads", *flags, "--text=the red cat", "--translation=il gatto rosso")
  assert finished.output.split() == [
    *("wrote", f"{output}/heads.npz"),
    *("wrote", f"{output}/decoder_heads.png"),
  ]
  with np.load(output / "heads.npz") as arrays:
    assert arrays["decoder"].shape == (1, 1, 4, 4)
    np.testing.assert_allclose(arrays["decoder"].sum(axis=-1), 1.0, rtol=1e-5)
    assert arrays["target"].tolist() == ["il", "gatto", "rosso"]
  assert _is_png(output / "decoder_heads.png")
  failed = scripts.run("plot_heads", f"--workdir={trained[0]}", "--text=the cat")
  assert (failed.code, failed.errors) == (2, "error: --output must name a folder, got none\n")


@pytest.mark.exhaustive
def test_ensembles_and_averaged_checkpoints(trained, run):
  text = "--text=the red cat sleeps"
  single = run("translate", f"--workdir={trained[0]}", text)
  twice = run("translate", f"--workdir={trained[0]},{trained[0]}", text)
  assert twice.output == single.output
  average = run("translate", f"--workdir={trained[0]}", text, "--checkpoint=average")
  assert average.output.strip()
  missing = scripts.run("translate", f"--workdir={trained[0]},nowhere", text)
  assert missing.code == 2 and "nowhere: no run here" in missing.errors
