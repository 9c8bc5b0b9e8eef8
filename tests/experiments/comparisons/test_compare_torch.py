"""The comparison with PyTorch, which need not be there."""

import importlib.util
import re

import pytest
from helpers import scripts

SMALL = ("--batch_size=2", "--length=3", "--vocabulary=11", "--embed_dim=4", "--width=5", "--repeats=1")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is there")
def test_without_pytorch_one_line_helps():
  finished = scripts.run("compare_torch", *SMALL)
  assert finished.code == 2
  assert finished.errors == "error: compare_torch needs PyTorch: pip install torch\n"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not there")
def test_all_three_are_timed():
  finished = scripts.run("compare_torch", *SMALL)
  assert finished.code == 0, finished.errors
  rows = finished.output.splitlines()
  assert [row[:26].strip() for row in rows] == ["attention", "PyTorch, straightforward", "PyTorch, frugal"]
  for row in rows:
    assert re.search(r"\d\.\d{3} s a step .* tokens/s; ours \d+\.\d\d times as many$", row)
