"""Tests of experiments/evaluation/reporting.py and run_figures.py."""

import json

import numpy as np
import pytest

from experiments.data.task import Example
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import Vocabulary
from experiments.evaluation import reporting
from experiments.figures import run_figures
from experiments.inference.translator import Heads, PairScore, Translation
from experiments.runs import workdir

EXAMPLES = [
  Example(("the", "cat"), ("il", "gatto"), frozenset({(0, 0), (1, 1)}), "the cat", "il gatto"),
  Example(
    ("she", "sees", "l'", "ami"), ("vede", "l'", "amico"), frozenset(), "she sees l'ami", "vede l'amico"
  ),
  Example(("hi",), ("ciao",), None, "hi", "ciao"),
]


SOURCE = TextProcessor(WordTokenizer(), Vocabulary(("the", "she", "sees", "l'", "ami")), lowercase=True)


class FakeTask:
  """A task with three sentences in each of two splits."""

  splits = ("validation", "test")
  source = SOURCE
  target = TextProcessor(WordTokenizer(), Vocabulary(("ciao",)), lowercase=True)

  def examples(self, split, count):
    return EXAMPLES[:count] if count else EXAMPLES


class FakeTranslator:
  """A translator with fixed outputs, and uniform attention or none."""

  def __init__(self, *, has_attention=True):
    self.task = FakeTask()
    self._has_attention = has_attention

  def n_best(self, sources, *, with_attention=True):
    # One output differs from the reference in its tokens, but not in its text.
    table = {("hi",): ("ciao",), ("the", "cat"): ("la", "gatta")}
    outputs = [table.get(source, ("vede", "l'amico")) for source in sources]
    return [[Translation(" ".join(tokens), tokens, -1.0, None)] for tokens in outputs]

  def score_tokens(self, pairs, *, with_attention=True):
    return [PairScore(-1.0, len(target) + 1, self._weights(source, target)) for source, target in pairs]

  def _weights(self, source, target):
    shape = len(target) + 1, len(source) + 1
    return np.full(shape, 1 / shape[1]) if self._has_attention else None


def test_tables_have_dashes_for_missing_values():
  scores = {"exact_match": 1.0, "bleu": 100.0, "chrf": 100.0, "loss": 1.0, "alignment_error_rate": 0.0625}
  results = {
    "test": {"loss": 0.12345, "sentences": 1000.0, "exact_match": 0.5, "bleu": 61.25, "chrf": 70.0},
    "composition": {"sentences": 20.0, **scores},
  }
  assert reporting.table(results).splitlines() == [
    "split        sentences  exact_match   bleu   chrf    loss  alignment_error_rate",
    "test             1,000        0.500   61.2   70.0  0.1235                     -",
    "composition         20        1.000  100.0  100.0  1.0000                 0.062",
  ]


@pytest.mark.parametrize("count", [2, 0])
def test_all_splits_are_evaluated(monkeypatch, count):
  monkeypatch.setattr(
    reporting, "evaluate", lambda translator, examples, custom_metrics: {"sentences": len(examples)}
  )
  results = reporting.evaluate_splits(FakeTranslator(), count)
  assert results == {"validation": {"sentences": count or 3}, "test": {"sentences": count or 3}}


def test_results_are_json(tmp_path):
  results = {"test": {"exact_match": 0.99, "bleu": 98.5}}
  workdir.write_results(tmp_path, results)
  assert json.loads((tmp_path / "results.json").read_text("utf-8")) == results


def test_translations_are_printed(capsys):
  reporting.show_translations(FakeTranslator())
  blocks = capsys.readouterr().out.strip("\n").split("\n\n")
  # Longest source first.
  assert [[line.strip() for line in block.splitlines()] for block in blocks] == [
    ["source       she sees l'ami", "translation  vede l'amico", "(correct)"],
    ["source       the cat", "translation  la gatta", "reference    il gatto"],
    ["source       hi", "translation  ciao", "(correct)"],
  ]


