"""Imports follow one direction: no package imports from a higher layer."""

import ast
import json
import pathlib
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]

# Each package of the library may import the packages before it, and its own modules. The first ones do not
# use Flax.
PURE = (
  "arrays",
  "masks",
  "scores",
  "biases",
  "normalizers",
  "engines",
  "masked_softmax",
  "linear",
  "combine",
  "validation",
  "functional",
  "statistics",
  "distributed",
  "grouped_heads",
  "multi_head",
  "jax_nn",
  "positions",
  "decoding",
  "losses",
)
FLAX = ("layers", "models", "convert")
ORDER = (*PURE, *FLAX, "__init__")
LIBRARIES = {"jax", "flax", "chex", "numpy"}
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
  "cli",
  "devices",
  "data",
  "learning",
  "inference",
  "evaluation",
  "runs",
  "training",
  "figures",
  "comparison",
)
LIBRARY_FILES = sorted((ROOT / "attention").rglob("*.py"))
FILES = [path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))]


def name_of(path):
  return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def module_of(path):
  """Returns the package of a file of the library."""
  return path.relative_to(ROOT / "attention").with_suffix("").parts[0]


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


def library_imports(path):
  """Returns the library packages that a file imports; `from attention import masks` counts as masks."""
  output = set()
  for name in imports(path):
    package, *rest = name.split(".")
    if package == "attention":
      output.add(rest[0] if rest and rest[0] in ORDER else "__init__")
  return output


def test_order_names_every_module():
  assert {module_of(path) for path in LIBRARY_FILES} == set(ORDER)


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=name_of)
def test_modules_import_only_earlier_ones(path):
  place = ORDER.index(module_of(path))
  is_part = path.parent != ROOT / "attention"
  assert not library_imports(path) & set(ORDER[place + is_part :])


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=name_of)
def test_library_imports_four_packages(path):
  packages = {name.split(".")[0] for name in imports(path)}
  assert packages <= LIBRARIES | {"attention"} | sys.stdlib_module_names


@pytest.mark.parametrize("path", [path for path in LIBRARY_FILES if module_of(path) in PURE], ids=name_of)
def test_the_pure_functions_import_no_flax(path):
  packages = {name.split(".")[0] for name in imports(path)}
  assert "flax" not in packages


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_package_imports_upwards(path):
  packages = {name.split(".")[0] for name in imports(path)}
  assert packages & {*PARTS, "tests"} <= PARTS[path.relative_to(ROOT).parts[0]]


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*/**/*.py")), ids=name_of)
def test_experiment_packages_import_only_earlier_ones(path):
  # Packages import no scripts, which are modules of `experiments` itself.
  own = [name.split(".") for name in imports(path) if name.split(".")[0] == "experiments"]
  package = path.relative_to(ROOT / "experiments").parts[0]
  allowed = {package, *(PACKAGES[: PACKAGES.index(package)] if package in PACKAGES else PACKAGES)}
  assert all(len(words) > 1 and words[1] in allowed for words in own)


def test_import_loads_no_other_packages():
  program = f"""
import json, sys
import {", ".join(sorted(LIBRARIES))}, flax.linen
before = set(sys.modules)
import attention
print(json.dumps(sorted(set(sys.modules) - before)))
"""
  result = subprocess.run(
    [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
  )
  packages = {name.split(".")[0] for name in json.loads(result.stdout)}
  assert "attention" in packages
  assert packages <= LIBRARIES | {"attention", "jaxlib"} | sys.stdlib_module_names


@pytest.mark.parametrize("script", ["train", "evaluate", "translate"])
def test_scripts_import_matplotlib_only_to_draw(script):
  program = f"import sys, experiments.{script}; assert 'matplotlib' not in sys.modules"
  subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_star_import_has_public_names():
  program = """
import attention
from attention import *
assert MultiHeadAttention is attention.MultiHeadAttention is attention.layers.MultiHeadAttention
assert {"attend", "gru", "masks", "Seq2Seq"} <= {*dir(attention)}
assert not hasattr(attention, "nothing")
"""
  subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_requirements_agree_with_pyproject():
  needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
  lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
  required = [line for line in lines if line and not line.startswith("#")]
  assert needed == required[: len(needed)]
