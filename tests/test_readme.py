"""README.md: its programs run, and the files and scripts that it names are there."""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_programs_run_on_their_own(program):
  # As the main program of a file of its own: dataclasses look their module up.
  exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})


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
