"""Nothing in the folder of a run is imported, even if its config names it as a custom component."""

import pytest

from configs import base
from experiments.cli.config_fields import ConfigError
from experiments.runs import load
from experiments.runs.record import Record, write_record
from experiments.runs.workdir import WorkdirError
from experiments.training.loop import train


def config_of(name):
  config = base.Config()
  config.data.task = config.model.attention = config.evaluation.custom_metrics = name
  return config


def write_run(folder, name):
  folder.mkdir(exist_ok=True)
  write_record(folder, Record(config_of(name), {}, ""))
  return folder


@pytest.mark.parametrize("name", ["run.part", "theirs", "run.package.part", "link.part"])
def test_modules_of_runs_are_not_imported(tmp_path, monkeypatch, name):
  folder = tmp_path / "run"
  (folder / "package").mkdir(parents=True)
  for file in ("part.py", "theirs.py", "package/__init__.py", "package/part.py"):
    (folder / file).write_text("raise RuntimeError", "utf-8")
  (tmp_path / "link").symlink_to(folder)
  (tmp_path / "theirs.py").symlink_to(folder / "theirs.py")
  monkeypatch.syspath_prepend(tmp_path)
  message = f"config.data.task={name}:Name must not be in the folder of a run, from which nothing is imported"
  with pytest.raises(WorkdirError, match=message):
    train(config_of(f"{name}:Name"), folder)
  write_run(folder, f"{name}:Name")
  with pytest.raises(WorkdirError, match=message):
    load(folder)


def test_modules_of_others_are_not_imported(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  folder, other = (write_run(tmp_path / name, "other.part:Name") for name in ("run", "other"))
  (other / "part.py").write_text("raise RuntimeError", "utf-8")
  with pytest.raises(WorkdirError, match="must not be in the folder of a run"):
    load(folder)


def test_modules_elsewhere_are_imported(tmp_path, write_module):
  folder = write_run(tmp_path / "run", f"{write_module('raise OSError(3 * 7)')}:part")
  with pytest.raises(ConfigError, match=r"OSError: 21 \(.*, line 1\)"):
    load(folder)
