"""Tests of experiments/translation/report.py."""

import json

import numpy as np
import pytest

from experiments.runs import workdir
from experiments.tasks import Example
from experiments.text.languages import Language
from experiments.text.tokenizers import Words
from experiments.text.vocabularies import Vocabulary
from experiments.translation import report
from experiments.translation.translator import Heads, Scored, Translation

EXAMPLES = [
  Example(("the", "cat"), ("il", "gatto"), frozenset({(0, 0), (1, 1)}), "the cat", "il gatto"),
  Example(
    ("she", "sees", "l'", "ami"), ("vede", "l'", "amico"), frozenset(), "she sees l'ami", "vede l'amico"
  ),
  Example(("hi",), ("ciao",), None, "hi", "ciao"),
]


SOURCE = Language(Words(), Vocabulary(("the", "she", "sees", "l'", "ami")), lowercase=True)


class FakeTask:
  """Three sentences in each of two splits."""

  splits = ("validation", "test")
  source = SOURCE
  target = Language(Words(), Vocabulary(("ciao",)), lowercase=True)

  def __init__(self):
    self.asked = []

  def examples(self, split, count):
    self.asked.append((split, count))
    return EXAMPLES[:count] if count else EXAMPLES


class FakeTranslator:
  """Translates by a table; its attention is even, or none at all."""

  def __init__(self, *, attends=True):
    self.task = FakeTask()
    self._attends = attends

  def n_best(self, sources, *, with_attention=True):
    # One has other tokens than the true translation, but the same text.
    table = {("hi",): ("ciao",), ("the", "cat"): ("la", "gatta")}
    found = [table.get(source, ("vede", "l'amico")) for source in sources]
    return [[Translation(" ".join(tokens), tokens, -1.0, None)] for tokens in found]

  def score_tokens(self, pairs, *, with_attention=True):
    return [Scored(-1.0, len(target) + 1, self._weights(source, target)) for source, target in pairs]

  def _weights(self, source, target):
    shape = len(target) + 1, len(source) + 1
    return np.full(shape, 1 / shape[1]) if self._attends else None


def test_a_table_has_a_line_for_each_split_and_a_dash_for_what_is_missing():
  results = {
    "test": {"loss": 0.12345, "sentences": 1000.0, "exact_match": 0.5, "bleu": 61.25, "chrf": 70.0},
    "composition": {
      "sentences": 20.0,
      "exact_match": 1.0,
      "bleu": 100.0,
      "chrf": 100.0,
      "loss": 1.0,
      "alignment_error_rate": 0.0625,
    },
  }
  assert report.table(results).splitlines() == [
    "split        sentences  exact_match   bleu   chrf    loss  alignment_error_rate",
    "test             1,000        0.500   61.2   70.0  0.1235                     -",
    "composition         20        1.000  100.0  100.0  1.0000                 0.062",
  ]


@pytest.mark.parametrize("count", [2, 0])
def test_every_split_is_evaluated_on_as_many_sentences_as_asked(monkeypatch, count):
  def evaluate(translator, examples, others):
    return {"sentences": float(len(examples))}

  monkeypatch.setattr(report, "evaluate", evaluate)
  translator = FakeTranslator()
  results = report.evaluate_splits(translator, count)
  number = float(count or 3)
  assert results == {"validation": {"sentences": number}, "test": {"sentences": number}}
  assert translator.task.asked == [("validation", count), ("test", count)]


def test_results_map_split_to_metric_to_value(tmp_path):
  results = {"test": {"exact_match": 0.99, "bleu": 98.5}}
  report.write_results(tmp_path, results)
  assert json.loads((tmp_path / "results.json").read_text("utf-8")) == results


def test_translations_are_shown_as_text_with_the_reference_where_it_differs(capsys):
  report.show_translations(FakeTranslator())
  blocks = capsys.readouterr().out.strip("\n").split("\n\n")
  # The longest source first.
  assert [[line.strip() for line in block.splitlines()] for block in blocks] == [
    ["source       she sees l'ami", "translation  vede l'amico", "(correct)"],
    ["source       the cat", "translation  la gatta", "reference    il gatto"],
    ["source       hi", "translation  ciao", "(correct)"],
  ]


