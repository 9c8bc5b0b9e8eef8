"""Benchmarks measure correct results only: cases, baselines and timing."""

import dataclasses

import numpy as np
import pytest
from helpers import scripts

from experiments.benchmarks import baselines, cases, timing
from experiments.benchmarks.baselines import Baseline
from experiments.benchmarks.cases import Case

pytestmark = pytest.mark.slow

CAUSAL = Case("dot_product", 2, 7, 3, 5, causal=True)
WINDOW = Case("dot_product", 1, 17, 2, 5, causal=True, window=3)
PADDED = Case("dot_product", 5, 7, 3, 5, padded=True)


def results(case, name="attention"):
  """Returns inputs, and the context and gradients of a baseline."""
  inputs = cases.restrict_to_checked(cases.draw(case))
  baseline = baselines.prepare(name, case, inputs)
  context, gradients = baseline.both(inputs.d_context)
  np.testing.assert_allclose(baseline.to_numpy(context), baseline.to_numpy(baseline.forward()), atol=1e-6)
  return inputs, np.array(baseline.to_numpy(context)), [*map(baseline.to_numpy, gradients)]


CASES = [
  (WINDOW, "attention"),
  (Case("additive", 2, 7, 1, 5, causal=True), "einsum"),
  (Case("bilinear", 2, 7, 1, 5), "attention"),
  (Case("cosine", 1, 7, 1, 5, causal=True), "attention dense"),
  (Case("dot_product", 2, 7, 3, 5, dtype="bfloat16"), "attention"),
  (CAUSAL, "jax.nn"),
  (PADDED, "jax.nn"),
  (PADDED, "einsum"),
  (PADDED, "flax.linen"),
  (dataclasses.replace(PADDED, causal=True), "attention"),
  (CAUSAL, "flax.linen"),
  (Case("dot_product", 1, 11, 2, 8, normalizer="sparsemax"), "attention"),
]


@pytest.mark.parametrize(("case", "name"), CASES)
def test_only_right_results_pass_the_check(case, name):
  inputs, context, gradients = results(case, name)
  assert cases.check(case, inputs, context, gradients) is None
  assert "context off by" in cases.check(case, inputs, 1.2 * context, gradients)
  assert "context off by nan" in cases.check(case, inputs, np.nan * context, gradients)
  for i, array in enumerate(("queries", "keys", "values", "parameter")[: len(gradients)]):
    for factor in (np.nan, 0, 2):
      wrong = [factor * gradient if i == j else gradient for j, gradient in enumerate(gradients)]
      assert f"gradients of the {array} off by" in cases.check(case, inputs, context, wrong)


def test_wrong_masks_fail_the_check():
  assert cases.check(WINDOW, *results(Case("dot_product", 1, 17, 2, 5, causal=True, window=4)))
  assert cases.check(PADDED, *results(dataclasses.replace(PADDED, padded=False)))
  with pytest.raises(ValueError, match="window requires causal, got window=3, causal=False"):
    Case("dot_product", 1, 17, 2, 5, window=3)
  with pytest.raises(
    ValueError, match="padded excludes a window, whose queries may have no key, got window=3"
  ):
    dataclasses.replace(WINDOW, padded=True)


def test_unavailable_baselines_have_reasons():
  for name, case, reason in (
    ("jax.nn", Case("additive", 2, 7, 1, 5), "does not support additive attention"),
    ("einsum", WINDOW, "does not support a sliding window"),
    ("einsum", Case("additive", 1, 2**14, 1, 32), "would store 32 GiB"),
    ("jax.nn", Case("dot_product", 1, 2**15, 1, 32), "would store 4 GiB"),
    ("jax.nn cudnn", CAUSAL, "requires half precision on a GPU"),
  ):
    with pytest.raises(baselines.Unavailable, match=reason):
      baselines.prepare(name, case, None)


def test_flops_count_allowed_pairs():
  sizes = {"score": "dot_product", "batch": 2, "length": 5, "heads": 3, "width": 7}
  for options, pairs in (({}, 25), ({"causal": True}, 15), ({"causal": True, "window": 2}, 9)):
    case = Case(**sizes, **options)
    assert case.flops(both=False) == 2 * 2 * 2 * 3 * pairs * 7
    assert case.flops(both=True) == 7 * 2 * 2 * 3 * pairs * 7
  for other in ({"score": "additive"}, {"padded": True}):
    assert Case(**(sizes | other)).flops(both=True) is None


