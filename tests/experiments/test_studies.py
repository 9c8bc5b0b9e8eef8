"""Studies: their runs are possible, their pages are made of stored numbers, and these are in the project."""

import dataclasses
import importlib
import pathlib
import pkgutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.fixtures import always

import attention
from configs import base
from experiments import studies as folder
from experiments.cli.config_fields import flat
from experiments.runs import workdir
from experiments.studies import alignment, analysis, explanation, fixed_vector, scan_lengths
from experiments.tasks import Example
from experiments.text.batches import make_batch
from experiments.translation import compare, sweep

NAMES = sorted(module.name for module in pkgutil.iter_modules(folder.__path__) if module.name != "analysis")
FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "findings"
studies = pytest.mark.parametrize("name", NAMES)


def runs_of(name):
  study = importlib.import_module(f"experiments.studies.{name}")
  return study, sweep.make_runs(study.get_config(), study.get_sweep())


@studies
def test_runs_are_possible_with_five_seeds(name):
  study, runs = runs_of(name)
  seeds = {}
  for run in runs:
    values = flat(run.config)
    seeds.setdefault(str({**values, "seed": 0}), set()).add(values["seed"])
  assert min(map(len, seeds.values())) >= getattr(study, "FEWEST_SEEDS", 5)


@studies
def test_pages_are_of_stored_numbers(name, tmp_path):
  study, runs = runs_of(name)
  stored = analysis.read(FOLDER / f"{name}.csv")
  paths = analysis.write_page(tmp_path, name, study, stored)
  assert all((FOLDER / path.name).exists() for path in paths)
  assert (FOLDER / f"{name}.md").read_text("utf-8") == paths[-1].read_text("utf-8")
  # These are of the runs that the study has now.
  digests = {run.name: analysis.digest(run.config) for run in runs}
  for row in stored:
    assert row["config"] is None or row["config"] == digests[row["run"]], row["run"]


@studies
@pytest.mark.parametrize("step", always(3, of=(0, 3)))
def test_pages_of_unfinished_runs_are_written(name, step, tmp_path):
  stored = analysis.read(FOLDER / f"{name}.csv")
  paths = analysis.write_page(tmp_path, name, runs_of(name)[0], stored[::step] if step else [])
  assert "So far" in paths[-1].read_text("utf-8")


def test_rows_are_read_as_written(tmp_path):
  same = {"config": "1234e567", "model.attention": "additive", "train.train_eos": True, "seed": 0}
  rows = [
    {"run": "a", **same, "test/bleu": 40.125},
    {"run": "b", **same, "train.train_eos": False, "other/bleu": 1e-7, "size/parameters": 12345678},
  ]
  analysis.write(tmp_path / "new" / "rows.csv", rows)
  names = dict.fromkeys([*rows[0], *rows[1]])
  assert analysis.read(tmp_path / "new" / "rows.csv") == [
    {name: row.get(name) for name in names} for row in rows
  ]
  assert analysis.read(tmp_path / "none.csv") == []


def test_runs_are_chosen_by_fields():
  runs = compare.Runs(
    {"run": f"{kind} {seed}", "model.attention": kind, "seed": seed, "test/bleu": 10.0 * seed}
    for kind in ("additive", "none")
    for seed in (1, 2)
  )
  assert runs.of(attention="none", seed=2).values("test/bleu") == [20.0]
  assert runs.of(attention="local").values("test/bleu") == []
  assert runs.values("test/chrf") == []
  groups = {kind: runs.of(attention=kind) for kind in ("additive", "none")}
  panel = {"additive": [10.0, 20.0], "none": [10.0, 20.0]}
  assert compare.panels(groups, {"BLEU": "test/bleu"}) == {"BLEU": panel}


def finish(folder, name, config, bleu):
  """Makes a folder what it is when a run has ended."""
  (folder / name).mkdir()
  workdir.write_config(folder / name, dataclasses.asdict(config))
  workdir.write_json(folder / name / "results.json", {"test": {"bleu": bleu}})


def test_finished_runs_are_collected_once(tmp_path):
  runs = sweep.make_runs(base.Config(), {"model.attention": ["additive", "none"], "seed": [0, 1]})
  for run in runs[:3]:
    finish(tmp_path, run.name, run.config, 40.0 + run.config.seed)
  stored = [
    {"run": runs[0].name, "config": analysis.digest(runs[0].config), "test/bleu": 7.0},
    {"run": runs[1].name, "config": "of another version of the study", "test/bleu": 8.0},
    {"run": "renamed", "config": analysis.digest(runs[3].config), "model.attention": 3, "test/bleu": 9.0},
    {"run": "another program's", "config": None, "test/bleu": 6.0},
  ]
  rows = analysis.collect(tmp_path, runs, stored, measure=None)
  assert [(row["run"], row["model.attention"], row["seed"], row["test/bleu"]) for row in rows] == [
    (runs[0].name, "additive", 0, 7.0),  # stored, and not measured again
    (runs[1].name, "additive", 1, 41.0),
    (runs[2].name, "none", 0, 40.0),
    (runs[3].name, "none", 1, 9.0),  # its folder is gone
  ]
  assert analysis.collect(tmp_path, runs[:2], rows) == [
    {k: v for k, v in row.items() if k != "model.attention"} for row in rows[:2]
  ]


