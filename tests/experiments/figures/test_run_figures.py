"""The figures of a run, from fixed attention weights."""

import numpy as np
import pytest

from experiments.data.task import Example
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import WordTokenizer
from experiments.data.vocabularies import Vocabulary
from experiments.figures import run_figures
from experiments.inference.translator import Heads, PairScore, Translation
from experiments.runs import workdir

pytestmark = pytest.mark.nightly

LANGUAGE = TextProcessor(WordTokenizer(), Vocabulary(("the", "cat")), lowercase=True)


class FakeTranslator:
  """A translator with given attention weights."""

  splits = ("test",)
  source = target = LANGUAGE

  def __init__(self, weights=np.full((3, 3), 1 / 3)):  # noqa: B008 (it is not changed)
    self.task = self
    self.weights = weights

  def examples(self, split, count):
    return [Example(("the", "cat"), ("il", "gatto"), None, "the cat", "il gatto")] * 2

  def score_tokens(self, pairs, *, with_attention=True):
    return [PairScore(-1.0, 3, self.weights) for _ in pairs]


@pytest.fixture
def folder(tmp_path):
  with workdir.MetricsWriter(tmp_path, 0) as metrics:
    metrics.write(5, {"train/loss": 2.5})
    metrics.write(10, {"train/loss": 2.0})
  return tmp_path


def test_curves_and_maps_are_written(folder):
  paths = run_figures.draw_figures(folder, FakeTranslator())
  names = ["training_curves", "attention_0", "attention_1"]
  assert paths == [folder / "figures" / f"{name}.png" for name in names]
  assert all(path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for path in paths)


def test_models_without_attention_have_curves(folder):
  paths = run_figures.draw_figures(folder, FakeTranslator(weights=None))
  assert [path.name for path in paths] == ["training_curves.png"]
  with pytest.raises(ValueError, match="translation must have attention, got none"):
    run_figures.draw_translation(folder, LANGUAGE, ("the",), Translation("il", ("il",), -1.0, None))


def test_failed_figures_are_skipped(folder, capsys):
  paths = run_figures.draw_figures(folder, FakeTranslator(np.full((3, 3), "no number")))
  assert [path.name for path in paths] == ["training_curves.png"]
  warnings = capsys.readouterr().err.splitlines()
  assert len(warnings) == 2
  assert warnings[0].startswith(f"warning: could not draw {folder / 'figures' / 'attention_0.png'}: ")


def test_heads_are_written(tmp_path):
  rng = np.random.default_rng(0)
  encoder, decoder = rng.uniform(0, 0.5, (3, 2, 4, 4)), rng.uniform(0, 0.5, (1, 2, 3, 4))
  heads = Heads(("the", "cat", "sees"), ("ciao", "a"), encoder, decoder)
  paths = run_figures.draw_heads(tmp_path, FakeTranslator(), heads)
  assert [path.name for path in paths] == ["heads.npz", "decoder_heads.png", "encoder_heads.png"]
  with np.load(paths[0]) as arrays:
    np.testing.assert_array_equal(arrays["decoder"], decoder)
    np.testing.assert_array_equal(arrays["encoder"], encoder)
    assert arrays["source"].tolist() == ["the", "cat", "sees"]
    assert arrays["target"].tolist() == ["ciao", "a"]
  too_many = heads._replace(decoder=np.full((1, 9999, 3, 4), 0.1))
  paths = run_figures.draw_heads(tmp_path, FakeTranslator(), too_many)
  assert [path.name for path in paths] == ["heads.npz", "encoder_heads.png"]
  no_weights = Heads(("the",), ("ciao",), None, None)
  assert run_figures.draw_heads(tmp_path / "none", FakeTranslator(), no_weights) == []
