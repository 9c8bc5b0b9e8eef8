"""Tests of the studies and of their pages."""

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
from experiments.comparison import compare, sweep
from experiments.data.batches import make_batch
from experiments.data.task import Example
from experiments.runs import workdir
from experiments.runs.record import Record, write_record
from experiments.studies import alignment, analysis, explanation, fixed_vector, scan_lengths

NAMES = sorted(module.name for module in pkgutil.iter_modules(folder.__path__) if module.name != "analysis")
FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "findings"
studies = pytest.mark.parametrize("name", NAMES)


def runs_of(name):
  study = importlib.import_module(f"experiments.studies.{name}")
  return study, sweep.make_runs(study.get_config(), study.get_sweep())


@studies
def test_studies_have_enough_seeds(name):
  study, runs = runs_of(name)
  seeds = {}
  for run in runs:
    values = flat(run.config)
    seeds.setdefault(str({**values, "seed": 0}), set()).add(values["seed"])
  assert min(map(len, seeds.values())) >= getattr(study, "MIN_SEEDS", 5)


@studies
def test_pages_are_up_to_date(name, tmp_path):
  study, runs = runs_of(name)
  stored = analysis.read_rows(FOLDER / f"{name}.csv")
  paths = analysis.write_page(tmp_path, name, study, stored)
  assert all((FOLDER / path.name).exists() for path in paths)
  assert (FOLDER / f"{name}.md").read_text("utf-8") == paths[-1].read_text("utf-8")
  # The stored rows belong to the current runs of the study.
  digests = {run.name: analysis.config_digest(run.config) for run in runs}
  for row in stored:
    assert row["config"] is None or row["config"] == digests[row["run"]], row["run"]


@studies
@pytest.mark.parametrize("step", always(3, of=(0, 3)))
def test_unfinished_studies_have_pages(name, step, tmp_path):
  stored = analysis.read_rows(FOLDER / f"{name}.csv")
  paths = analysis.write_page(tmp_path, name, runs_of(name)[0], stored[::step] if step else [])
  assert "runs are finished." in paths[-1].read_text("utf-8")


def test_rows_round_trip(tmp_path):
  same = {"config": "1234e567", "model.attention": "additive", "train.train_eos": True, "seed": 0}
  rows = [
    {"run": "a", **same, "test/bleu": 40.125},
    {"run": "b", **same, "train.train_eos": False, "other/bleu": 1e-7, "size/parameters": 12345678},
  ]
  analysis.write_rows(tmp_path / "new" / "rows.csv", rows)
  names = dict.fromkeys([*rows[0], *rows[1]])
  assert analysis.read_rows(tmp_path / "new" / "rows.csv") == [
    {name: row.get(name) for name in names} for row in rows
  ]
  assert analysis.read_rows(tmp_path / "none.csv") == []


def test_runs_are_filtered_by_fields():
  runs = compare.Runs(
    {"run": f"{kind} {seed}", "model.attention": kind, "seed": seed, "test/bleu": 10.0 * seed}
    for kind in ("additive", "none")
    for seed in (1, 2)
  )
  assert runs.filter(attention="none", seed=2).values("test/bleu") == [20.0]
  assert runs.filter(attention="local").values("test/bleu") == []
  assert runs.values("test/chrf") == []
  groups = {kind: runs.filter(attention=kind) for kind in ("additive", "none")}
  panel = {"additive": [10.0, 20.0], "none": [10.0, 20.0]}
  assert compare.metric_panels(groups, {"BLEU": "test/bleu"}) == {"BLEU": panel}


def finish(folder, name, config, bleu):
  """Creates the folder of a finished run."""
  (folder / name).mkdir()
  write_record(folder / name, Record(config, {}, ""))
  workdir.write_json(folder / name / "results.json", {"test": {"bleu": bleu}})