def test_runs_of_other_configs_are_refused(tmp_path):
  (run,) = sweep.make_runs(base.Config(), {"seed": [0]})
  finish(tmp_path, run.name, base.Config(model=base.Model(features=16)), 40.0)
  stored = [{"run": run.name, "config": analysis.digest(run.config), "test/bleu": 7.0}]
  for rows in ([], stored):
    with pytest.raises(workdir.WorkdirError, match=r"another config: model.features 16 \(here 128\)"):
      analysis.collect(tmp_path, [run], rows)


def test_digests_tell_configs_apart():
  configs = [base.Config(), base.Config(seed=1), base.Config(model=base.Model(features=64))]
  assert len({analysis.digest(config) for config in configs}) == 3
  assert analysis.digest(base.Config()) == analysis.digest(base.Config())


def test_weights_are_shifted():
  weights = np.arange(6.0).reshape(3, 2)
  assert alignment._shifted(weights, 1).tolist() == [[2, 3], [4, 5], [0, 0]]
  assert alignment._shifted(weights, -1).tolist() == [[0, 0], [0, 1], [2, 3]]
  assert alignment._shifted(weights, 0).tolist() == weights.tolist()


def test_words_are_truly_linked_once():
  pair = alignment.sentence_sampler.pair(seed=0, split="test", index=0)
  weights = alignment._one_link(pair)
  assert weights.sum() == len(pair.target)
  for t, s in zip(*np.nonzero(weights), strict=True):
    assert (t, s) in pair.alignment or all(linked != t for linked, _ in pair.alignment)


def test_aligners_are_scored_on_test_sentences(tmp_path, monkeypatch):
  # It says of each sentence that its first source word translates the second, and in reverse that its second
  # words translate each other.
  program = tmp_path / "eflomal-align"
  program.write_text(
    """#!/bin/sh
set -e
[ $(wc -l < "$2") -gt 1000 ] && sed 's/.*/0-1 /' "$2" > "$6" && sed 's/.*/1-1 0-1/' "$4" > "$8"
""",
    "utf-8",
  )
  program.chmod(0o755)
  monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
  monkeypatch.setattr(
    alignment, "get_config", lambda: base.Config(train=base.Train(num_train_steps=1, batch_size=3))
  )
  pairs = [alignment.sentence_sampler.pair(seed=0, split="test", index=i) for i in range(1000)]
  total = sum(len(pair.alignment) for pair in pairs)
  right = [sum(link in pair.alignment for pair in pairs) for link in ((1, 0), (1, 1))]
  assert alignment._eflomal() == {
    "forward": pytest.approx(1 - 2 * right[0] / (total + 1000)),
    "reverse": pytest.approx(1 - 2 * sum(right) / (total + 2000)),
    "both": pytest.approx(1 - 2 * right[0] / (total + 1000)),
  }


def test_p_values_count_permutations():
  # Of the 10 ways to part 1, 2, 3, 4 and 10 into three and two, in this one the means differ most.
  assert analysis.p_value([1.0, 2.0, 3.0], [4.0, 10.0]) == pytest.approx(0.1)
  assert analysis.p_value([4.0, 10.0], [1.0, 2.0, 3.0]) == pytest.approx(0.1)
  far, near = [0.1, 0.2, 0.3, 0.4], [0.15, 0.25, 0.35, 0.45]
  assert analysis.beside([value + 9 for value in far], far).endswith("*")
  assert not analysis.beside(near, far).endswith("*")
  assert not analysis.beside([9.0, 9.1, 9.2], [0.1, 0.2, 0.3]).endswith("*")  # too few to tell


class Told:
  """A translator of commands that are numbers, which says what is given."""

  def __init__(self, examples, said, endless=()):
    self.task = types.SimpleNamespace(examples=lambda split, count: examples)
    self._said, self._endless = said, endless

  def with_search(self, *, ends):
    assert not ends
    return Told(self.task.examples("test", 0), self._endless)

  def n_best(self, sources, *, with_attention):
    return [[types.SimpleNamespace(tokens=tuple(self._said[int(source[0])]))] for source in sources]

  def translate(self, texts):
    return [types.SimpleNamespace(text=self._said[int(text)]) for text in texts]


def numbered(targets):
  return [
    Example((str(i),), tuple(target), None, source_text=str(i), target_text=target)
    for i, target in enumerate(targets)
  ]


