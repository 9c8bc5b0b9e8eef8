"""What `import attention` and scripts load."""

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
STANDARD = sys.stdlib_module_names
LIBRARIES = {"jax", "flax", "chex", "numpy"}


def test_import_loads_no_other_packages():
  program = f"""
import json, sys
import {", ".join(sorted(LIBRARIES))}, flax.linen
before = set(sys.modules)
from attention import *
import attention
print(json.dumps(sorted(set(sys.modules) - before)))
assert MultiHeadAttention is attention.MultiHeadAttention is attention.layers.MultiHeadAttention
assert {{"attend", "gru", "masks", "Seq2Seq"}} <= {{*dir(attention)}}
assert not hasattr(attention, "nothing")
"""
  result = subprocess.run(
    [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
  )
  loaded = {name.split(".")[0] for name in json.loads(result.stdout)}
  assert "attention" in loaded
  assert loaded <= LIBRARIES | {"attention", "jaxlib"} | STANDARD


@pytest.mark.parametrize("script", ["train", "translate"])
def test_scripts_import_matplotlib_only_to_draw(script):
  program = f"import sys, experiments.{script}; assert 'matplotlib' not in sys.modules"
  subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
