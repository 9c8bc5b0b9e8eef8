"""README.md and docs/: programs run, and the files, scripts and names they mention exist."""

import importlib.util
import inspect
import pathlib
import re

import jax
import matplotlib
import pytest

import attention
from configs import base
from experiments.translation.train import train

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in PAGES if "_build" not in path.parts}
PROGRAMS = {
  f"{name}:{text[: found.start()].count(chr(10)) + 1}": found.group(1)
  for name, text in TEXTS.items()
  for found in re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
}
OF_A_RUN = {place: program for place, program in PROGRAMS.items() if "runs/" in program}
STANDALONE = {
  name: [
    program for place, program in PROGRAMS.items() if place.split(":")[0] == name and place not in OF_A_RUN
  ]
  for name in TEXTS
  if any(place.split(":")[0] == name and place not in OF_A_RUN for place in PROGRAMS)
}
CELLS = re.findall(r"^```\{code-cell\}\n(.*?)^```", TEXTS["docs/tutorial.md"], flags=re.DOTALL | re.MULTILINE)


def run(program, place, names=None):
  # As a main module, since dataclasses look up their module.
  exec(compile(program, place, "exec"), {"__name__": "__main__"} if names is None else names)


@pytest.mark.parametrize("name", STANDALONE)
@pytest.mark.exhaustive
def test_programs_run(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  names = {"__name__": "__main__"}
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    for program in STANDALONE[name]:
      run(program, name, names)


@pytest.mark.exhaustive
def test_programs_with_a_trained_run(tmp_path, monkeypatch, capsys):
  assert OF_A_RUN
  config = base.Config(
    model=base.Model(embed_dim=4, features=6),
    train=base.Train(num_train_steps=1, batch_size=2),
    evaluation=base.Evaluation(num_validation_examples=1, batch_size=2, max_decode_length=5),
  )
  monkeypatch.chdir(tmp_path)
  with jax.numpy_dtype_promotion("standard"):
    train(config, pathlib.Path("runs/toy_translation"))
    for place, program in OF_A_RUN.items():
      run(program, place)
  assert len(capsys.readouterr().out.splitlines()) >= 3


@pytest.mark.exhaustive
def test_tutorial_runs(monkeypatch, capsys):
  assert len(CELLS) >= 6
  shown = []
  matplotlib.use("agg")
  monkeypatch.setattr("matplotlib.pyplot.show", lambda: shown.append(matplotlib.pyplot.close("all")))
  names = {"__name__": "__main__"}
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    for i, cell in enumerate(CELLS):
      run(cell, f"docs/tutorial.md, cell {i}", names)
  assert len(shown) >= 2
  assert "nan" not in capsys.readouterr().out


def test_programs_exist():
  assert len(STANDALONE) >= 15


@pytest.mark.parametrize("name", TEXTS)
def test_links_and_paths_exist(name):
  text = TEXTS[name]
  for script in set(re.findall(r"python -m (experiments\.\w+)", text)):
    assert importlib.util.find_spec(script) is not None, script
  for path in set(re.findall(r"(?:configs|experiments|tests|attention)/[\w/]+\.py\b", text)):
    assert (ROOT / path).exists(), path
  for link in set(re.findall(r"\]\((?!http)([^)#\s]+)", text)):
    assert (ROOT / name).parent.joinpath(link).exists(), link
  makefile = (ROOT / "Makefile").read_text("utf-8")
  for target in set(re.findall(r"^make (\w+)$|`make (\w+)`", text, flags=re.MULTILINE)):
    assert re.search(rf"^{''.join(target)}\b.*:", makefile, flags=re.MULTILINE), target


def test_reference_lists_all_public_names():
  reference = "".join(text for name, text in TEXTS.items() if name.startswith("docs/reference/"))
  named = set(re.findall(r"^\.\. auto\w+:: (\w+)", reference, flags=re.MULTILINE))
  modules = {"masks", "positions", "convert", "decoding", "losses", "jax_nn"}
  names = {name for name, value in vars(attention).items() if not inspect.ismodule(value)}
  assert {name for name in names if not name.startswith("_")} <= named
  for module in (getattr(attention, name) for name in modules):
    public = [name for name in getattr(module, "__all__", dir(module)) if not name.startswith("_")]
    defined = [name for name in public if getattr(getattr(module, name), "__module__", "") == module.__name__]
    assert {*defined} - {"relative_position_bucket"} <= named, module.__name__


def test_readme_is_short():
  assert len(TEXTS["README.md"].splitlines()) <= 100


def test_no_absolute_paths():
  for name, text in TEXTS.items():
    assert not re.search(r"/(?:work|root|tmp)/", text), name