def test_early_ends_are_no_wrong_actions():
  said = "abc", "ab", "ac", "abcd", ""  # right, ends early, wrong, runs on, ends at once
  endless = "abcde", "abccc", "acbcc", "abcd", "xbcde"
  assert scan_lengths.measure(Told(numbered(["abc"] * 5), said, endless)) == {
    "test/ends_early": 0.4,
    "told/exact_match": 0.6,
  }


def test_sentences_are_scored_by_length():
  examples, bands = numbered("abcd"), [(3, 5), (6, 8), (9, 9)]
  metrics = {"match": lambda texts, references: float(texts == references)}
  found = fixed_vector.by_length(Told(examples, "abxd"), examples, [3, 5, 6, 9], bands, metrics)
  assert found == {"3-5 words/match": 1.0, "6-8 words/match": 0.0, "9-9 words/match": 1.0}


def test_weights_left_keep_their_sum():
  weights = jnp.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
  is_left = jnp.array([[False, True, True], [False, True, True]])
  left = explanation._left(weights, is_left)
  np.testing.assert_allclose(left, [[0, 0.6, 0.4], [0, 0.5, 0.5]], rtol=1e-5)


def test_weights_are_shuffled_within_sentences():
  weights = jnp.array([[0.1, 0.2, 0.7, 0.0, 0.0], [0.1, 0.2, 0.3, 0.25, 0.15]])
  is_real = jnp.array([[True, True, True, False, False], [True] * 5])
  orders = set()
  for seed in range(50):
    shuffled = np.asarray(explanation._shuffled(weights, is_real, jax.random.key(seed)))
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(weights))
    np.testing.assert_array_equal(shuffled[0, 3:], 0.0)
    orders.add(tuple(shuffled[0, :3].tolist()))
  assert len(orders) == 6


def test_distances_are_worked_out_by_hand():
  one, other = jnp.array([[1.0, 0.0], [0.5, 0.5]]), jnp.array([[0.0, 1.0], [0.25, 0.75]])
  np.testing.assert_allclose(explanation._distance(one, other), [1.0, 0.25])
  # Of distributions without a common word, the logarithm of 2; of weights, as shares of their sum.
  p, q, m = np.array([0.5, 0.5]), np.array([0.25, 0.75]), np.array([0.375, 0.625])
  by_hand = np.log(2), (np.sum(p * np.log(p / m)) + np.sum(q * np.log(q / m))) / 2
  np.testing.assert_allclose(explanation._divergence(one, other), by_hand, rtol=1e-5)
  np.testing.assert_allclose(explanation._divergence(one, 4 * one), 0.0, atol=1e-6)


@pytest.mark.parametrize("linked", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_weights_on_linked_words_are_taken(linked):
  encoder = attention.RecurrentEncoder(vocabulary_size=11, embed_dim=5, features=7)
  model = attention.Seq2Seq(encoder, attention.RecurrentDecoder(13, embed_dim=5, features=7))
  batch = make_batch([[4, 5, 6], [7, 8]], [[4, 5], [6]], source_length=4, target_length=3)
  batch = batch._replace(links=np.full((2, 3, 4), linked))
  params = model.init(jax.random.key(0), batch.sources, batch.source_lengths, batch.inputs)["params"]
  params = jax.tree.map(lambda leaf: leaf + jax.random.normal(jax.random.key(1), leaf.shape), params)
  found = explanation._measured(params, batch, jax.random.key(0), model=model)
  # With links to all words, what is on them is all; with links to none it is nothing.
  same, other = ("alone", "without") if linked else ("without", "alone")
  np.testing.assert_allclose(found[f"tvd/{same}"], 0.0, atol=1e-5)
  np.testing.assert_allclose(found[f"p/{same}"], found["p/own"], atol=1e-5)
  assert np.all(np.asarray(found[f"tvd/{other}"]) > 1e-3)
  assert np.all(np.asarray(found["tvd/shuffled"]) > 0)


# The configs that stored numbers are of are known by what they change of these.
DEFAULTS = {
  "train.num_train_steps": 900,
  "train.batch_size": 128,
  "train.learning_rate": 8e-3,
  "train.schedule": "cosine",
  "train.warmup_fraction": 0.1,
  "train.grad_clip_norm": 1.0,
  "train.label_smoothing": 0.0,
  "train.ema_decay": 0.0,
  "model.embed_dim": 64,
  "model.features": 128,
  "model.num_layers": 1,
  "model.num_heads": 4,
  "model.mlp_dim": 256,
  "model.dropout_rate": 0.0,
}


def test_stored_numbers_are_of_these_defaults():
  # Where this fails, all studies are to be run again.
  assert flat(base.Config()) == {**flat(base.Config()), **DEFAULTS}
