"""Tests of experiments/score_pairs.py, align.py and evaluate.py."""

import json
import math

import numpy as np
import pytest
from helpers import scripts

from experiments.data.parallel_corpus import read_pairs
from experiments.evaluation import metrics, reporting
from experiments.runs import load

SMALL = (
  "--config.data.num_buckets=1",
  *("--config.model.embed_dim=4", "--config.model.features=6"),
  *("--config.train.num_train_steps=2", "--config.train.batch_size=4"),
  *("--config.evaluation.num_eval_examples=2", "--config.evaluation.num_validation_examples=2"),
  "--config.evaluation.batch_size=4",
)

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("runs") / "run"
  assert scripts.run("train", f"--workdir={folder}", *SMALL).code == 0
  return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
  path = tmp_path_factory.mktemp("data") / "pairs.tsv"
  assert scripts.run("export_data", "--split=test", "--num_examples=5", f"--output={path}").code == 0
  return path


def succeed(script, folder, *flags):
  finished = scripts.run(script, f"--workdir={folder}", *flags)
  assert finished.code == 0, finished.errors
  return finished


def test_scores_match_the_translator(folder, pairs):
  finished = succeed("score_pairs", folder, f"--input={pairs}")
  scored = load(folder).score([pair[:2] for pair in read_pairs(pairs)])
  lines = [line.split("\t") for line in finished.output.splitlines()]
  assert [int(count) for _, count in lines] == [pair.num_tokens for pair in scored]
  logs = [pair.log_probability for pair in scored]
  np.testing.assert_allclose([float(score) for score, _ in lines], logs, atol=1e-3)
  perplexity = math.exp(-sum(logs) / sum(pair.num_tokens for pair in scored))
  assert finished.errors.startswith("5 pairs: log-probability -")
  assert float(finished.errors.split()[-1]) == pytest.approx(perplexity, rel=1e-3)


def test_alignments_are_the_largest_weights(folder, pairs, tmp_path):
  output = tmp_path / "alignments.txt"
  finished = succeed("align", folder, f"--input={pairs}", f"--output={output}")
  read = read_pairs(pairs)
  weights = [pair.attention for pair in load(folder).score([pair[:2] for pair in read])]
  for line, pair_weights in zip(output.read_text("utf-8").splitlines(), weights, strict=True):
    links = [tuple(map(int, link.split("-"))) for link in line.split()]
    assert links == sorted((s, t) for t, s in metrics.strongest_links(pair_weights))
  alignments = [pair.alignment for pair in read]
  rate = metrics.alignment_error_rate([*map(metrics.AlignedAttention, weights, alignments)])
  assert finished.errors == f"alignment error rate {rate:.4f} (5 pairs with true alignments)\n"


def test_missing_error_rates_have_a_reason(folder, tmp_path):
  path = tmp_path / "pairs.tsv"
  path.write_text("the cat\tla gatta\t \n", "utf-8")  # an alignment without links
  reason = "no alignment error rate: it needs sure links, or possible links and at least one predicted link\n"
  assert succeed("align", folder, f"--input={path}").errors == reason
  path.write_text("the cat\tla gatta\t0p0 1p0 0p1 1p1\n", "utf-8")
  finished = succeed("align", folder, f"--input={path}")
  rate = "alignment error rate 0.0000 (1 pair with true alignments)\n"
  assert finished.errors == (rate if finished.output.strip() else reason)


def test_any_file_can_be_evaluated(folder, pairs, tmp_path):
  output = tmp_path / "scores.json"
  finished = succeed("evaluate", folder, f"--data={pairs}", f"--output={output}")
  ((split, values),) = json.loads(output.read_text("utf-8")).items()
  assert (split, values["sentences"]) == ("pairs.tsv", 5.0)
  assert "alignment_error_rate" in values
  assert finished.output == f"{reporting.table({split: values})}\n"
  # The same sentences from the test split have the same metrics.
  split_table = succeed("evaluate", folder, "--num_examples=5")
  row = next(line for line in split_table.output.splitlines() if line.startswith("test "))
  assert row.split()[1:] == finished.output.splitlines()[1].split()[1:]


@pytest.mark.parametrize("script", ["score_pairs", "align"])
def test_user_errors_are_one_line(script, folder, pairs, tmp_path):
  for flags, line in (
    ([], "--input must name a file, got none"),
    ([f"--input={tmp_path}/none.tsv"], "none.tsv: cannot read the file"),
    ([f"--input={pairs}", f"--output={pairs}"], "--output must not be the same file as --input"),
  ):
    finished = scripts.run(script, f"--workdir={folder}", *flags)
    assert (finished.code, finished.output) == (2, "")
    assert line in finished.errors and finished.errors.count("\n") == 1
