"""The benchmark: only what is right is timed, what is absent is named."""

import json
import platform

import jax
import numpy as np
import pytest
from helpers import scripts

from experiments.benchmarks import baselines, cases, report, timing
from experiments.benchmarks.baselines import Peer
from experiments.benchmarks.cases import Case

CAUSAL = Case("dot_product", 2, 7, 3, 5, causal=True)
SMALL = [
  Case("dot_product", 2, 7, 3, 5),
  CAUSAL,
  Case("dot_product", 1, 17, 2, 5, causal=True, window=3),
  Case("additive", 2, 7, 1, 5),
  Case("bilinear", 2, 7, 1, 5),
  Case("cosine", 1, 7, 1, 5, causal=True),
  Case("dot_product", 2, 1, 3, 5),
  Case("dot_product", 2, 7, 3, 5, dtype="bfloat16"),
]


def results(case, name="attention"):
  """Returns inputs, and the context and the derivatives that a peer finds."""
  inputs = cases.of_checked(cases.draw(case))
  peer = baselines.prepare(name, case, inputs)
  context, gradients = peer.both()
  np.testing.assert_allclose(peer.to_numpy(context), peer.to_numpy(peer.forward()), atol=1e-6)
  return inputs, np.array(peer.to_numpy(context)), [*map(peer.to_numpy, gradients)]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_right_results_pass_the_check(case):
  inputs, context, gradients = results(case)
  assert cases.check(case, inputs, context, gradients) is None
  assert "context off by" in cases.check(case, inputs, 1.2 * context, gradients)
  assert "context off by nan" in cases.check(case, inputs, np.nan * context, gradients)
  names = "queries", "keys", "values", "parameter"
  for i, name in enumerate(names[: len(gradients)]):
    for factor in (np.nan, 0, 2):
      wrong = [factor * gradient if i == j else gradient for j, gradient in enumerate(gradients)]
      # With one key, queries and keys have derivatives of zero.
      if case.length > 1 or name == "values" or np.isnan(factor):
        assert f"gradients by the {name} off by" in cases.check(case, inputs, context, wrong)


def test_a_wrong_mask_is_noticed():
  assert cases.check(CAUSAL, *results(SMALL[0]))
  assert cases.check(SMALL[2], *results(Case("dot_product", 1, 17, 2, 5, causal=True, window=4)))


@pytest.mark.parametrize("name", ["attention dense", "einsum", "jax.nn", "flax.linen", "flax.nnx"])
def test_other_peers_agree(name):
  assert cases.check(CAUSAL, *results(CAUSAL, name)) is None


def test_absent_peers_say_why(monkeypatch):
  monkeypatch.setitem(baselines.MOST_BYTES, "cpu", 2**20)
  for name, case, reason in (
    ("jax.nn", SMALL[3], "has no additive attention"),
    ("einsum", SMALL[2], "has no sliding window"),
    ("einsum", Case("additive", 1, 2**14, 1, 32), "would store 32 GiB"),
    ("jax.nn", Case("dot_product", 1, 2**15, 1, 32), "would store 4 GiB"),
    ("jax.nn cudnn", CAUSAL, "for half precision on a GPU"),
  ):
    with pytest.raises(baselines.Unavailable, match=reason):
      baselines.prepare(name, case, None)
  with pytest.raises(baselines.Unavailable, match="not installed"):
    baselines._imported("no_such_package")


def test_times_are_medians_with_quartiles(monkeypatch):
  monkeypatch.setattr(timing, "_in_turn", lambda calls, repeats: {name: [5, 1, 4, 2, 3] for name in calls})
  monkeypatch.setitem(baselines.PEERS, "fails", Peer(lambda case: 1 / 0))
  monkeypatch.setitem(baselines.PEERS, "wrong", Peer(lambda case: lambda *arrays: 2 * arrays[2]))
  records = timing.measure(CAUSAL, ("fails", "attention", "wrong", "torch", "einsum"), repeats=5)
  assert [(record["peer"], record.get("pass")) for record in records[:4]] == [
    (peer, which) for which in timing.PASSES for peer in ("attention", "einsum")
  ]
  for record in records[:4]:
    assert (record["milliseconds"], record["quartiles"]) == (3000, [2000, 4000])
    assert record["compile_seconds"] > 0 and record["temporary_mib"] >= 0
  absent = {record["peer"]: record["absent"] for record in records[4:]}
  assert absent["fails"] == "fails: ZeroDivisionError division by zero"
  assert absent["wrong"].startswith("wrong: context off by")


def test_calls_are_timed_in_turn(monkeypatch):
  monkeypatch.setattr(timing, "SHORTEST_SECONDS", 0)
  monkeypatch.setattr(timing, "_wait_until_freed", lambda: called.append("wait"))
  called = []
  seconds = timing._in_turn({name: lambda name=name: called.append(name) for name in "ab"}, repeats=3)
  assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}
  assert all(time > 0 for times in seconds.values() for time in times)
  # Twice to begin with; then each after a call that is not timed.
  assert called[:4] == ["a", "a", "b", "b"]
  assert sorted(called[4:10]) == ["a", "a", "b", "b", "wait", "wait"]