def test_control_characters_are_escaped(capsys, monkeypatch):
  (example, *_) = reporting.select_examples(FakeTranslator())
  example = example._replace(source_text="a\x1b[2J", target_text="b\u2028")
  monkeypatch.setattr(reporting, "select_examples", lambda translator: [example])
  reporting.show_translations(FakeTranslator())
  printed = capsys.readouterr().out
  assert "source       a\\x1b[2J\n" in printed and "reference    b\\u2028\n" in printed


@pytest.fixture
def with_metrics(tmp_path):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5})
    metrics.write(10, {"train/loss": 2.0})
  return tmp_path


def test_run_figures_are_written(with_metrics):
  paths = run_figures.draw_figures(with_metrics, FakeTranslator())
  names = ["training_curves", "attention_0", "attention_1", "attention_2"]
  assert paths == [with_metrics / "figures" / f"{name}.png" for name in names]
  assert all(path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for path in paths)


def test_models_without_attention_have_curves(with_metrics):
  paths = run_figures.draw_figures(with_metrics, FakeTranslator(has_attention=False))
  assert [path.name for path in paths] == ["training_curves.png"]
  with pytest.raises(ValueError, match="translation must have attention, got none"):
    run_figures.draw_translation(with_metrics, SOURCE, ("the",), Translation("il", ("il",), -1.0, None))


def test_failed_figures_are_skipped(with_metrics, monkeypatch, capsys):
  monkeypatch.setattr(run_figures.figures, "training_curves", lambda *_: 1 / 0)
  paths = run_figures.draw_figures(with_metrics, FakeTranslator())
  assert [path.name for path in paths] == ["attention_0.png", "attention_1.png", "attention_2.png"]
  path = with_metrics / "figures" / "training_curves.png"
  warning = f"warning: could not draw {path}: ZeroDivisionError: division by zero\n"
  assert capsys.readouterr().err == warning


@pytest.mark.parametrize(
  ("source", "columns", "is_truncated"),
  [
    (EXAMPLES[1].source, ["she", "sees", "l'", "ami", "</s>"], False),
    (("the", "cat"), ["the", "cat (unknown)", "</s>"], True),  # truncated, without EOS
    (("x" * 100_000,), ["x" * 21 + "… (unknown)", "</s>"], False),
  ],
)
def test_translation_maps_have_labels(source, columns, is_truncated, tmp_path, monkeypatch):
  rows = ["il", "gatto", *([] if is_truncated else ["</s>"])]
  weights = np.full((len(rows), len(columns)), 1 / len(columns))
  drawn = []
  monkeypatch.setattr(
    run_figures.figures, "try_to_save", lambda draw, path: drawn.append((path, draw())) or True
  )
  translation = Translation("il gatto", ("il", "gatto"), -1.0, weights, is_truncated)
  assert run_figures.draw_translation(tmp_path / "map.png", SOURCE, source, translation)
  ((path, figure),) = drawn
  assert path == tmp_path / "map.png"
  axes = figure.axes[0]
  assert [label.get_text() for label in axes.get_xticklabels()] == columns
  assert [label.get_text() for label in axes.get_yticklabels()] == rows


def test_heads_are_written(tmp_path):
  decoder = np.random.default_rng(0).uniform(0, 0.5, (1, 2, 3, 4))
  encoder = np.random.default_rng(1).uniform(0, 0.5, (3, 2, 4, 4))
  heads = Heads(("the", "cat", "sees"), ("ciao", "a"), encoder, decoder)
  paths = run_figures.draw_heads(tmp_path, FakeTranslator(), heads)
  assert [path.name for path in paths] == ["heads.npz", "decoder_heads.png", "encoder_heads.png"]
  with np.load(paths[0]) as arrays:
    np.testing.assert_array_equal(arrays["decoder"], decoder)
    np.testing.assert_array_equal(arrays["encoder"], encoder)
    assert arrays["source"].tolist() == ["the", "cat", "sees"]
    assert arrays["target"].tolist() == ["ciao", "a"]
  many = heads._replace(decoder=np.full((1, 9999, 3, 4), 0.1))
  paths = run_figures.draw_heads(tmp_path, FakeTranslator(), many)
  assert [path.name for path in paths] == ["heads.npz", "encoder_heads.png"]
  assert (
    run_figures.draw_heads(tmp_path / "none", FakeTranslator(), Heads(("the",), ("ciao",), None, None)) == []
  )
