"""The calculated memory of a training step agrees with the compiled program on one device."""

import pytest

from experiments.benchmarks.memory import Step, calculate, compile_step

KIB, MIB = 2**10, 2**20


def temporary_bytes(step):
  terms = calculate(step)
  return sum(terms.values()) - terms["arguments"] - terms["outputs"]


def test_dense_by_hand():
  # 2 * 3 * 5 = 30 queries with 5 scores each; a vector of 7 numbers.
  assert calculate(Step(2, 5, 3, 7, implementation="dense")) == {
    "arguments": 4 * 30 * 7 * 4,
    "outputs": 4 * 30 * 7 * 4,
    "scores": 3 * 30 * 5 * 4,
    "vectors": 2 * 30 * 7 * 4,
    "rows": 3 * 30 * 4,
  }


def test_ring_by_hand():
  # A float32 array [T H] of one head takes 8,192 * 32 * 4 bytes = 1 MiB on each device.
  terms = calculate(Step(1, 16_384, 3, 32, devices=2, dtype="bfloat16"))
  assert terms == {
    "arguments": 6 * MIB,  # 4 arrays of 3 heads in half precision
    "outputs": 6 * MIB,
    "float32": 6 * 3 * MIB,
    "ring": 7 * 3 * MIB,
    "together": 10 * MIB,  # one head at a time
    "tiles": 2 * 4 * MIB,  # 1,024 queries and keys
    "rows": (6 * 3 + 4) * 32 * KIB,
    "blocks": 5 * 128 * KIB,
    "in outputs": -3 * MIB,  # 1.5 MiB each: a tile is larger
  }


# In each case, other terms are a large part of the temporary memory.
CASES = {
  "scores_and_vectors": Step(2, 101, 3, 31, dtype="bfloat16", implementation="dense"),
  "rows": Step(7, 3001, 11, 5),
  "blocks": Step(2, 1021, 5, 251, causal=True),
  "float32_and_tiles": Step(3, 8191, 2, 31, dtype="bfloat16"),
  "group": Step(1, 8191, 6, 31, key_heads=2),
}


@pytest.mark.parametrize("step", CASES.values(), ids=CASES)
def test_compiled_program_agrees(step):
  terms, sizes = calculate(step), compile_step(step).memory_analysis()
  assert sizes.argument_size_in_bytes == terms["arguments"]
  assert sizes.output_size_in_bytes == pytest.approx(terms["outputs"], abs=64)  # and four addresses
  assert sizes.temp_size_in_bytes == pytest.approx(temporary_bytes(step), rel=0.1)
