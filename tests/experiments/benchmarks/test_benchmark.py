"""The benchmark: only what is right is timed, what is absent is named."""

import functools
import json
import pathlib
import platform
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from helpers import scripts

from experiments.benchmarks import cases, measuring, peers, report, resident
from experiments.benchmarks.cases import Case

ROOT = pathlib.Path(__file__).parents[3]

SMALL = [
  Case("dot_product", 2, 7, 3, 5),
  Case("dot_product", 2, 7, 3, 5, causal=True),
  Case("dot_product", 1, 17, 2, 5, causal=True, window=3),
  Case("additive", 2, 7, 1, 5),
  Case("bilinear", 2, 7, 1, 5),
  Case("cosine", 1, 7, 1, 5, causal=True),
  Case("dot_product", 2, 1, 3, 5),
  Case("dot_product", 2, 7, 3, 5, dtype="bfloat16"),
]


def results(case, name="attention"):
  """Returns inputs, and the context and the derivatives that a peer finds."""
  inputs = cases.draw(case)
  peer = peers.prepare(name, case, inputs)
  context, gradients = peer.both()
  np.testing.assert_allclose(peer.to_numpy(context), peer.to_numpy(peer.forward()), atol=1e-6)
  return inputs, np.array(peer.to_numpy(context)), [*map(peer.to_numpy, gradients[:3])]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_what_is_right_passes_the_check(case):
  assert cases.check(case, *results(case)) is None


@pytest.mark.parametrize("case", SMALL[:6], ids=lambda case: case.name)
def test_what_is_wrong_does_not(case):
  inputs, context, gradients = results(case)
  assert "context off by" in cases.check(case, inputs, 1.2 * context, gradients)
  assert "context off by nan" in cases.check(case, inputs, np.nan * context, gradients)
  for i, message in enumerate(("gradient off by", "by the keys off by", "by the values off by")):
    wrong = [np.roll(gradient, 1, axis=-1) if i == j else gradient for j, gradient in enumerate(gradients)]
    assert message in cases.check(case, inputs, context, wrong)
  for factor, message in ((np.nan, "not finite"), (0, "zero"), (2, "off by")):
    for i, name in ((1, "keys"), (2, "values")):
      wrong = [factor * gradient if i == j else gradient for j, gradient in enumerate(gradients)]
      assert f"gradients by the {name} {message}" in cases.check(case, inputs, context, wrong)


def test_a_wrong_mask_is_noticed():
  assert cases.check(SMALL[1], *results(Case("dot_product", 2, 7, 3, 5)))


def test_other_peers_agree():
  for name in ("attention dense", "einsum", "jax.nn", "flax.linen", "flax.nnx"):
    assert cases.check(SMALL[1], *results(SMALL[1], name)) is None


def test_each_peer_is_measured_or_named_as_absent(monkeypatch):
  monkeypatch.setattr(measuring, "SIDE", 8)
  monkeypatch.setattr(measuring, "SHORTEST_SECONDS", 0)
  records = measuring.measure(SMALL[3], ("attention", "einsum", "jax.nn"), repeats=3)
  assert [(record["peer"], record.get("pass")) for record in records] == [
    ("attention", "forward"),
    ("einsum", "forward"),
    ("attention", "forward + backward"),
    ("einsum", "forward + backward"),
    ("jax.nn", None),
  ]
  for record in records[:4]:
    low, high = record["quartiles"]
    assert 0 < low <= record["milliseconds"] <= high
    assert record["compile_seconds"] > 0
    assert record["temporary_mib"] >= 0
  assert records[4]["absent"] == "has no additive attention"


def test_a_time_is_a_median_with_its_quartiles(monkeypatch):
  monkeypatch.setattr(measuring, "_in_turn", lambda calls, repeats: {name: [5, 1, 4, 2, 3] for name in calls})
  for record in measuring.measure(SMALL[0], ("einsum",), repeats=5):
    assert (record["milliseconds"], record["quartiles"]) == (3000, [2000, 4000])


@pytest.mark.exhaustive
def test_a_process_of_its_own_grows_by_what_is_stored():
  # [T S] in float32 are 64 MiB.
  grown = resident.resident_mib(Case("dot_product", 1, 4096, 1, 4), "einsum")
  if grown is None:
    pytest.skip("the system does not tell how large a process is")
  assert all(60 < size < 400 for size in grown)


def test_memory_that_is_being_freed_is_waited_for(monkeypatch):
  sizes = iter([900, 500, 100, 100, 50])
  monkeypatch.setattr(resident, "_kibibytes", lambda field: next(sizes))
  resident.wait_until_freed()
  assert next(sizes) == 50


