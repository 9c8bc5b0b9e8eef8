"""The figures of a run, from fixed attention weights."""

import numpy as np
import pytest

from experiments.data.task import Example
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import Vocabulary
from experiments.figures import run_figures
from experiments.inference.translator import Heads, PairScore
from experiments.runs import workdir

pytestmark = pytest.mark.nightly


class FakeTranslator:
  splits = ("test",)
  source = target = TextProcessor(WordTokenizer(), Vocabulary(("the", "cat")), lowercase=True)

  def __init__(self, weights):
    self.task = self
    self.weights = weights

  def examples(self, split, count):
    return [Example(("the", "cat"), ("il", "gatto"), None, "the cat", "il gatto")]

  def score_tokens(self, pairs, *, with_attention=True):
    return [PairScore(-1.0, 3, self.weights) for _ in pairs]


WEIGHTS = [
  (np.full((3, 3), 1 / 3), ["training_curves.png", "attention_0.png"], ""),
  (None, ["training_curves.png"], ""),
  (np.full((3, 3), "no number"), ["training_curves.png"], "warning: could not draw "),
]


@pytest.mark.parametrize(("weights", "names", "warning"), WEIGHTS)
def test_curves_and_maps_are_written(tmp_path, capsys, weights, names, warning):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5})
    metrics.write(10, {"train/loss": 2.0})
  paths = run_figures.draw_figures(tmp_path, FakeTranslator(weights))
  assert paths == [tmp_path / "figures" / name for name in names]
  assert all(path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for path in paths)
  assert capsys.readouterr().err.startswith(warning)


def test_heads_are_written(tmp_path):
  rng = np.random.default_rng(0)
  heads = Heads(("the", "cat", "sees"), ("ciao", "a"), rng.random((3, 2, 4, 4)) / 2, rng.random((1, 2, 3, 4)))
  paths = run_figures.draw_heads(tmp_path, FakeTranslator(None), heads)
  assert [path.name for path in paths] == ["heads.npz", "decoder_heads.png", "encoder_heads.png"]
  with np.load(paths[0]) as arrays:
    for name, value in heads._asdict().items():
      np.testing.assert_array_equal(arrays[name], value)
  too_many = heads._replace(decoder=np.full((1, 9999, 3, 4), 0.1))
  paths = run_figures.draw_heads(tmp_path, FakeTranslator(None), too_many)
  assert [path.name for path in paths] == ["heads.npz", "encoder_heads.png"]
