"""Unknown words in translations, and words that a first run did not have."""

import jax
import numpy as np
import pytest
from helpers import scripts

from experiments.cli.errors import DataError
from experiments.data.text_processor import TextProcessor
from experiments.inference.unknown_words import read_dictionary, replace_unknown
from experiments.runs import load

OPTIONS = {"lowercase": True, "min_count": 1, "vocabulary_size": 0}
LANGUAGE = TextProcessor.learn(["the old house."] * 2, tokenization="word", subword_model="bpe", **OPTIONS)


def test_unknown_words_are_replaced_by_hand():
  weights = np.array([[0.1, 0.2, 0.1, 0.6], [0.6, 0.3, 0.05, 0.05], [0.1, 0.3, 0.5, 0.1]])
  tokens, source = ("<unk>", "house", "<unk>"), ("Haus", "alt", "￭.")
  # The largest weight of the first token is at the end of the sentence, which is not a word.
  assert replace_unknown(tokens, weights, source, {}, LANGUAGE) == ("alt", "house", "￭.")
  dictionary = {"alt": "very old.", ".": "!"}
  assert replace_unknown(tokens, weights, source, dictionary, LANGUAGE) == ("very", "old", "￭.", "house", "!")


def test_dictionaries_are_read(tmp_path):
  path = tmp_path / "dictionary.tsv"
  path.write_text("Katze\tcat\nkatze\tkitten\nzwei Wörter\ttwo words\n", "utf-8")
  assert read_dictionary(path, LANGUAGE) == {"katze": "cat", "zwei wörter": "two words"}
  for line in ("cat", "a\tb\tc", "\tb", "a\t "):
    path.write_text(f"x\ty\n{line}\n", "utf-8")
    with pytest.raises(DataError, match=r"dictionary\.tsv:2: expected source TAB target"):
      read_dictionary(path, LANGUAGE)


def test_extended_vocabularies_keep_their_ids():
  extended = LANGUAGE.extended(["a new house", "a new <unk>", "new town"], min_count=2)
  assert extended.vocabulary.words == (*LANGUAGE.vocabulary.words, "new", "a")
  assert LANGUAGE.extended(["the house"], min_count=1) == LANGUAGE
  subwords = TextProcessor.learn(["abc def"], tokenization="subword", subword_model="bpe", **OPTIONS)
  assert subwords.extended(["xyz"], min_count=1) == subwords


@pytest.mark.exhaustive
def test_fine_tuning_and_replacement(tmp_path):
  rng = np.random.default_rng(0)
  words = {"a": "uno", "b": "due", "c": "tre", "d": "quattro"}

  def write(name, known, count):
    lines = [rng.choice(list(known), 3) for _ in range(count)]
    text = "".join(f"{' '.join(line)}\t{' '.join(words[word] for word in line)}\n" for line in lines)
    (tmp_path / name).write_text(text, "utf-8")

  write("first.tsv", "abc", 60)
  write("second.tsv", "abcd", 60)

  def train(folder, file, *flags):
    return scripts.run(
      "train",
      "--config=configs/parallel_text.py",
      f"--workdir={folder}",
      *(f"--config.data.{split}_file={tmp_path / file}" for split in ("train", "validation")),
      *("--config.data.tokenization=word", "--config.data.num_buckets=1", "--config.train.num_train_steps=2"),
      *("--config.train.batch_size=8", "--config.model.embed_dim=4", "--config.model.features=6"),
      *("--config.train.learning_rate=1e-9", "--config.evaluation.max_decode_length=6"),
      *flags,
    )

  first, second = tmp_path / "one", tmp_path / "two"
  assert train(first, "first.tsv").code == 0
  tuned = train(second, "second.tsv", f"--config.init_from={first}")
  assert tuned.code == 0, tuned.errors
  assert "vocabularies extended by 1 source word and 1 target word with new embeddings" in tuned.output
  before, after = load(first), load(second)
  for side in ("source", "target"):
    old, new = (getattr(translator.task, side).vocabulary.words for translator in (before, after))
    assert new == (*old, {"source": "d", "target": "quattro"}[side])

  pairs = zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True)
  extended = 0
  for old, new in pairs:
    extended += old.shape != new.shape
    np.testing.assert_allclose(np.asarray(new)[tuple(map(slice, old.shape))], old, atol=1e-6)
  assert extended >= 3 and f"loaded {len(jax.tree.leaves(after.params))} of" in tuned.output
  again = train(second, "second.tsv", f"--config.init_from={first}")
  assert again.code == 0 and "extended" not in again.output
  other = train(tmp_path / "three", "first.tsv", f"--config.init_from={first}", "--config.model.features=7")
  assert "not loaded" in other.output

  # A model that has learned only unknown words.
  unknown = tmp_path / "unknown"
  (tmp_path / "third.tsv").write_text("a b\tx <unk>\n" * 20, "utf-8")
  flags = "--config.train.num_train_steps=60", "--config.train.learning_rate=0.05"
  assert train(unknown, "third.tsv", *flags).code == 0
  text = "--text=a b"
  plain = scripts.run("translate", f"--workdir={unknown}", text).output
  assert plain == "x <unk>\n"
  attention = load(unknown).translate(["a b"])[0].attention
  expected = "ab"[int(np.argmax(attention[1, :2]))]
  replaced = scripts.run("translate", f"--workdir={unknown}", text, "--replace_unknown").output
  assert replaced == f"x {expected}\n"
  (tmp_path / "words.tsv").write_text("a\tuno\nb\tdue\n", "utf-8")
  dictionary = f"--dictionary={tmp_path / 'words.tsv'}"
  replaced = scripts.run("translate", f"--workdir={unknown}", text, "--replace_unknown", dictionary).output
  assert replaced == f"x {words[expected]}\n"
  refused = scripts.run("translate", f"--workdir={unknown}", text, dictionary)
  assert refused.code != 0 and "--dictionary needs --replace_unknown" in refused.errors
