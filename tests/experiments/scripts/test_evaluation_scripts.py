"""evaluate.py, compare.py, export_data.py, score_pairs.py, align.py and plot_heads.py."""

import json
import math
import shutil

import numpy as np
import pytest
from helpers import scripts

from experiments.data.parallel_corpus import read_pairs
from experiments.data.toy import grammar, sentence_sampler
from experiments.evaluation import metrics, reporting
from experiments.runs import load

pytestmark = pytest.mark.slow


def test_evaluation_prints_the_training_table(trained, run):
  folder, printed = trained
  before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
  table = run("evaluate", f"--workdir={folder}").output
  assert table in printed
  header, *rows = run("evaluate", f"--workdir={folder}", "--num_examples=2").output.splitlines()
  column = header.split().index("sentences")
  assert [row.split()[column] for row in rows] == ["2"] * 4
  assert run("evaluate", f"--workdir={folder}", "--checkpoint=average").output != table
  assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_any_file_can_be_evaluated(trained, run, pairs, tmp_path):
  output = tmp_path / "scores.json"
  finished = run("evaluate", f"--workdir={trained[0]}", f"--data={pairs}", f"--output={output}")
  ((split, values),) = json.loads(output.read_text("utf-8")).items()
  assert (split, values["sentences"]) == ("pairs.tsv", 5.0)
  assert finished.output == f"{reporting.table({split: values})}\n"
  # The same sentences from the test split have the same metrics.
  (row,) = [line for line in trained[1].splitlines() if line.startswith("test ")]
  assert row.split()[1:] == finished.output.splitlines()[1].split()[1:]


def test_evaluation_flags_are_checked(trained, error_of):
  for flags, line in (
    ("--num_examples=0", "--num_examples must be at least 1 for a task with unlimited sentences, got 0"),
    ("--alignment_tokens=words", "--alignment_tokens needs --data"),
    ("--beam_size=1 --length_penalty=1", "--length_penalty needs --beam_size of at least 2, got 1"),
  ):
    assert line in error_of("evaluate", f"--workdir={trained[0]}", *flags.split())


def test_runs_are_tested_for_significance(trained, run, tmp_path):
  folders = [str(trained[0]), str(shutil.copytree(trained[0], tmp_path / "run"))]
  path = tmp_path / "run" / "run.json"
  text = path.read_text("utf-8").replace('"seed": 0', '"seed": 1')  # as if it were another run
  path.write_text(text, "utf-8")
  flags = f"--workdir={','.join(folders)}", "--significance"
  finished = run("compare", *flags)
  assert finished.errors == "p-values are unreliable with fewer than 50 sentences, got 5\n"
  rows = finished.output.split("\n\n")[1].splitlines()
  assert rows[0].split() == ["system", "bleu", "bleu", "p", "chrf", "chrf", "p"]
  assert [row.split()[0] for row in rows[1:]] == folders
  path.write_text(text.replace('"num_eval_examples": 5', '"num_eval_examples": 2'), "utf-8")
  failed = scripts.run("compare", *flags)
  assert failed.code == 2 and "runs must have the same sentences, got different ones in" in failed.errors


def test_exported_sentences_equal_the_task(run, tmp_path):
  # Training sentences depend on the seed, test sentences do not.
  for split, name, seed in (("train", "a.tsv", 5), ("test", "b.tsv.gz", 0)):
    path = tmp_path / name
    flags = f"--split={split}", "--num_examples=7", f"--output={path}"
    assert run("export_data", "--config.seed=5", *flags).output == f"wrote 7 pairs to {path}\n"
    for index, pair in enumerate(read_pairs(path)):
      source, target, alignment = sentence_sampler.pair(seed=seed, split=split, index=index)
      assert pair[:3] == (" ".join(source), grammar.join(target), alignment) and not pair.possible


def test_scores_match_the_translator(trained, run, pairs):
  finished = run("score_pairs", f"--workdir={trained[0]}", f"--input={pairs}")
  scored = load(trained[0]).score([pair[:2] for pair in read_pairs(pairs)])
  lines = [line.split("\t") for line in finished.output.splitlines()]
  assert [int(count) for _, count in lines] == [pair.num_tokens for pair in scored]
  logs = [pair.log_probability for pair in scored]
  np.testing.assert_allclose([float(score) for score, _ in lines], logs, atol=1e-3)
  perplexity = math.exp(-sum(logs) / sum(pair.num_tokens for pair in scored))
  assert finished.errors.startswith("5 pairs: log-probability -")
  assert float(finished.errors.split()[-1]) == pytest.approx(perplexity, rel=1e-3)


def test_alignments_are_the_largest_weights(trained, run, pairs, tmp_path):
  output, folder = tmp_path / "alignments.txt", trained[0]
  finished = run("align", f"--workdir={folder}", f"--input={pairs}", f"--output={output}")
  read = read_pairs(pairs)
  weights = [pair.attention for pair in load(folder).score([pair[:2] for pair in read])]
  for line, pair_weights in zip(output.read_text("utf-8").splitlines(), weights, strict=True):
    links = [tuple(map(int, link.split("-"))) for link in line.split()]
    assert links == sorted((s, t) for t, s in metrics.strongest_links(pair_weights))
  aligned = [metrics.AlignedAttention(item, pair.alignment) for item, pair in zip(weights, read, strict=True)]
  rate = metrics.alignment_error_rate(aligned)
  assert finished.errors == f"alignment error rate {rate:.4f} (5 pairs with true alignments)\n"


def test_missing_error_rates_have_a_reason(trained, run, tmp_path):
  path = tmp_path / "pairs.tsv"
  path.write_text("the cat\tla gatta\t \n", "utf-8")  # an alignment without links
  reason = "no alignment error rate: it needs sure links, or possible links and at least one predicted link\n"
  assert run("align", f"--workdir={trained[0]}", f"--input={path}").errors == reason
  path.write_text("the cat\tla gatta\n", "utf-8")
  assert run("align", f"--workdir={trained[0]}", f"--input={path}").errors == ""


@pytest.mark.parametrize("script", ["score_pairs", "align"])
def test_files_of_pairs_are_checked(script, trained, error_of, pairs, tmp_path):
  for flags, line in (
    ([], "--input must name a file, got none"),
    ([f"--input={tmp_path}/none.tsv"], "none.tsv: cannot read the file"),
    ([f"--input={pairs}", f"--output={pairs}"], "--output must not be the same file as --input"),
  ):
    assert line in error_of(script, f"--workdir={trained[0]}", *flags)


def test_head_weights_are_written(trained, run, error_of, tmp_path):
  output = tmp_path / "heads"
  flags = f"--workdir={trained[0]}", "--text=the red cat"
  finished = run("plot_heads", *flags, f"--output={output}", "--translation=il gatto rosso")
  assert finished.output == f"wrote {output}/heads.npz\nwrote {output}/decoder_heads.png\n"
  with np.load(output / "heads.npz") as arrays:
    assert arrays["decoder"].shape == (1, 1, 4, 4)
    np.testing.assert_allclose(arrays["decoder"].sum(axis=-1), 1.0, rtol=1e-5)
    assert arrays["target"].tolist() == ["il", "gatto", "rosso"]
  assert (output / "decoder_heads.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
  assert error_of("plot_heads", *flags) == "--output must name a folder, got none"
  line = error_of("plot_heads", flags[0], "--text= ", f"--output={output}")
  assert line == "--text must have at least one word, got ' '"
