"""The benchmark: only correct results are timed, and missing baselines are listed."""

import dataclasses
import json
import platform
import shutil

import jax
import numpy as np
import pytest
from helpers import scripts

from experiments.benchmarks import baselines, cases, report, timing
from experiments.benchmarks.baselines import Baseline
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
  Case("dot_product", 2, 7, 3, 5, dtype="float16"),
]


def results(case, name="attention"):
  """Returns inputs, and the context and gradients of a baseline."""
  inputs = cases.restrict_to_checked(cases.draw(case))
  baseline = baselines.prepare(name, case, inputs)
  context, gradients = baseline.both()
  np.testing.assert_allclose(baseline.to_numpy(context), baseline.to_numpy(baseline.forward()), atol=1e-6)
  return inputs, np.array(baseline.to_numpy(context)), [*map(baseline.to_numpy, gradients)]


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
      # With a single key, queries and keys have zero gradients.
      if case.length > 1 or name == "values" or np.isnan(factor):
        assert f"gradients of the {name} off by" in cases.check(case, inputs, context, wrong)


def test_wrong_masks_fail_the_check():
  assert cases.check(CAUSAL, *results(SMALL[0]))
  assert cases.check(SMALL[2], *results(Case("dot_product", 1, 17, 2, 5, causal=True, window=4)))


@pytest.mark.parametrize("name", ["attention dense", "einsum", "jax.nn", "flax.linen", "flax.nnx"])
def test_other_baselines_agree(name):
  assert cases.check(CAUSAL, *results(CAUSAL, name)) is None


def test_unavailable_baselines_have_reasons(monkeypatch):
  monkeypatch.setitem(baselines.MOST_BYTES, "cpu", 2**20)
  for name, case, reason in (
    ("jax.nn", SMALL[3], "does not support additive attention"),
    ("einsum", SMALL[2], "does not support a sliding window"),
    ("einsum", Case("additive", 1, 2**14, 1, 32), "would store 32 GiB"),
    ("jax.nn", Case("dot_product", 1, 2**15, 1, 32), "would store 4 GiB"),
    ("jax.nn cudnn", CAUSAL, "requires half precision on a GPU"),
  ):
    with pytest.raises(baselines.Unavailable, match=reason):
      baselines.prepare(name, case, None)
  with pytest.raises(baselines.Unavailable, match="not installed"):
    baselines._imported("no_such_package")


def test_times_are_medians_with_quartiles(monkeypatch):
  monkeypatch.setattr(timing, "_in_turn", lambda calls, repeats: {name: [5, 1, 4, 2, 3] for name in calls})
  monkeypatch.setitem(baselines.BASELINES, "fails", Baseline(lambda case: 1 / 0))
  monkeypatch.setitem(baselines.BASELINES, "wrong", Baseline(lambda case: lambda *arrays: 2 * arrays[2]))
  records = timing.measure(CAUSAL, ("fails", "attention", "wrong", "jax.nn cudnn", "einsum"), 5, peak=1e9)
  assert [(record["baseline"], record.get("pass")) for record in records[:4]] == [
    (baseline, which) for which in timing.PASSES for baseline in ("attention", "einsum")
  ]
  for record in records[:4]:
    assert (record["milliseconds"], record["quartiles"]) == (3000, [2000, 4000])
    assert record["compile_seconds"] > 0 and record["temporary_mib"] >= 0
    flops = CAUSAL.flops(both=record["pass"] != "forward")
    assert record["peak_share"] == round(flops / 3 / 1e9, 3)
  unavailable = {record["baseline"]: record["unavailable"] for record in records[4:]}
  assert unavailable["fails"] == "fails: ZeroDivisionError division by zero"
  assert unavailable["wrong"].startswith("wrong: context off by")


def test_calls_are_timed_in_turn(monkeypatch):
  monkeypatch.setattr(timing, "SHORTEST_SECONDS", 0)
  monkeypatch.setattr(timing, "_wait_until_freed", lambda: called.append("wait"))
  called = []
  seconds = timing._in_turn({name: lambda name=name: called.append(name) for name in "ab"}, repeats=3)
  assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}
  assert all(time > 0 for times in seconds.values() for time in times)
  # Two calls each at the beginning, then each timed call follows one that is not timed.
  assert called[:4] == ["a", "a", "b", "b"]
  assert sorted(called[4:10]) == ["a", "a", "b", "b", "wait", "wait"]


@pytest.mark.parametrize("name", ["attention", "attention dense"])
def test_own_errors_raise(name, monkeypatch):
  wrong = Baseline(lambda case: lambda *arrays: 2 * arrays[2], heads_first=True)
  monkeypatch.setitem(baselines.BASELINES, name, wrong)
  with pytest.raises(timing.IncorrectResult, match="context off by"):
    timing.measure(CAUSAL, (name,), repeats=1, peak=1e9)