@pytest.mark.parametrize("name", ["attention", "attention dense"])
def test_ours_must_not_be_wrong(name, monkeypatch):
  wrong = Peer(lambda case: lambda *arrays: 2 * arrays[2], heads_first=True)
  monkeypatch.setitem(baselines.PEERS, name, wrong)
  with pytest.raises(timing.IncorrectResult, match="context off by"):
    timing.measure(CAUSAL, (name,), repeats=1)


def test_memory_being_freed_is_waited_for(monkeypatch):
  sizes = iter([900, 500, 100, 100, 50])
  monkeypatch.setattr(timing, "_resident_kibibytes", lambda: next(sizes))
  timing._wait_until_freed()
  assert next(sizes) == 50


def made_up(peer, which, milliseconds, length=512):
  return {
    "set": "length",
    "case": f"dot {length}",
    "score": "dot_product",
    "length": length,
    "peer": peer,
    "pass": which,
    "milliseconds": milliseconds,
    "quartiles": [milliseconds - 0.5, milliseconds + 0.5],
    "temporary_mib": None if peer == "torch" else 3.0,
  }


def test_rows_have_ratios():
  records = [
    made_up(peer, which, time)
    for which, ours, theirs in (("forward", 2.0, 4.0), ("forward + backward", 3.0, 1.0))
    for peer, time in (("attention", ours), ("torch", theirs))
  ]
  for peer, absent in (("keras", "not installed"), ("jax.nn", "would store 4 GiB")):
    records.append({"set": "length", "case": "dot 512", "peer": peer, "absent": absent})
  assert report.rows(records).splitlines() == [
    "| dot 512 | attention | 2 (1.5 to 2.5) |  | 3 (2.5 to 3.5) |  | 3 / 3 |",
    "| dot 512 | torch | 4 (3.5 to 4.5) | 0.50 | 1 (0.5 to 1.5) | 3.00 | not stated |",
    "| dot 512 | absent: keras not installed; jax.nn would store 4 GiB |  |  |  |  |  |",
  ]


def test_sets_have_a_summary_each():
  records = [
    made_up(peer, which, time, length)
    for which, times in (("forward", (2345.6, 4691.2)), ("forward + backward", (3.0, 1.0)))
    for length in (512, 1024)
    for peer, time in zip(("attention", "torch"), times, strict=True)
  ]
  records = [record for record in records if (record["length"], record["peer"]) != (1024, "torch")]
  records += [{**record, "set": "dot_product", "peer": "attention"} for record in records[1:2]]
  assert report.summary(records).splitlines() == [
    "| case | ours, ms (forward / both) | ours / torch |",
    "| --- | --- | --- |",
    "| dot 512 | 2,346 / 3 | 0.50 / 3.00 |",
    "| dot 1024 | 2,346 / 3 | - |",
    "",
    "| case | ours, ms (forward / both) |",
    "| --- | --- |",
    "| dot 512 | 4,691 |",
  ]


def test_several_lengths_are_drawn(tmp_path):
  records = [
    made_up(peer, which, length / 100, length)
    for which in timing.PASSES
    for peer in ("attention", "torch")
    for length in (512, 1024)
  ]
  panels = report._figure(records, "milliseconds", "ms").axes
  assert [panel.get_title() for panel in panels] == [f"dot product, {which}" for which in timing.PASSES]
  assert [text.get_text() for text in panels[1].get_legend().get_texts()] == ["attention", "torch"]
  np.testing.assert_array_equal(panels[0].lines[0].get_xydata(), [[512, 5.12], [1024, 10.24]])
  paths = report.draw(tmp_path, records)
  assert [path.name for path in paths] == ["time.png", "memory.png"]
  assert all(path.stat().st_size > 10_000 for path in paths)
  assert report.draw(tmp_path, records[:1]) == []


@pytest.mark.exhaustive
def test_the_script_writes_its_results(tmp_path):
  flags = (
    "--suites=window",
    "--baselines=attention",
    "--length_divisor=512",
    "--repeats=1",
    f"--output={tmp_path}",
  )
  finished = scripts.run("benchmark", *flags)
  assert finished.code == 0, finished.errors
  found = json.loads((tmp_path / "benchmark.json").read_text("utf-8"))
  assert found["machine"]["cores"] >= 1
  assert {record["length"] for record in found["records"]} == {64}
  written = (tmp_path / "benchmark.md").read_text("utf-8")
  assert f"Python {platform.python_version()}, jax {jax.__version__}" in written
  assert "is the median of 1;" in written
  assert report.HEADER in written
  assert "| dot_product (1, 64, 1, 64) window 512 |" in written
  assert "| attention |" in finished.output


def test_unknown_sets_are_one_line(tmp_path):
  finished = scripts.run("benchmark", "--suites=widths", f"--output={tmp_path / 'new'}")
  assert finished.code == 2
  assert "--suites must be among dot_product, additive" in finished.errors
  assert "got 'widths'" in finished.errors
  assert not (tmp_path / "new").exists()
