"""Tests of experiments/compare_torch.py, with and without PyTorch."""

import importlib.util
import re

import pytest
from helpers import scripts

SMALL = ("--batch_size=2", "--length=3", "--vocabulary=11", "--features=8", "--repeats=1")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_missing_pytorch_is_one_line():
  finished = scripts.run("compare_torch", *SMALL)
  assert finished.code == 2
  assert finished.errors == "error: compare_torch needs PyTorch: pip install torch\n"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_all_versions_are_timed():
  finished = scripts.run("compare_torch", *SMALL)
  assert finished.code == 0, finished.errors
  rows = [row.strip("| ").split(" | ") for row in finished.output.splitlines()[2:]]
  versions = {"recurrent": ("straightforward", "optimized"), "transformer": ("optimized",)}
  assert [row[:2] for row in rows] == [
    [model, version]
    for model, names in versions.items()
    for version in ("attention", *(f"PyTorch, {name}" for name in names))
  ]
  for row in rows:
    assert re.fullmatch(r"\d\.\d{3} \(.*\)", row[2])


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_invalid_widths_are_errors():
  finished = scripts.run("compare_torch", *SMALL, "--features=12")
  assert (finished.code, finished.errors) == (2, "error: --features must be a multiple of 8, got 12\n")
