"""The log of starts. tests/experiments/training/test_train.py tests the other checks of a start."""

import datetime
import json
import platform
import subprocess
import sys

import jax
import numpy as np
import pytest

from experiments.runs.run_setup import describe_launch


def test_launches_describe_the_process():
  launch = describe_launch()
  assert launch == json.loads(json.dumps(launch))
  assert (launch["versions"]["jax"], launch["versions"]["numpy"]) == (jax.__version__, np.__version__)
  assert launch["device"] == f"cpu: {jax.devices()[0].device_kind}"
  assert (launch["python"], launch["devices"], launch["processes"]) == (platform.python_version(), 1, 1)
  assert launch["command"][0] == sys.executable
  head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=__file__.rpartition("/")[0], capture_output=True)
  assert launch["commit"] == (head.stdout.decode().strip() or None)
  age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(launch["time"])
  assert -1 < age.total_seconds() < 60


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("git", 20)])
def test_git_is_optional(monkeypatch, error):
  def fail(*_, **__):
    raise error

  monkeypatch.setattr(subprocess, "run", fail)
  launch = describe_launch()
  assert launch["commit"] is launch["has_local_changes"] is None