def test_finished_runs_are_collected_once(tmp_path):
  runs = sweep.make_runs(base.Config(), {"model.attention": ["additive", "none"], "seed": [0, 1]})
  for run in runs[:3]:
    finish(tmp_path, run.name, run.config, 40.0 + run.config.seed)
  stored = [
    {"run": runs[0].name, "config": analysis.config_digest(runs[0].config), "test/bleu": 7.0},
    {"run": runs[1].name, "config": "of another version of the study", "test/bleu": 8.0},
    {
      "run": "renamed",
      "config": analysis.config_digest(runs[3].config),
      "model.attention": 3,
      "test/bleu": 9.0,
    },
    {"run": "another program's", "config": None, "test/bleu": 6.0},
  ]
  rows = analysis.collect_rows(tmp_path, runs, stored, measure=None)
  assert [(row["run"], row["model.attention"], row["seed"], row["test/bleu"]) for row in rows] == [
    (runs[0].name, "additive", 0, 7.0),  # stored, so not measured again
    (runs[1].name, "additive", 1, 41.0),
    (runs[2].name, "none", 0, 40.0),
    (runs[3].name, "none", 1, 9.0),  # stored, without a folder
  ]
  assert analysis.collect_rows(tmp_path, runs[:2], rows) == [
    {k: v for k, v in row.items() if k != "model.attention"} for row in rows[:2]
  ]


def test_different_configs_are_errors(tmp_path):
  (run,) = sweep.make_runs(base.Config(), {"seed": [0]})
  finish(tmp_path, run.name, base.Config(model=base.Model(features=16)), 40.0)
  stored = [{"run": run.name, "config": analysis.config_digest(run.config), "test/bleu": 7.0}]
  for rows in ([], stored):
    with pytest.raises(workdir.WorkdirError, match=r"a different config: model.features 16 \(now 128\)"):
      analysis.collect_rows(tmp_path, [run], rows)


def test_digests_differ_by_config():
  configs = [base.Config(), base.Config(seed=1), base.Config(model=base.Model(features=64))]
  assert len({analysis.config_digest(config) for config in configs}) == 3
  assert analysis.config_digest(base.Config()) == analysis.config_digest(base.Config())


def test_weights_are_shifted_by_rows():
  weights = np.arange(6.0).reshape(3, 2)
  assert alignment._shift(weights, 1).tolist() == [[2, 3], [4, 5], [0, 0]]
  assert alignment._shift(weights, -1).tolist() == [[0, 0], [0, 1], [2, 3]]
  assert alignment._shift(weights, 0).tolist() == weights.tolist()


def test_lower_bound_links_words_once():
  pair = alignment.sentence_sampler.pair(seed=0, split="test", index=0)
  weights = alignment._one_link_per_word(pair)
  assert weights.sum() == len(pair.target)
  for t, s in zip(*np.nonzero(weights), strict=True):
    assert (t, s) in pair.alignment or all(linked != t for linked, _ in pair.alignment)


def test_eflomal_is_scored_on_test_sentences(tmp_path, monkeypatch):
  # A fake aligner. Forward it links source word 0 to target word 1; in reverse it also links word 1 to word
  # 1.
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
  assert alignment._eflomal_error_rates() == {
    "forward": pytest.approx(1 - 2 * right[0] / (total + 1000)),
    "reverse": pytest.approx(1 - 2 * sum(right) / (total + 2000)),
    "both": pytest.approx(1 - 2 * right[0] / (total + 1000)),
  }


def test_p_values_count_permutations():
  # This is the largest difference of means among the 10 splits of 1, 2, 3, 4 and 10 into three and two.
  assert analysis.p_value([1.0, 2.0, 3.0], [4.0, 10.0]) == pytest.approx(0.1)
  assert analysis.p_value([4.0, 10.0], [1.0, 2.0, 3.0]) == pytest.approx(0.1)
  far, near = [0.1, 0.2, 0.3, 0.4], [0.15, 0.25, 0.35, 0.45]
  assert analysis.mean_with_star([value + 9 for value in far], far).endswith("*")
  assert not analysis.mean_with_star(near, far).endswith("*")
  assert not analysis.mean_with_star([9.0, 9.1, 9.2], [0.1, 0.2, 0.3]).endswith(
    "*"
  )  # too few values to be significant


class FakeTranslator:
  """A translator with fixed outputs. Sources are the indices of the outputs."""

  def __init__(self, examples, outputs, no_eos_outputs=()):
    self.task = types.SimpleNamespace(examples=lambda split, count: examples)
    self._outputs, self._no_eos_outputs = outputs, no_eos_outputs

  def with_decode_options(self, *, allow_eos):
    assert not allow_eos
    return FakeTranslator(self.task.examples("test", 0), self._no_eos_outputs)

  def n_best(self, sources, *, with_attention):
    return [[types.SimpleNamespace(tokens=tuple(self._outputs[int(source[0])]))] for source in sources]

  def translate(self, texts):
    return [types.SimpleNamespace(text=self._outputs[int(text)]) for text in texts]