def test_waits_for_freed_memory(monkeypatch):
  sizes = iter([900, 500, 100, 100, 50])
  monkeypatch.setattr(timing, "_resident_kibibytes", lambda: next(sizes))
  timing._wait_until_freed()
  assert next(sizes) == 50


def made_up(baseline, which, milliseconds, length=512):
  return {
    "suite": "length",
    "case": f"dot {length}",
    "score": "dot_product",
    "length": length,
    "baseline": baseline,
    "pass": which,
    "milliseconds": milliseconds,
    "quartiles": [milliseconds - 0.5, milliseconds + 0.5],
    "temporary_mib": None if baseline == "torch" else 3.0,
    "peak_share": 0.25,
  }


def test_rows_have_speedups():
  records = [
    made_up(baseline, which, time)
    for which, ours, theirs in (("forward", 2.0, 4.0), ("forward + backward", 3.0, 1.0))
    for baseline, time in (("attention", ours), ("torch", theirs))
  ]
  for baseline, unavailable in (("keras", "not installed"), ("jax.nn", "would store 4 GiB")):
    records.append({"suite": "length", "case": "dot 512", "baseline": baseline, "unavailable": unavailable})
  assert report.rows(records).splitlines() == [
    "| dot 512 | attention | 2 (1.5 to 2.5) |  | 3 (2.5 to 3.5) |  | 3 / 3 |",
    "| dot 512 | torch | 4 (3.5 to 4.5) | 2.0× | 1 (0.5 to 1.5) | 0.3× | not reported |",
    "| dot 512 | not measured: keras not installed; jax.nn would store 4 GiB |  |  |  |  |  |",
  ]


def test_suites_have_a_summary_each():
  records = [
    made_up(baseline, which, time, length)
    for which, times in (("forward", (2345.6, 4691.2)), ("forward + backward", (3.0, 1.0)))
    for length in (512, 1024)
    for baseline, time in zip(("attention", "torch"), times, strict=True)
  ]
  records = [record for record in records if (record["length"], record["baseline"]) != (1024, "torch")]
  records += [{**record, "suite": "dot_product", "baseline": "attention"} for record in records[1:2]]
  assert report.summary(records).splitlines() == [
    "| case | attention, ms (forward / both) | share of peak | vs. torch |",
    "| --- | --- | --- | --- |",
    "| dot 512 | 2,346 / 3 | 25% / 25% | 2.0× / 0.3× |",
    "| dot 1024 | 2,346 / 3 | 25% / 25% | - |",
    "",
    "| case | attention, ms (forward / both) | share of peak |",
    "| --- | --- | --- |",
    "| dot 512 | 4,691 | 25% |",
  ]


def test_lengths_are_plotted(tmp_path):
  records = [
    made_up(baseline, which, length / 100, length)
    for which in timing.PASSES
    for baseline in ("attention", "torch")
    for length in (512, 1024)
  ]
  panels = report._figure(records, "milliseconds", "ms").axes
  assert [panel.get_title() for panel in panels] == [f"dot product, {which}" for which in timing.PASSES]
  assert [text.get_text() for text in panels[1].get_legend().get_texts()] == ["attention", "torch"]
  np.testing.assert_array_equal(panels[0].lines[0].get_xydata(), [[512, 5.12], [1024, 10.24]])
  paths = report.draw(tmp_path, records)
  assert [path.name for path in paths] == ["time.png", "memory.png", "peak_share.png"]
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
  result = json.loads((tmp_path / "benchmark.json").read_text("utf-8"))
  assert result["machine"]["cores"] >= 1
  assert {record["length"] for record in result["records"]} == {64}
  written = (tmp_path / "benchmark.md").read_text("utf-8")
  assert f"Python {platform.python_version()}, jax {jax.__version__}" in written
  assert "is the median of 1;" in written
  assert report.HEADER in written
  assert "| dot_product (1, 64, 1, 64) window 512 |" in written
  assert "| attention |" in finished.output


def test_unknown_suites_raise(tmp_path):
  finished = scripts.run("benchmark", "--suites=widths", f"--output={tmp_path / 'new'}")
  assert finished.code == 2
  assert "--suites must be among dot_product, additive" in finished.errors
  assert "got 'widths'" in finished.errors
  assert not (tmp_path / "new").exists()


def test_flops_count_allowed_pairs():
  sizes = {"score": "dot_product", "batch": 2, "length": 5, "heads": 3, "width": 7}
  for options, pairs in (({}, 25), ({"causal": True}, 15), ({"causal": True, "window": 2}, 9)):
    case = Case(**sizes, **options)
    assert case.flops(both=False) == 2 * 2 * 2 * 3 * pairs * 7
    assert case.flops(both=True) == 7 * 2 * 2 * 3 * pairs * 7
  assert Case(**(sizes | {"score": "additive"})).flops(both=True) is None


QUICK_FLAGS = "--suites=window", "--baselines=attention", "--length_divisor=512", "--repeats=1"


