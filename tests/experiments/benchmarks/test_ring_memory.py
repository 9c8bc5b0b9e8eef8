"""The calculated memory of a training step agrees with the compiled program in a ring."""

import pytest

from experiments.benchmarks.memory import Step, calculate, compile_step

pytestmark = pytest.mark.eight_devices

CASES = {
  "dot_product": Step(2, 3 * 1030, 3, 47, devices=3),
  "additive": Step(1, 2 * 2054, 3, 131, devices=2, score="additive"),
  "causal": Step(1, 7 * 2030, 5, 23, devices=7, causal=True, dtype="bfloat16"),
}


@pytest.mark.parametrize("step", CASES.values(), ids=CASES)
def test_compiled_program_agrees(step):
  terms, sizes = calculate(step), compile_step(step).memory_analysis()
  calculated = sum(terms.values()) - terms["arguments"] - terms["outputs"]
  assert sizes.temp_size_in_bytes == pytest.approx(calculated, rel=0.1)
