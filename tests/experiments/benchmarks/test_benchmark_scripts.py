"""benchmark.py, benchmark_decoding.py and compare_torch.py."""

import importlib.util
import json
import platform
import re
import shutil

import jax
import pytest
from helpers import scripts

from experiments.benchmarks import memory, report
from experiments.benchmarks.timing import PASSES

pytestmark = pytest.mark.slow

HAS_TORCH = importlib.util.find_spec("torch") is not None
QUICK = "--suites=window", "--baselines=attention", "--length_divisor=512", "--repeats=1"
SMALL = "--length=3", "--vocabulary=11", "--features=8", "--repeats=1"


@pytest.fixture
def benchmark(tmp_path):
  """Returns a function that returns the records of the script, and its output."""

  def run(name, *flags):
    finished = scripts.succeed("benchmark", *QUICK, f"--output={tmp_path / name}", *flags)
    result = json.loads((tmp_path / name / "benchmark.json").read_text("utf-8"))
    assert result["machine"]["cores"] >= 1
    return result["records"], finished

  return run


def compared(records):
  return [record for record in records if record["baseline"] == "compared version"]


def test_results_are_written_and_compared(benchmark, tmp_path):
  records, finished = benchmark("first")
  assert {record["length"] for record in records} == {64}
  written = (tmp_path / "first" / "benchmark.md").read_text("utf-8")
  assert f"Python {platform.python_version()}, jax {jax.__version__}" in written
  assert "is the median of 1;" in written and report.HEADER in written
  assert "| dot_product (1, 64, 1, 64) window 512 |" in written and "| attention |" in finished.output
  path = tmp_path / "first" / "benchmark.json"
  again, _ = benchmark("second", f"--compare={path}")
  assert [item["milliseconds"] for item in compared(again)] == [item["milliseconds"] for item in records]
  path.write_text(json.dumps({"records": [records[0] | {"case": "other"}]}), "utf-8")
  _, finished = benchmark("third", f"--compare={path}")
  assert f"warning: no case of --compare={path} was measured: other\n" in finished.errors


def test_other_versions_are_measured_in_turn(benchmark, tmp_path):
  shutil.copytree(scripts.ROOT / "attention", tmp_path / "before" / "attention")
  records, _ = benchmark("right", f"--compare={tmp_path / 'before'}")
  assert [record["pass"] for record in compared(records)] == [*PASSES, *PASSES]  # of two cases
  package = tmp_path / "wrong" / "attention"
  package.mkdir(parents=True)
  function = "def scaled_dot_product_attention(queries, keys, values, **options):\n  return 2 * values\n"
  (package / "__init__.py").write_text(f"from attention import masks\n{function}", "utf-8")
  masks = "def causal(): return 1\ndef sliding_window(*bounds): return 1\n"
  (package / "masks.py").write_text(masks, "utf-8")
  _, finished = benchmark("out", "--suites=dot_product", f"--compare={package.parent}")
  assert "compared version wrong: context off by" in finished.output


def test_compilation_is_measured(tmp_path):
  finished = scripts.succeed("benchmark", "--suites=compile", "--repeats=1", f"--output={tmp_path}")
  records = json.loads((tmp_path / "compile.json").read_text("utf-8"))
  assert len(records) == 20 and (tmp_path / "compile.md").read_text("utf-8") == finished.output


def test_memory_is_compared(tmp_path, monkeypatch, capsys):
  steps = [memory.Step(2, 29, 3, 5), memory.Step(2, 62, 3, 5, devices=2)]
  monkeypatch.setattr(memory, "STEPS", steps)
  memory.run(tmp_path, 1)
  measured, in_ring = json.loads((tmp_path / "memory.json").read_text("utf-8"))
  assert measured["is_measured"] and not in_ring["is_measured"]
  assert in_ring["seconds"] == pytest.approx(measured["seconds"] * 62**2 / 29**2 / 2)
  assert (tmp_path / "memory.md").read_text("utf-8") == capsys.readouterr().out


def test_decoding_is_measured():
  finished = scripts.succeed("benchmark_decoding", *SMALL, "--batch_sizes=2")
  rows = [line.split(" | ") for line in finished.output.splitlines() if re.match(r"\| (rec|trans)", line)]
  assert [row[:3] for row in rows] == [
    [f"| {model}", "2", beam_size] for model in ("recurrent", "transformer") for beam_size in ("1", "5")
  ]
  for name, title in {"torch": "PyTorch", "ctranslate2": "CTranslate2"}.items():
    if importlib.util.find_spec(name) is None:
      assert f"not measured: {title} is not installed" in finished.output


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
def test_torch_must_be_installed():
  line = scripts.error_of("compare_torch", *SMALL, "--batch_size=2")
  assert line == "compare_torch needs PyTorch: pip install torch"


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_torch_is_compared():
  finished = scripts.succeed("compare_torch", *SMALL, "--batch_size=2")
  for model in ("recurrent | attention", "recurrent | PyTorch, straight", "transformer | PyTorch, optim"):
    assert model in finished.output
  line = scripts.error_of("compare_torch", *SMALL, "--features=12")
  assert line == "--features must be a multiple of 8, got 12"
