"""Evaluation of a translator, and its reports, with fixed outputs and scores."""

import numpy as np
import pytest

from experiments.data.task import Example
from experiments.evaluation import metrics, reporting
from experiments.evaluation.evaluate import evaluate
from experiments.inference.translator import PairScore, Translation

FIRST = Example(("a", "b"), ("x", "y"), frozenset({(0, 0), (1, 1)}), "a b", "x y")
SECOND = Example(("c",), ("z", "v", "w"), frozenset({(2, 0)}), "c", "z v w")
UNALIGNED = Example(("d", "d", "d"), ("z",), None, "d d d", "z")
LONG = Example(tuple("e" * 61), tuple("xyzvw"), None, "e " * 60 + "e", "x y z v w")


class FakeTranslator:
  """A translator and its task, with a table of source -> (output, loss, attention weights)."""

  splits = ("validation", "test")

  def __init__(self):
    self.task = self
    first = np.array([[0.5, 0.25, 0.25], [0.75, 0.25, 0.0], [0.0, 0.0, 1.0]])
    second = np.array([[0.0, 1.0], [0.25, 0.75], [0.625, 0.375], [0.0, 1.0]])
    self.table = {
      FIRST.source: (("x", "y"), 1.0, first),
      SECOND.source: (("z", "w"), 2.5, second),
      UNALIGNED.source: (("z",), 7.0, np.full((2, 4), 0.25)),
      LONG.source: (LONG.target, 5.0, None),
    }

  def examples(self, split, count):
    examples = [FIRST, SECOND, UNALIGNED, LONG] if split == "validation" else [SECOND]
    return examples[:count] if count else examples

  def n_best(self, sources, *, with_attention):
    outputs = [self.table[source][0] for source in sources]
    return [[Translation(" ".join(tokens), tokens, 0.0, None)] for tokens in outputs]

  def score_tokens(self, pairs, *, with_attention):
    rows = [(self.table[source], len(target) + 1) for source, target in pairs]
    return [
      PairScore(-loss, count, weights if with_attention else None) for (_, loss, weights), count in rows
    ]


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
    assert translations[0].tokens == examples[0].target == ("z",)
    return max(float(pair.attention.max()) for pair in scored)

  assert evaluate(translator, [UNALIGNED], {"largest": largest})["largest"] == 0.25


def test_alignment_metrics_need_links(translator):
  values = evaluate(translator, [FIRST, UNALIGNED])
  assert values["attention_mass"] == pytest.approx((0.5 + 0.25) / 2)
  assert values["loss"] == pytest.approx(8.0 / 5)
  possible = FIRST._replace(alignment=frozenset(), possible=frozenset({(0, 0)}))
  values = evaluate(translator, [possible])
  # The predicted links are (0, 0) and (1, 0).
  assert values["alignment_error_rate"] == pytest.approx(1 - 1 / 2)
  assert "attention_mass" not in values
  no_weights = LONG._replace(alignment=frozenset({(0, 0)}))
  for example in (UNALIGNED, no_weights):
    values = evaluate(translator, [example])
    assert not {"alignment_error_rate", "attention_mass"} & set(values)
    assert (values["sentences"], values["exact_match"]) == (1.0, 1.0)


def test_exact_match_compares_texts(translator):
  example = FIRST._replace(target=("l'amico", "c'è"), target_text=" l'amico  c'è ")
  translator.table[FIRST.source] = (("l'amico", "c'e\u0300"), 1.0, None)
  values = evaluate(translator, [example])
  assert (values["exact_match"], values["chrf"], values["token_accuracy"]) == (1.0, 100.0, 1.0)


def test_metric_directions_are_correct(translator):
  better = evaluate(translator, [LONG])
  translator.table[LONG.source] = (tuple("xyzvv"), 7.0, None)
  worse = evaluate(translator, [LONG])
  assert set(metrics.HIGHER_IS_BETTER) == set(better) - {"sentences"}
  assert {name: better[name] > worse[name] for name in metrics.HIGHER_IS_BETTER} == metrics.HIGHER_IS_BETTER
  # Translations are hypotheses, and true translations are references.
  assert worse["bleu"] == metrics.corpus_bleu(["x y z v v"], ["x y z v w"])
  assert worse["chrf"] == metrics.corpus_chrf(["x y z v v"], ["x y z v w"])


def test_all_splits_are_evaluated(translator):
  results = reporting.evaluate_splits(translator, 2, {"one": lambda *_: 1.0})
  assert results == {
    "validation": evaluate(translator, [FIRST, SECOND]) | {"one": 1.0},
    "test": evaluate(translator, [SECOND]) | {"one": 1.0},
  }
  assert reporting.evaluate_splits(translator, 0)["validation"]["sentences"] == 4


def test_tables_have_dashes_for_missing_values():
  scores = {"exact_match": 1.0, "bleu": 100.0, "chrf": 100.0, "loss": 1.0, "alignment_error_rate": 0.0625}
  results = {
    "test": {"loss": 0.12345, "sentences": 1000.0, "exact_match": 0.5, "bleu": 61.25, "chrf": 70.0},
    "composition": {"sentences": 20.0, **scores, "custom": 0.5},
  }
  assert reporting.table(results).splitlines() == [
    "split        sentences  exact_match   bleu   chrf    loss  alignment_error_rate  custom",
    "test             1,000        0.500   61.2   70.0  0.1235                     -       -",
    "composition         20        1.000  100.0  100.0  1.0000                 0.062  0.5000",
  ]


def test_translations_are_printed(translator, capsys):
  translator.table[SECOND.source] = (("z\x1b[2J",), 1.0, None)
  translator.table[FIRST.source] = (("x", " y"), 1.0, None)  # equal to the reference but for the space
  reporting.show_translations(translator)
  # The longest source that fits comes first. Control characters are escaped.
  assert capsys.readouterr().out.strip("\n").split("\n\n") == [
    "  source       d d d\n  translation  z\n  (correct)",
    "  source       a b\n  translation  x  y\n  (correct)",
    "  source       c\n  translation  z\\x1b[2J\n  reference    z v w",
  ]