def test_wrong_and_missing_baselines_are_listed(monkeypatch):
  monkeypatch.setitem(baselines.BASELINES, "fails", Baseline(lambda case: 1 / 0))
  monkeypatch.setitem(baselines.BASELINES, "wrong", Baseline(lambda case: lambda *arrays: 2 * arrays[2]))
  records = timing.measure(CAUSAL, ("fails", "attention", "wrong", "jax.nn cudnn", "einsum"), 3, peak=1e9)
  assert [(record["baseline"], record.get("pass")) for record in records[:4]] == [
    (baseline, which) for which in timing.PASSES for baseline in ("attention", "einsum")
  ]
  for record in records[:4]:
    low, high = record["quartiles"]
    assert 0 < low <= record["milliseconds"] <= high and record["repeats"] == 3
    assert record["compile_seconds"] > 0 and record["temporary_mib"] >= 0
    rate = CAUSAL.flops(both=record["pass"] != "forward") / record["milliseconds"] * 1e3
    assert record["peak_share"] == pytest.approx(rate / 1e9, rel=0.1, abs=1e-3)
  unavailable = {record["baseline"]: record["unavailable"] for record in records[4:]}
  assert unavailable.keys() == {"fails", "wrong", "jax.nn cudnn"}
  assert unavailable["fails"] == "fails: ZeroDivisionError division by zero"
  assert unavailable["wrong"].startswith("wrong: context off by")
  # Errors of this library are raised.
  wrong = Baseline(lambda case: lambda *arrays: 2 * arrays[2], heads_first=True)
  monkeypatch.setitem(baselines.BASELINES, "attention dense", wrong)
  with pytest.raises(timing.IncorrectResult, match="context off by"):
    timing.measure(CAUSAL, ("attention dense",), repeats=1, peak=1e9)


def test_temporary_memory_is_in_mib():
  case = Case("dot_product", 1, 512, 1, 8)  # whose scores and weights take 1 MiB each
  forward, _ = baselines.prepare("einsum", case, cases.draw(case)).temporary_mib
  assert 1.5 < forward < 3.5


def test_peak_growth_is_measured_per_call():
  growth = timing.peak_growth_mib(lambda: np.ones(2**23).sum())  # 64 MiB, freed at the end
  if growth is None:
    pytest.skip("the peak of memory cannot be reset here")
  assert 60 <= growth <= 90


ERRORS = [
  ("benchmark", "--suites=widths", "--suites must be among dot_product, additive"),
  ("benchmark", "--suites=", "--suites must name at least one of dot_product, additive"),
  ("benchmark", "--baselines=", "--baselines must name at least one of attention"),
  ("benchmark", "--suites=gpu", "--suites=gpu requires a GPU, got cpu"),
  ("benchmark", "--output=README.md", "--output must be a folder, got the file 'README.md'"),
  ("benchmark", "--compare=docs", "--compare=docs has no folder `attention`"),
  ("benchmark", "--compare=missing", "--compare must be an existing file or folder, got missing"),
  ("benchmark", "--compare=README.md", "--compare must be a file with the content of benchmark.json, or a"),
  ("benchmark_decoding", "--batch_sizes=0", "--batch_sizes must be positive integers, got '0'"),
  ("benchmark_decoding", "--beam_sizes=x", "--beam_sizes must be positive integers, got 'x'"),
  ("benchmark_decoding", "--features=6", "--features must be a multiple of 8, got 6"),
]


def test_each_suite_needs_a_baseline():
  line = scripts.error_of("benchmark", "--suites=normalizers", "--baselines=einsum")
  assert line == "--baselines must name at least one of attention for --suites=normalizers, got einsum"


@pytest.mark.parametrize(("script", "flag", "error"), ERRORS)
def test_unusable_flags_are_errors(script, flag, error):
  assert error in scripts.error_of(script, flag)
