"""Tests of experiments/compare_torch.py, with and without PyTorch."""

import importlib.util
import re

import pytest
from helpers import scripts

SMALL = ("--batch_size=2", "--length=3", "--vocabulary=11", "--embed_dim=4", "--features=5", "--repeats=1")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_missing_pytorch_is_one_line():
  finished = scripts.run("compare_torch", *SMALL)
  assert finished.code == 2
  assert finished.errors == "error: compare_torch needs PyTorch: pip install torch\n"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_all_versions_are_timed():
  finished = scripts.run("compare_torch", *SMALL)
  assert finished.code == 0, finished.errors
  rows = finished.output.splitlines()
  assert [row[:26].strip() for row in rows] == ["attention", "PyTorch, straightforward", "PyTorch, optimized"]
  for row in rows:
    assert re.search(r"\d\.\d{3} s/step .* tokens/s; speedup of attention \d+\.\d\d×$", row)