def numbered_examples(targets):
  return [
    Example((str(i),), tuple(target), None, source_text=str(i), target_text=target)
    for i, target in enumerate(targets)
  ]


def test_early_ends_are_counted():
  outputs = "abc", "ab", "ac", "abcd", ""  # right, ends early, wrong, too long, empty
  no_eos_outputs = "abcde", "abccc", "acbcc", "abcd", "xbcde"
  assert scan_lengths.measure(FakeTranslator(numbered_examples(["abc"] * 5), outputs, no_eos_outputs)) == {
    "test/ends_early": 0.4,
    "oracle_length/exact_match": 0.6,
  }


def test_scores_are_split_by_length():
  examples, length_ranges = numbered_examples("abcd"), [(3, 5), (6, 8), (9, 9)]
  metrics = {"match": lambda texts, references: float(texts == references)}
  scores = fixed_vector.by_length(
    FakeTranslator(examples, "abxd"), examples, [3, 5, 6, 9], length_ranges, metrics
  )
  assert scores == {"3-5 words/match": 1.0, "6-8 words/match": 0.0, "9-9 words/match": 1.0}


def test_restricted_weights_keep_their_sum():
  weights = jnp.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
  kept = jnp.array([[False, True, True], [False, True, True]])
  restricted = explanation._restrict(weights, kept)
  np.testing.assert_allclose(restricted, [[0, 0.6, 0.4], [0, 0.5, 0.5]], rtol=1e-5)


def test_shuffles_exclude_padding():
  weights = jnp.array([[0.1, 0.2, 0.7, 0.0, 0.0], [0.1, 0.2, 0.3, 0.25, 0.15]])
  is_real = jnp.array([[True, True, True, False, False], [True] * 5])
  orders = set()
  for seed in range(50):
    shuffled = np.asarray(explanation._shuffle(weights, is_real, jax.random.key(seed)))
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(weights))
    np.testing.assert_array_equal(shuffled[0, 3:], 0.0)
    orders.add(tuple(shuffled[0, :3].tolist()))
  assert len(orders) == 6


def test_distances_match_hand_computation():
  first, second = jnp.array([[1.0, 0.0], [0.5, 0.5]]), jnp.array([[0.0, 1.0], [0.25, 0.75]])
  np.testing.assert_allclose(explanation._total_variation(first, second), [1.0, 0.25])
  # The divergence of disjoint distributions is log 2. Weights are normalized.
  p, q, m = np.array([0.5, 0.5]), np.array([0.25, 0.75]), np.array([0.375, 0.625])
  expected = np.log(2), (np.sum(p * np.log(p / m)) + np.sum(q * np.log(q / m))) / 2
  np.testing.assert_allclose(explanation._jensen_shannon(first, second), expected, rtol=1e-5)
  np.testing.assert_allclose(explanation._jensen_shannon(first, 4 * first), 0.0, atol=1e-6)


@pytest.mark.parametrize("linked", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_weights_are_restricted_to_links(linked):
  encoder = attention.RecurrentEncoder(vocabulary_size=11, embed_dim=5, features=7)
  model = attention.Seq2Seq(encoder, attention.RecurrentDecoder(13, embed_dim=5, features=7))
  batch = make_batch([[4, 5, 6], [7, 8]], [[4, 5], [6]], source_length=4, target_length=3)
  batch = batch._replace(links=np.full((2, 3, 4), linked))
  params = model.init(jax.random.key(0), batch.sources, batch.source_lengths, batch.inputs)["params"]
  params = jax.tree.map(lambda leaf: leaf + jax.random.normal(jax.random.key(1), leaf.shape), params)
  measures = explanation._measure_batch(params, batch, jax.random.key(0), model=model)
  # If all words are linked, restricting the weights to the links changes nothing; if none is, removing does.
  same, different = ("alone", "without") if linked else ("without", "alone")
  np.testing.assert_allclose(measures[f"tvd/{same}"], 0.0, atol=1e-5)
  np.testing.assert_allclose(measures[f"p/{same}"], measures["p/model"], atol=1e-5)
  assert np.all(np.asarray(measures[f"tvd/{different}"]) > 1e-3)
  assert np.all(np.asarray(measures["tvd/shuffled"]) > 0)


# Stored config digests are of the differences from these defaults.
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


def test_defaults_match_stored_digests():
  # If this fails, the stored digests are invalid and all studies must run again.
  assert flat(base.Config()) == {**flat(base.Config()), **DEFAULTS}
