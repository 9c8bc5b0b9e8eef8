"""Tests of experiments/translation/evaluate.py."""

import numpy as np
import pytest

from experiments.tasks import Example
from experiments.text.text_processor import TextProcessor
from experiments.text.tokenizers import WordTokenizer
from experiments.text.vocabularies import Vocabulary
from experiments.translation import metrics
from experiments.translation.evaluate import evaluate
from experiments.translation.translator import PairScore, Translation


class LetterTask:
  """Letters for words."""

  source = TextProcessor(WordTokenizer(), Vocabulary(tuple("abcde")), lowercase=True)
  target = TextProcessor(WordTokenizer(), Vocabulary(tuple("vwxyz")), lowercase=True)


FIRST = Example(("a", "b"), ("x", "y"), frozenset({(0, 0), (1, 1)}), "source", "x y")
SECOND = Example(("c",), ("z", "v", "w"), frozenset({(2, 0)}), "source", "z v w")
UNALIGNED = Example(("d",), ("z",), None, "source", "z")
LONG = Example(("e",), tuple("xyzvw"), None, "source", "x y z v w")


class Table:
  """A translator that finds, and attends to, what a table says of each source."""

  task = LetterTask()

  def __init__(self):
    first = np.array([[0.5, 0.25, 0.25], [0.75, 0.25, 0.0], [0.0, 0.0, 1.0]])
    second = np.array([[0.0, 1.0], [0.25, 0.75], [0.625, 0.375], [0.0, 1.0]])
    self.found = {FIRST.source: ("x", "y"), SECOND.source: ("z", "w"), UNALIGNED.source: ("z",)}
    self.scored = {
      FIRST.source: PairScore(-1.0, 3, first),
      SECOND.source: PairScore(-2.5, 4, second),
      UNALIGNED.source: PairScore(-7.0, 2, np.full((2, 2), 0.5)),
    }

  def n_best(self, sources, *, with_attention):
    found = [self.found[source] for source in sources]
    return [[Translation(self.task.target.detokenize(tokens), tokens, 0.0, None)] for tokens in found]

  def score_tokens(self, pairs, *, with_attention):
    return [self.scored[source] for source, _ in pairs]


@pytest.fixture
def table_driven():
  return Table()


def test_metrics_are_worked_out_by_hand(table_driven):
  values = evaluate(table_driven, [FIRST, SECOND])
  texts, references = ["x y", "z w"], ["x y", "z v w"]
  assert values == {
    "sentences": 2.0,
    "exact_match": 0.5,
    "bleu": metrics.corpus_bleu(texts, references),
    "chrf": metrics.corpus_chrf(texts, references),
    # x, y and the end; z.
    "token_accuracy": pytest.approx(4 / 7),
    # Of all tokens, not the mean of the sentences' means.
    "loss": pytest.approx(3.5 / 7),
    # Found are (0, 0), (1, 0) and (2, 0); the first and the last are right.
    "alignment_error_rate": pytest.approx(1 - 2 * 2 / (3 + 3)),
    "attention_mass": pytest.approx((0.5 + 0.25 + 0.625) / 3),
  }


def test_attention_is_scored_with_alignments(table_driven):
  values = evaluate(table_driven, [FIRST, UNALIGNED])
  assert values["attention_mass"] == pytest.approx((0.5 + 0.25) / 2)
  assert values["loss"] == pytest.approx(8.0 / 5)
  assert values["sentences"] == 2.0


@pytest.mark.parametrize(
  "example", [UNALIGNED, UNALIGNED._replace(alignment=frozenset()), FIRST._replace(source=("no", "weights"))]
)
def test_other_sentences_have_no_attention(table_driven, example):
  table_driven.found["no", "weights"] = ("z",)
  table_driven.scored["no", "weights"] = PairScore(-1.0, 3, None)
  values = evaluate(table_driven, [example])
  assert not {"alignment_error_rate", "attention_mass"} & set(values)
  assert values["sentences"] == 1.0
  assert values["exact_match"] == (example.target == ("z",))


def test_spaces_decide_no_exact_match(table_driven):
  assert evaluate(table_driven, [FIRST._replace(target_text=" x  y ")])["exact_match"] == 1.0


def test_same_texts_of_other_tokens_match(table_driven):
  example = FIRST._replace(target=("l'amico", "c'è"), target_text="l'amico c'è")
  table_driven.found[FIRST.source] = ("l'￭", "amico", "c'￭", "e\u0300")
  values = evaluate(table_driven, [example])
  assert (values["exact_match"], values["chrf"], values["token_accuracy"]) == (1.0, 100.0, 0.0)


def test_checkpoint_metrics_tell_better_ones(table_driven):
  values = []
  for words, loss in (("xyzvw", 5.0), ("xyzvv", 7.0)):
    table_driven.found[LONG.source] = tuple(words)
    table_driven.scored[LONG.source] = PairScore(-loss, 6, None)
    values.append(evaluate(table_driven, [LONG]))
  better, worse = values
  assert set(metrics.HIGHER_IS_BETTER) == set(better) - {"sentences"}
  assert {name: better[name] > worse[name] for name in metrics.HIGHER_IS_BETTER} == metrics.HIGHER_IS_BETTER
  assert all(better[name] != worse[name] for name in metrics.HIGHER_IS_BETTER)
  # BLEU and chrF are of the translations against the true ones.
  for name, metric in (("bleu", metrics.corpus_bleu), ("chrf", metrics.corpus_chrf)):
    assert worse[name] == metric(["x y z v v"], ["x y z v w"])
    assert 1.0 < worse[name] < 99.0
