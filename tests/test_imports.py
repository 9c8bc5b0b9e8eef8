"""Imports follow one direction: no package imports from a higher layer."""

import ast
import pathlib
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
STANDARD = sys.stdlib_module_names
LIBRARIES = {"jax", "flax", "chex", "numpy"}

# Each package of the library may import the packages before it, and its own modules. The pure ones do not use
# Flax.
PURE = (
  *("arrays", "masks", "scores", "biases", "normalizers", "engines", "masked_softmax", "linear", "combine"),
  *("validation", "functional", "statistics", "distributed", "grouped_heads", "multi_head", "jax_nn"),
  *("positions", "decoding", "losses"),
)
ORDER = (*PURE, "layers", "models", "convert", "__init__")
# Which packages each top-level package may import.
PARTS = {
  "attention": {"attention"},
  "configs": {"attention", "configs"},
  "experiments": {"attention", "configs", "experiments"},
  "examples": {"attention", "configs", "examples", "experiments"},
}
# Each package of the experiments may import the packages before it; packages that are not listed may import
# any of these.
PACKAGES = (
  *("cli", "devices", "data", "learning", "inference", "evaluation", "runs", "training", "figures"),
  "comparison",
)


def imports(path):
  """Returns the dotted names that a file imports. Relative imports are not allowed."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{path} has a relative import"
      names |= {f"{node.module}.{alias.name}" for alias in node.names}
  return names


def packages(path):
  return {name.split(".")[0] for name in imports(path)}


def part_of(path, folder):
  """Returns the package or module of a folder that a file is in."""
  return path.relative_to(ROOT / folder).with_suffix("").parts[0]


@pytest.mark.parametrize("part", PARTS)
def test_no_package_imports_upwards(part):
  for path in (ROOT / part).rglob("*.py"):
    assert packages(path) & {*PARTS, "tests"} <= PARTS[part], path


def test_library_modules_import_only_earlier_ones():
  paths = [*(ROOT / "attention").rglob("*.py")]
  assert {part_of(path, "attention") for path in paths} == set(ORDER)
  for path in paths:
    words = [name.split(".") for name in imports(path)]
    # `from attention import masks` counts as masks.
    own = [
      rest[0] if rest and rest[0] in ORDER else "__init__" for first, *rest in words if first == "attention"
    ]
    place = ORDER.index(part_of(path, "attention")) + (path.parent != ROOT / "attention")
    assert not {*own} & {*ORDER[place:]}, path


def test_library_imports_four_packages():
  for path in (ROOT / "attention").rglob("*.py"):
    assert packages(path) <= LIBRARIES | {"attention"} | STANDARD, path
    assert "flax" not in packages(path) or part_of(path, "attention") not in PURE, path


def test_experiment_packages_import_only_earlier_ones():
  for path in (ROOT / "experiments").glob("*/**/*.py"):
    # Packages import no scripts, which are modules of `experiments` itself.
    own = [name.split(".") for name in imports(path) if name.split(".")[0] == "experiments"]
    package = part_of(path, "experiments")
    allowed = {package, *(PACKAGES[: PACKAGES.index(package)] if package in PACKAGES else PACKAGES)}
    assert all(len(words) > 1 and words[1] in allowed for words in own), path


def test_requirements_agree_with_pyproject():
  needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
  lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
  required = [line for line in lines if line and not line.startswith("#")]
  assert needed == required[: len(needed)]