def test_a_process_of_its_own_that_fails_is_an_error(monkeypatch):
  monkeypatch.setattr(resident, "_CLEAR", pathlib.Path(__file__))
  with pytest.raises(RuntimeError, match="forward in a process of its own, code 1: KeyError: 'nobody'"):
    resident.resident_mib(SMALL[0], "nobody")


def test_what_is_not_installed_is_absent():
  with pytest.raises(peers.Absent, match="not installed"):
    peers._imported("no_such_package")


def test_a_peer_that_is_wrong_is_not_timed(monkeypatch):
  monkeypatch.setattr(measuring, "SIDE", 8)
  monkeypatch.setitem(peers._JAX_PEERS, "einsum", lambda case: (lambda *arrays: 2 * arrays[2], False))
  (record,) = measuring.measure(SMALL[0], ("einsum",), repeats=1)
  assert record["absent"].startswith("wrong: context off by")


@pytest.mark.parametrize("name", ["attention", "attention dense"])
def test_ours_must_not_be_wrong(name, monkeypatch):
  monkeypatch.setitem(peers._JAX_PEERS, name, lambda case: (lambda *arrays: 2 * arrays[2], True))
  with pytest.raises(measuring.Wrong, match="context off by"):
    measuring.measure(SMALL[0], (name,), repeats=1)


def test_a_peer_that_fails_is_named_and_the_others_are_measured(monkeypatch):
  def fail(*arrays):
    raise NotImplementedError("not for these sizes\nand more")

  monkeypatch.setattr(measuring, "SIDE", 8)
  monkeypatch.setitem(peers._JAX_PEERS, "einsum", lambda case: (fail, False))
  records = measuring.measure(SMALL[0], ("einsum", "jax.nn"), repeats=1)
  assert [record["peer"] for record in records] == ["jax.nn", "jax.nn", "einsum"]
  assert records[-1]["absent"] == "fails: NotImplementedError not for these sizes"


def test_operations_are_counted():
  # Two products of 2 * 3 * 7 * 7 * 5 multiplications and as many additions.
  assert SMALL[0].operations(derivatives=False) == 4 * 2 * 3 * 49 * 5
  assert SMALL[1].operations(derivatives=True) == 3.5 * 2 * 2 * 3 * 49 * 5


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


def test_a_row_has_the_ratio_of_ours_to_theirs():
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


def test_a_summary_has_a_row_for_each_case_and_a_table_for_each_set():
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


def test_two_pictures_are_drawn_of_several_lengths(tmp_path):
  records = [
    made_up(peer, which, length / 100, length)
    for which in measuring.PASSES
    for peer in ("attention", "torch")
    for length in (512, 1024)
  ]
  (panels,) = [report._figure(records, "milliseconds", "ms").axes]
  assert [panel.get_title() for panel in panels] == [f"dot product, {which}" for which in measuring.PASSES]
  assert [line.get_label() for line in panels[0].lines] == ["attention", "torch"]
  np.testing.assert_array_equal(panels[0].lines[0].get_xydata(), [[512, 5.12], [1024, 10.24]])
  paths = report.draw(tmp_path, records)
  assert [path.name for path in paths] == ["time.png", "memory.png"]
  assert all(path.stat().st_size > 10_000 for path in paths)
  assert report.draw(tmp_path, records[:1]) == []


@pytest.mark.exhaustive
def test_the_script_writes_what_it_found(tmp_path):
  flags = "--sets=window", "--peers=attention", "--shorten=512", "--repeats=1", f"--output={tmp_path}"
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


def test_a_set_that_there_is_not_is_told_in_one_line(tmp_path):
  finished = scripts.run("benchmark", "--sets=widths", f"--output={tmp_path / 'new'}")
  assert finished.code == 2
  assert "--sets must be of dot_product, additive" in finished.errors
  assert "got 'widths'" in finished.errors
  assert not (tmp_path / "new").exists()


@pytest.mark.exhaustive
def test_calls_outside_of_jit_are_timed_in_a_process_of_their_own():
  command = [sys.executable, "-m", "experiments.benchmark_eager", "--repeats=1"]
  run = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True)
  row = run([*command, "--case=merge"], check=True).stdout.strip()
  assert re.fullmatch(r"\| merge \| \d+\.\d\d \| \d+\.\d\d \|", row)
  wrong = run([*command, "--case=merging"], check=False)
  assert wrong.returncode == 2 and "--case must be of" in wrong.stderr and "got 'merging'" in wrong.stderr
