"""examples/plot_weights.py."""

import pytest

pytestmark = pytest.mark.slow


def test_plot_weights_writes_a_figure(run, tmp_path):
  run("examples.plot_weights", f"--output={tmp_path / 'weights.png'}")
  assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")
