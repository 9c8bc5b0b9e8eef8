"""Tests of experiments/evaluation/evaluate.py."""

import numpy as np
import pytest

from experiments.data.task import Example
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import Vocabulary
from experiments.evaluation import metrics
from experiments.evaluation.evaluate import evaluate
from experiments.inference.translator import PairScore, Translation


class LetterTask:
  """A task with letters as words."""

  source = TextProcessor(WordTokenizer(), Vocabulary(tuple("abcde")), lowercase=True)
  target = TextProcessor(WordTokenizer(), Vocabulary(tuple("vwxyz")), lowercase=True)


FIRST = Example(("a", "b"), ("x", "y"), frozenset({(0, 0), (1, 1)}), "source", "x y")
SECOND = Example(("c",), ("z", "v", "w"), frozenset({(2, 0)}), "source", "z v w")
UNALIGNED = Example(("d",), ("z",), None, "source", "z")
LONG = Example(("e",), tuple("xyzvw"), None, "source", "x y z v w")


class FakeTranslator:
  """A translator with fixed outputs and scores."""

  task = LetterTask()

  def __init__(self):
    first = np.array([[0.5, 0.25, 0.25], [0.75, 0.25, 0.0], [0.0, 0.0, 1.0]])
    second = np.array([[0.0, 1.0], [0.25, 0.75], [0.625, 0.375], [0.0, 1.0]])
    self.outputs = {FIRST.source: ("x", "y"), SECOND.source: ("z", "w"), UNALIGNED.source: ("z",)}
    self.scored = {
      FIRST.source: PairScore(-1.0, 3, first),
      SECOND.source: PairScore(-2.5, 4, second),
      UNALIGNED.source: PairScore(-7.0, 2, np.full((2, 2), 0.5)),
    }

  def n_best(self, sources, *, with_attention):
    outputs = [self.outputs[source] for source in sources]
    return [[Translation(self.task.target.detokenize(tokens), tokens, 0.0, None)] for tokens in outputs]

  def score_tokens(self, pairs, *, with_attention):
    scored = [self.scored[source] for source, _ in pairs]
    return scored if with_attention else [pair._replace(attention=None) for pair in scored]


@pytest.fixture
def translator():
  return FakeTranslator()


def test_metrics_match_hand_computation(translator):
  values = evaluate(translator, [FIRST, SECOND])
  texts, references = ["x y", "z w"], ["x y", "z v w"]
  assert values == {
    "sentences": 2.0,
    "exact_match": 0.5,
    "bleu": metrics.corpus_bleu(texts, references),
    "chrf": metrics.corpus_chrf(texts, references),
    # x, y and EOS; z.
    "token_accuracy": pytest.approx(4 / 7),
    # The mean over all tokens, not over sentences.
    "loss": pytest.approx(3.5 / 7),
    # The predicted links are (0, 0), (1, 0) and (2, 0). The first and the last are correct.
    "alignment_error_rate": pytest.approx(1 - 2 * 2 / (3 + 3)),
    "attention_mass": pytest.approx((0.5 + 0.25 + 0.625) / 3),
  }


def test_custom_metrics_see_attention(translator):
  def largest(translations, examples, scored):
    return max(float(pair.attention.max()) for pair in scored)

  assert evaluate(translator, [UNALIGNED], {"largest": largest})["largest"] == 0.5


def test_alignment_metrics_need_alignments(translator):
  values = evaluate(translator, [FIRST, UNALIGNED])
  assert values["attention_mass"] == pytest.approx((0.5 + 0.25) / 2)
  assert values["loss"] == pytest.approx(8.0 / 5)
  assert values["sentences"] == 2.0


def test_possible_links_have_an_error_rate(translator):
  example = FIRST._replace(alignment=frozenset(), possible=frozenset({(0, 0)}))
  # The predicted links are (0, 0) and (1, 0).
  assert evaluate(translator, [example])["alignment_error_rate"] == pytest.approx(1 - 1 / 2)
  assert "attention_mass" not in evaluate(translator, [example])


@pytest.mark.parametrize(
  "example", [UNALIGNED, UNALIGNED._replace(alignment=frozenset()), FIRST._replace(source=("no", "weights"))]
)
def test_alignment_metrics_may_be_missing(translator, example):
  translator.outputs["no", "weights"] = ("z",)
  translator.scored["no", "weights"] = PairScore(-1.0, 3, None)
  values = evaluate(translator, [example])
  assert not {"alignment_error_rate", "attention_mass"} & set(values)
  assert values["sentences"] == 1.0
  assert values["exact_match"] == (example.target == ("z",))


def test_exact_match_ignores_whitespace(translator):
  assert evaluate(translator, [FIRST._replace(target_text=" x  y ")])["exact_match"] == 1.0


def test_exact_match_compares_texts(translator):
  example = FIRST._replace(target=("l'amico", "c'è"), target_text="l'amico c'è")
  translator.outputs[FIRST.source] = ("l'￭", "amico", "c'￭", "e\u0300")
  values = evaluate(translator, [example])
  assert (values["exact_match"], values["chrf"], values["token_accuracy"]) == (1.0, 100.0, 0.0)


def test_metric_directions_are_correct(translator):
  values = []
  for tokens, loss in (("xyzvw", 5.0), ("xyzvv", 7.0)):
    translator.outputs[LONG.source] = tuple(tokens)
    translator.scored[LONG.source] = PairScore(-loss, 6, None)
    values.append(evaluate(translator, [LONG]))
  better, worse = values
  assert set(metrics.HIGHER_IS_BETTER) == set(better) - {"sentences"}
  assert {name: better[name] > worse[name] for name in metrics.HIGHER_IS_BETTER} == metrics.HIGHER_IS_BETTER
  assert all(better[name] != worse[name] for name in metrics.HIGHER_IS_BETTER)
  # Translations are hypotheses, and true translations are references.
  for name, metric in (("bleu", metrics.corpus_bleu), ("chrf", metrics.corpus_chrf)):
    assert worse[name] == metric(["x y z v v"], ["x y z v w"])
    assert 1.0 < worse[name] < 99.0
