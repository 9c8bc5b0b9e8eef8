"""Tests of experiments/runs/provenance.py."""

import datetime
import json
import platform
import subprocess
import sys

import jax
import numpy as np
import pytest

from experiments.runs import provenance
from experiments.runs.provenance import describe_launch, record_launch


def test_launches_describe_the_process():
  launch = describe_launch()
  assert launch == json.loads(json.dumps(launch))
  assert launch["versions"]["jax"] == jax.__version__
  assert launch["versions"]["numpy"] == np.__version__
  assert set(launch["versions"]) == set(provenance.PACKAGES)
  assert launch["python"] == platform.python_version()
  assert launch["device"] == f"cpu: {jax.devices()[0].device_kind}"
  assert (launch["devices"], launch["processes"]) == (8, 1)
  assert launch["command"][0] == sys.executable
  age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(launch["time"])
  assert -1 < age.total_seconds() < 60


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("git", 20)])
def test_git_is_optional(monkeypatch, error):
  def fail(*_, **__):
    raise error

  monkeypatch.setattr(subprocess, "run", fail)
  launch = describe_launch()
  assert launch["commit"] is None
  assert launch["has_local_changes"] is None


def test_launches_are_appended(tmp_path):
  (tmp_path / "launches.jsonl").write_text('{"time": "earlier"}\n', "utf-8")
  record_launch(tmp_path, {"time": "now"})
  lines = (tmp_path / "launches.jsonl").read_text("utf-8").splitlines()
  assert [json.loads(line)["time"] for line in lines] == ["earlier", "now"]
