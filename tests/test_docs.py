"""README.md and docs/: programs run, and the files, scripts and names they mention exist."""

import importlib.util
import inspect
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys

import jax
import matplotlib
import pytest

import attention

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in PAGES if "_build" not in path.parts}
PROGRAMS = {
  f"{name}:{text[: found.start()].count(chr(10)) + 1}": found.group(1)
  for name, text in TEXTS.items()
  for found in re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
}
# Pages of experiments run in the order of the contents, because they use each other's runs and files.
EXPERIMENTS = ["README.md", "docs/howto/custom_normalizer.md"] + [
  f"docs/howto/{page}.md"
  for page in TEXTS["docs/howto/index.md"].split(":caption: Experiments\n")[1].split("```")[0].split()
]
STANDALONE = {
  name: [program for place, program in PROGRAMS.items() if place.split(":")[0] == name]
  for name in TEXTS
  if name not in EXPERIMENTS[2:] and any(place.split(":")[0] == name for place in PROGRAMS)
}
# Flags of training that make runs short, and commands that take hours or need several machines.
SMALL = [
  *("--config.train.num_train_steps=2", "--config.train.batch_size=4", "--config.train.eval_every_steps=1"),
  *("--config.evaluation.num_eval_examples=2", "--config.evaluation.num_validation_examples=2"),
  *("--config.evaluation.max_decode_length=5", "--config.model.features=8", "--config.model.embed_dim=4"),
]
LONG = re.compile("experiments/studies|write_findings")
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


def commands(block):
  """Returns the commands of a block that run in a test, one in each line."""
  lines = block.replace("\\\n", " ").splitlines()
  found = [line for line in lines if re.match(r"(\S*python -m experiments\.|cut |paste )", line)]
  return [line.split("  #")[0] for line in found if not LONG.search(line)]


def run_command(command):
  """Runs a command in the current folder. Training is short."""
  if re.search(r"experiments\.(train|sweep) ", command):
    command = " ".join([command, *SMALL])
  command = re.sub(r"^\S*python ", f"{sys.executable} ", command)
  finished = subprocess.run(command, shell=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
  assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"


@pytest.mark.exhaustive
def test_blocks_of_experiments_run_in_order(tmp_path, monkeypatch):
  shutil.copytree(ROOT / "configs", tmp_path / "configs")
  shutil.copytree(ROOT / "examples", tmp_path / "examples")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  run_command("python -m experiments.train --workdir=runs/toy_translation")  # as `make train`
  for name in EXPERIMENTS:
    names = {"__name__": "__main__"}
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", TEXTS[name], flags=re.DOTALL | re.MULTILINE):
      if language == "python":
        if file := re.match(r"# (\w+\.py)\n", block):
          pathlib.Path(file[1]).write_text(block, "utf-8")
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
          run(block, name, names)
      elif not language:
        for command in commands(block):
          run_command(command)


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
  assert len(STANDALONE) >= 12 and len(EXPERIMENTS) >= 10


@pytest.mark.parametrize("name", TEXTS)
def test_links_and_paths_exist(name):
  text = TEXTS[name]
  for script in set(re.findall(r"python -m (experiments\.\w+)", text)):
    assert importlib.util.find_spec(script) is not None, script
  for path in set(re.findall(r"(?:configs|experiments|tests|attention)/[\w/]+\.py\b", text)):
    assert (ROOT / path).exists(), path
  imports = r"^from ((?:experiments|attention|configs)\b[\w.]*) import (.+)$"
  for module, names in set(re.findall(imports, text, flags=re.MULTILINE)):
    for imported in names.split(", "):
      assert pkgutil.resolve_name(f"{module}.{imported}") is not None
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


def test_signatures_have_plain_defaults(monkeypatch):
  monkeypatch.setenv("PYTHONPATH", "")  # docs/conf.py sets it
  pytest.importorskip("latex2mathml", reason="the requirements of the documentation are not installed")
  spec = importlib.util.spec_from_file_location("conf", ROOT / "docs" / "conf.py")
  conf = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(conf)
  signature = "(a=<class 'jax.numpy.float32'>, b=<function relu at 0x7f>, parent=<flax.X object>, name=None)"
  plain, _ = conf._with_plain_defaults(None, "class", "name", None, None, signature, None)
  assert plain == "(a=float32, b=relu)"
  signature = "(parent=<flax.X object>, name=None, *, c=1)"
  plain, _ = conf._with_plain_defaults(None, "class", "name", None, None, signature, None)
  assert plain == "(*, c=1)"


def test_readme_is_short():
  assert len(TEXTS["README.md"].splitlines()) <= 100


def test_no_absolute_paths():
  for name, text in TEXTS.items():
    assert not re.search(r"/(?:work|root|tmp)/", text), name


def test_files_of_quick_tests_exist():
  shown = subprocess.run(["make", "--dry-run", "quick"], cwd=ROOT, capture_output=True, text=True, check=True)
  paths = re.findall(r"\b(?:tests|experiments|attention)/\S+", shown.stdout)
  assert len(paths) > 10 and all((ROOT / path).exists() for path in paths), paths
