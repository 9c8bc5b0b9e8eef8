"""Scripts in examples/."""

import pytest

pytestmark = pytest.mark.slow


def test_plot_weights_writes_a_figure(run, tmp_path):
  run("examples.plot_weights", f"--output={tmp_path / 'weights.png'}")
  assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")


def test_flax_transformer_prints_times_and_memory(run):
  lines = run("examples.flax_transformer", "--length=8", "--repeats=1").output.splitlines()
  assert [line[:17].strip() for line in lines] == [
    *("linen, Flax", "linen, attention", "NNX, Flax", "NNX, attention")
  ]
