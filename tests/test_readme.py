"""README.md: its programs run, and the files and scripts that it names are there."""

import importlib.util
import pathlib
import re

import jax
import pytest

from configs import base
from experiments.translation.train import train

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


OF_THE_LIBRARY = [program for program in PROGRAMS if "experiments" not in program]


@pytest.mark.parametrize("program", OF_THE_LIBRARY, ids=range(len(OF_THE_LIBRARY)))
def test_programs_run_on_their_own(program):
  # As the main program of a file of its own: dataclasses look their module up.
  exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})


def test_the_programs_with_a_trained_run_work(tmp_path, monkeypatch, capsys):
  programs = [program for program in PROGRAMS if program not in OF_THE_LIBRARY]
  assert len(programs) == 2
  config = base.Config(
    model=base.Model(embedding_width=4, width=6),
    train=base.Train(steps=1, batch_size=2),
    evaluation=base.Evaluation(validation_sentences=1, batch_size=2, max_target_length=5),
  )
  monkeypatch.chdir(tmp_path)
  with jax.numpy_dtype_promotion("standard"):
    train(config, pathlib.Path("runs/toy_translation"))
    for program in programs:
      exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})
  assert len(capsys.readouterr().out.splitlines()) >= 3


def test_there_are_programs():
  assert len(PROGRAMS) >= 2


def test_named_scripts_exist():
  scripts = set(re.findall(r"python -m (experiments\.\w+)", README))
  assert scripts
  for script in scripts:
    assert importlib.util.find_spec(script) is not None, script


def test_named_files_exist():
  paths = set(re.findall(r"configs/\w+\.py", README)) | set(re.findall(r"\]\((\S+)\)", README))
  assert paths
  for path in paths:
    assert (ROOT / path).exists(), path


def test_named_public_names_exist():
  import attention

  for name in re.findall(r"attention\.(\w+)\(", " ".join(PROGRAMS)):
    assert name in attention.__all__, name


def test_make_targets_exist():
  makefile = (ROOT / "Makefile").read_text("utf-8")
  for target in set(re.findall(r"^make (\w+)$", README, flags=re.MULTILINE)):
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