def _with_metrics(folder):
  with workdir.MetricsWriter(folder, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5})
    metrics.write(10, {"train/loss": 2.0})
  return folder


def test_the_figures_of_a_run_are_png_files(tmp_path):
  paths = report.draw_figures(_with_metrics(tmp_path), FakeTranslator())
  names = ["training_curves", "attention_0", "attention_1", "attention_2"]
  assert paths == [tmp_path / "figures" / f"{name}.png" for name in names]
  for path in paths:
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_without_attention_only_the_curves_are_drawn(tmp_path):
  paths = report.draw_figures(_with_metrics(tmp_path), FakeTranslator(attends=False))
  assert [path.name for path in paths] == ["training_curves.png"]


def _labels(axis):
  return [label.get_text() for label in axis.get_ticklabels()]


def test_the_map_of_a_translation_has_its_words_and_both_ends():
  weights = np.full((3, 5), 0.2)
  figure = report.translation_map(
    SOURCE, EXAMPLES[1].source, Translation("il gatto", ("il", "gatto"), -1.0, weights)
  )
  axes = figure.axes[0]
  assert _labels(axes.xaxis) == ["she", "sees", "l'", "ami", "</s>"]
  assert _labels(axes.yaxis) == ["il", "gatto", "</s>"]


def test_the_map_of_a_translation_that_was_cut_has_no_end():
  weights = np.full((2, 3), 1 / 3)
  figure = report.translation_map(
    SOURCE, ("the", "cat"), Translation("il gatto", ("il", "gatto"), -1.0, weights)
  )
  assert _labels(figure.axes[0].yaxis) == ["il", "gatto"]


def test_words_that_the_model_does_not_know_are_marked():
  weights = np.full((1, 3), 1 / 3)
  figure = report.translation_map(SOURCE, ("the", "cat"), Translation("il", ("il",), -1.0, weights))
  assert _labels(figure.axes[0].xaxis) == ["the", "cat (unknown)", "</s>"]


def test_heads_are_written_as_figures_and_arrays(tmp_path):
  decoder = np.random.default_rng(0).uniform(0, 0.5, (1, 2, 3, 4))
  encoder = np.random.default_rng(1).uniform(0, 0.5, (3, 2, 4, 4))
  heads = Heads(("the", "cat", "sees"), ("ciao", "a"), encoder, decoder)
  paths = report.draw_heads(tmp_path, FakeTranslator(), heads)
  assert [path.name for path in paths] == ["heads.npz", "decoder_heads.png", "encoder_heads.png"]
  with np.load(paths[0]) as arrays:
    np.testing.assert_array_equal(arrays["decoder"], decoder)
    np.testing.assert_array_equal(arrays["encoder"], encoder)
    assert arrays["source"].tolist() == ["the", "cat", "sees"]
    assert arrays["target"].tolist() == ["ciao", "a"]
  many = heads._replace(decoder=np.full((1, 9999, 3, 4), 0.1))
  assert [path.name for path in report.draw_heads(tmp_path, FakeTranslator(), many)][1:] == [
    "encoder_heads.png"
  ]
  assert report.draw_heads(tmp_path / "none", FakeTranslator(), Heads(("the",), ("ciao",), None, None)) == []


def test_without_attention_there_is_no_map():
  with pytest.raises(ValueError, match="translation must have attention, got none"):
    report.translation_map(SOURCE, ("the",), Translation("il", ("il",), -1.0, None))


def test_a_long_unknown_word_keeps_its_mark():
  found = Translation("il", ("il",), -1.0, np.full((1, 2), 0.5))
  figure = report.translation_map(SOURCE, ("x" * 100_000,), found)
  assert _labels(figure.axes[0].xaxis) == ["x" * 21 + "… (unknown)", "</s>"]


def test_a_figure_that_fails_leaves_the_others(tmp_path, monkeypatch, capsys):
  def fail(*_, **__):
    raise RuntimeError("no room")

  monkeypatch.setattr(report.figures, "training_curves", fail)
  paths = report.draw_figures(_with_metrics(tmp_path), FakeTranslator())
  assert [path.name for path in paths] == ["attention_0.png", "attention_1.png", "attention_2.png"]
  path = tmp_path / "figures" / "training_curves.png"
  assert capsys.readouterr().err == f"warning: {path} could not be drawn: RuntimeError: no room\n"