def test_another_version_is_measured_in_turn(tmp_path):
  package = tmp_path / "before" / "attention"
  package.mkdir(parents=True)
  (package / "__init__.py").write_text(
    "from attention import masks\n"
    "def scaled_dot_product_attention(queries, keys, values, **options):\n"
    "  return 2 * values\n",
    "utf-8",
  )
  (package / "masks.py").write_text(
    "def causal(): return 1\ndef sliding_window(*bounds): return 1\n", "utf-8"
  )
  flags = *QUICK_FLAGS, "--suites=dot_product", f"--output={tmp_path}", f"--compare={package.parent}"
  finished = scripts.run("benchmark", *flags)
  assert finished.code == 0, finished.errors
  assert "compared version wrong: context off by" in finished.output


def test_times_of_another_version_are_reported(tmp_path):
  shutil.copytree(scripts.ROOT / "attention", tmp_path / "before" / "attention")
  flags = *QUICK_FLAGS, f"--output={tmp_path}", f"--compare={tmp_path / 'before'}"
  finished = scripts.run("benchmark", *flags)
  assert finished.code == 0, finished.errors
  records = json.loads((tmp_path / "benchmark.json").read_text("utf-8"))["records"]
  passes = [record["pass"] for record in records if record["baseline"] == "compared version"]
  assert passes == [*timing.PASSES, *timing.PASSES]  # of two cases


def test_peak_growth_is_that_of_the_call(monkeypatch, tmp_path):
  growth = timing.peak_growth_mib(lambda: np.ones(2**23).sum())  # 64 MiB, freed at the end
  assert growth is None or 60 <= growth <= 90
  monkeypatch.setattr(timing, "_CLEAR_REFS", tmp_path / "missing" / "file")
  assert timing.peak_growth_mib(lambda: None) is None


def test_earlier_results_are_compared(tmp_path):
  first = scripts.run("benchmark", *QUICK_FLAGS, f"--output={tmp_path / '1'}")
  assert first.code == 0, first.errors
  path = tmp_path / "1" / "benchmark.json"
  second = scripts.run("benchmark", *QUICK_FLAGS, f"--output={tmp_path / '2'}", f"--compare={path}")
  assert second.code == 0, second.errors
  records = json.loads((tmp_path / "2" / "benchmark.json").read_text("utf-8"))["records"]
  times = [record["milliseconds"] for record in records if record["baseline"] == "compared version"]
  earlier = json.loads(path.read_text("utf-8"))["records"]
  assert times == [record["milliseconds"] for record in earlier]


@pytest.mark.parametrize(
  ("content", "error"),
  [(None, "has no folder `attention`"), ("[]", "must be a file with the content of benchmark.json")],
)
def test_invalid_comparisons_are_errors(content, error, tmp_path):
  path = tmp_path if content is None else tmp_path / "benchmark.json"
  if content is not None:
    path.write_text(content, "utf-8")
  finished = scripts.run("benchmark", *QUICK_FLAGS, f"--output={tmp_path}", f"--compare={path}")
  assert finished.code == 2 and finished.errors.startswith("error: --compare") and error in finished.errors


@pytest.mark.parametrize(
  ("flags", "error"),
  [
    (["--suites="], "--suites must name at least one of dot_product, additive"),
    (["--baselines="], "--baselines must name at least one of attention"),
    (["--suites=gpu"], "--suites=gpu requires a GPU, got cpu"),
    (["--output=README.md"], "--output must be a folder, got the file 'README.md'"),
  ],
)
def test_unusable_flags_are_errors(flags, error, tmp_path):
  finished = scripts.run("benchmark", *QUICK_FLAGS, f"--output={tmp_path / 'new'}", *flags)
  assert finished.code == 2 and error in finished.errors
  assert not (tmp_path / "new").exists()


def test_comparisons_without_common_cases_warn(tmp_path):
  path = tmp_path / "benchmark.json"
  record = {"baseline": "attention", "pass": "forward", "case": "other", "milliseconds": 1.0}
  path.write_text(json.dumps({"records": [record]}), "utf-8")
  finished = scripts.run("benchmark", *QUICK_FLAGS, f"--output={tmp_path / 'new'}", f"--compare={path}")
  assert finished.code == 0
  assert f"warning: no case of --compare={path} was measured: other\n" in finished.errors


def test_normalizers_are_compared_with_float64():
  case = cases.Case("dot_product", 1, 37, 2, 8, normalizer="sparsemax")
  inputs = cases.restrict_to_checked(cases.draw(case))
  prepared = baselines.prepare("attention", case, inputs)
  context, gradients = jax.tree.map(prepared.to_numpy, prepared.both(inputs.d_context))
  assert cases.check(case, inputs, context, gradients) is None
  assert "off by" in cases.check(dataclasses.replace(case, normalizer="entmax15"), inputs, context, gradients)
  with pytest.raises(baselines.Unavailable, match="does not support sparsemax"):
    baselines.prepare("einsum", case, inputs)
