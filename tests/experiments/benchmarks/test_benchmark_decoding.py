"""Tests of experiments/benchmark_decoding.py, with and without PyTorch and CTranslate2."""

import importlib.util
import re

import pytest
from helpers import scripts

SMALL = ("--batch_sizes=2", "--length=3", "--vocabulary=11", "--features=8", "--repeats=1")


def test_all_models_and_searches_are_measured():
  finished = scripts.run("benchmark_decoding", *SMALL)
  assert finished.code == 0, finished.errors
  rows = [line.split(" | ") for line in finished.output.splitlines() if re.match(r"\| (rec|trans)", line)]
  assert [row[:3] for row in rows] == [
    [f"| {model}", "2", beam_size] for model in ("recurrent", "transformer") for beam_size in ("1", "5")
  ]
  for name, columns in {"torch": ["vs. PyTorch"], "ctranslate2": ["vs. CTranslate2"]}.items():
    if importlib.util.find_spec(name) is None:
      assert f"not measured: {columns[0][4:]} is not installed" in finished.output


@pytest.mark.parametrize(
  ("flag", "error"),
  [
    ("--batch_sizes=0", "--batch_sizes must be positive integers, got '0'"),
    ("--beam_sizes=x", "--beam_sizes must be positive integers, got 'x'"),
    ("--features=6", "--features must be a multiple of 8, got 6"),
  ],
)
def test_invalid_sizes_are_errors(flag, error):
  finished = scripts.run("benchmark_decoding", *SMALL, flag)
  assert (finished.code, finished.errors) == (2, f"error: {error}\n")
