"""README.md and docs/: the files, scripts and names that they mention exist."""

import importlib.util
import inspect
import pathlib
import pkgutil
import re

import pytest

import attention
from attention import masks, positions

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = {str(path.relative_to(ROOT)): path for path in PAGES}
TEXTS = {name: path.read_text("utf-8") for name, path in NAMES.items() if "_build/" not in name}


def found(pattern, text):
  return set(re.findall(pattern, text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", TEXTS)
def test_links_and_names_exist(name):
  text = TEXTS[name]
  for script in found(r"python -m ((?:experiments|examples)\.\w+)", text):
    assert importlib.util.find_spec(script) is not None, script
  for path in found(r"(?:configs|examples|experiments|tests|attention)/[\w/]+\.py\b", text):
    assert (ROOT / path).exists(), path
  for module, names in found(r"^from ((?:experiments|attention|configs)\b[\w.]*) import (.+)$", text):
    for imported in names.split(", "):
      assert pkgutil.resolve_name(f"{module}.{imported}") is not None
  for link in found(r"\]\((?!http)([^)#\s]+)", text):
    assert (ROOT / name).parent.joinpath(link).exists(), link
  targets = found(r"^([\w -]+):", (ROOT / "Makefile").read_text("utf-8"))
  for target in found(r"(?:^|`)make ([\w-]+)", text):
    assert target in " ".join(targets).split(), target
  assert not found(r"/(?:work|root|tmp)/", text)  # no absolute paths


def test_reference_lists_all_public_names():
  reference = "".join(text for name, text in TEXTS.items() if name.startswith("docs/reference/"))
  named = found(r"^\.\. auto\w+:: (\w+)", reference)
  names = {name for name, value in vars(attention).items() if not inspect.ismodule(value)}
  assert {name for name in names if not name.startswith("_")} <= named
  for module in ("masks", "positions", "convert", "decoding", "losses", "jax_nn"):
    module = getattr(attention, module)
    # Classes that a package imports from its modules are made by its functions, such as `masks.causal`.
    defined = {
      name
      for name, value in vars(module).items()
      if getattr(value, "__module__", "").startswith(module.__name__)
      and not name.startswith("_")
      and (inspect.isfunction(value) or value.__module__ == module.__name__)
    }
    assert defined, module.__name__
    assert defined - {"relative_position_bucket"} <= named, module.__name__


def test_gallery_shows_all_components():
  lines = "\n".join(found(r"^show.*", TEXTS["docs/gallery.md"]))
  shown = found(r"\w+\.\w+(?=\()", lines)
  expected = {"positions.sinusoidal", "positions.rotary", "positions.rotary_2d"}
  expected |= {f"masks.{name}" for name, value in vars(masks).items() if inspect.isfunction(value)}
  bases = attention.Score, attention.Normalizer, positions.PositionBias
  for module in (attention, positions):
    for name, value in vars(module).items():
      if inspect.isclass(value) and issubclass(value, bases) and value not in bases:
        expected.add(f"{module.__name__.split('.')[-1]}.{name}")
  assert len(expected) > 25
  assert expected - shown == {"masks.as_mask"}  # which returns a mask unchanged


def test_readme_is_short():
  assert len(TEXTS["README.md"].splitlines()) <= 100
