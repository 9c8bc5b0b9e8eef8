"""Weights between words from those between tokens, and gold alignments with possible links."""

import numpy as np
import pytest
from helpers import scripts

from experiments.data.alignments import (
  format_alignment,
  parse_alignment,
  parse_gold,
  word_indices,
  word_weights,
)
from experiments.data.parallel_corpus import SentencePair, format_pair, read_pairs
from experiments.data.text_processor import TextProcessor
from experiments.evaluation import metrics
from experiments.evaluation.metrics import AlignedAttention, alignment_error_rate
from experiments.runs import load

TEXTS = ["The  cat, asleep.", "l'albero più alto", "▁odd 你好吗 words", "a"]
LEARNED = {"lowercase": True, "min_count": 1, "vocabulary_size": 0, "subword_model": "unigram"}


@pytest.mark.parametrize("tokenization", ["word", "character", "subword"])
@pytest.mark.parametrize("text", TEXTS)
def test_each_word_has_its_tokens(tokenization, text):
  language = TextProcessor.learn(TEXTS * 3, tokenization=tokenization, **LEARNED)
  indices, tokens = word_indices(language, text), language.tokenize(text)
  assert len(indices) == len(tokens) and indices == sorted(indices)
  assert set(indices) == set(range(len(text.split())))
  for i, word in enumerate(text.split()):
    own = [token for index, token in zip(indices, tokens, strict=True) if index == i]
    assert language.detokenize(own).replace(" ", "") == word.lower()


def test_weights_by_hand():
  weights = np.array([[0.1, 0.2, 0.4, 0.3], [0.5, 0.1, 0.2, 0.2], [0.0, 0.0, 0.3, 0.7]])
  # The first two targets are one word, as are the last two sources.
  actual = word_weights(weights, [0, 0], [0, 1, 1])
  np.testing.assert_allclose(actual, [[0.3, 0.45, 0.25], [0.0, 0.3, 0.7]])
  random = np.random.default_rng(0).dirichlet(np.ones(6), size=4)
  np.testing.assert_allclose(word_weights(random, [0, 1, 2], [0, 1, 2, 3, 4]), random)
  np.testing.assert_allclose(word_weights(random, [0, 0, 1], [0, 0, 1, 2, 2]).sum(axis=1), 1)


def test_possible_links_are_read_and_written(tmp_path):
  assert parse_gold("0-0 1p2 2p2 2-2") == ({(0, 0), (2, 2)}, {(2, 1)})
  assert format_alignment({(0, 0), (2, 2)}, {(2, 1)}) == "0-0 1p2 2-2"
  with pytest.raises(ValueError, match="expected sure links only"):
    parse_alignment("0-0 1p2")
  path = tmp_path / "gold.tsv"
  pair = SentencePair("the cat, asleep", "il gatto", frozenset({(0, 0)}), frozenset({(1, 1), (1, 3)}))
  assert format_pair(pair).endswith("\t0-0 1p1 3p1")
  path.write_text(format_pair(pair) + "\n", "utf-8")
  assert read_pairs(path, alignment_tokens="words") == [pair]
  path.write_text("the cat, asleep\til gatto\t0-0 1p1 2p1\n", "utf-8")
  assert read_pairs(path, alignment_tokens="whitespace") == [pair]  # without the comma
  assert read_pairs(path, alignment_tokens="unconverted")[0].possible == {(1, 1), (1, 2)}
  path.write_text("the cat\til gatto\t0-0 1p2\n", "utf-8")
  with pytest.raises(ValueError, match="got 1-2"):
    read_pairs(path, alignment_tokens="words")


def test_error_rate_of_possible_links_by_hand():
  weights = np.array([[0.9, 0.1, 0.0, 0.0], [0.1, 0.0, 0.9, 0.0], [0.8, 0.1, 0.1, 0.0], [0.0, 0.0, 0.0, 1.0]])
  # A = (0, 0), (1, 2), (2, 0); S = (0, 0), (1, 1); P = S and (1, 2): 1 - (1 + 2) / (3 + 2).
  sentence = AlignedAttention(weights, {(0, 0), (1, 1)}, {(1, 2)})
  assert alignment_error_rate([sentence]) == pytest.approx(1 - 3 / 5)
  assert alignment_error_rate([sentence._replace(possible=())]) == pytest.approx(1 - 2 / 5)
  with pytest.raises(ValueError, match=r"got \(3, 0\)"):
    alignment_error_rate([sentence._replace(possible={(3, 0)})])


@pytest.mark.exhaustive
def test_align_words_of_a_subword_model(tmp_path):
  rng = np.random.default_rng(0)
  words = [f"{a}{b}{c}" for a in "bcd" for b in "aeo" for c in "lmn"]
  lines = [" ".join(rng.choice(words, 5)) for _ in range(80)]
  gold = "\t0-0 1-1 2p2 3-3 4-4"
  for name in ("train", "validation"):
    (tmp_path / f"{name}.tsv").write_text("".join(f"{line}.\t{line}{gold}\n" for line in lines), "utf-8")
  files = [f"--config.data.{name}_file={tmp_path / name}.tsv" for name in ("train", "validation")]
  folder, path = tmp_path / "run", tmp_path / "validation.tsv"
  small = (
    *("--config.data.vocabulary_size=290", "--config.data.num_buckets=1", "--config.train.num_train_steps=2"),
    *("--config.train.batch_size=8", "--config.model.embed_dim=4", "--config.model.features=6"),
    "--config.evaluation.batch_size=16",
  )
  trained = scripts.run("train", "--config=configs/parallel_text.py", f"--workdir={folder}", *files, *small)
  assert trained.code == 0, trained.errors
  aligned = scripts.run("align", f"--workdir={folder}", f"--input={path}", "--level=word")
  assert aligned.code == 0, aligned.errors
  pairs, translator = read_pairs(path, alignment_tokens="unconverted"), load(folder)
  sentences = []
  for pair, scored, line in zip(
    pairs, translator.score([pair[:2] for pair in pairs]), aligned.output.splitlines(), strict=True
  ):
    weights = word_weights(
      scored.attention,
      word_indices(translator.task.target, pair.target),
      word_indices(translator.task.source, pair.source),
    )
    assert weights.shape == (6, 6)
    assert parse_alignment(line) == metrics.strongest_links(weights)
    sentences.append(AlignedAttention(weights, pair.alignment, pair.possible))
  rate = alignment_error_rate(sentences)
  assert aligned.errors == f"alignment error rate {rate:.4f} (80 pairs with true alignments)\n"
  refused = scripts.run("align", f"--workdir={folder}", f"--input={path}", "--level=word", "--tokens")
  assert refused.code != 0 and "--level=word must not be set with --tokens" in refused.errors
