"""README.md and docs/: their programs and commands run."""

import pathlib
import re
import shutil
import subprocess
import sys

import jax
import pytest

from tests.test_docs import ROOT, TEXTS

pytestmark = pytest.mark.nightly

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
BLOCKS = {name: BLOCK.findall(text) for name, text in TEXTS.items()}
# Pages of experiments run in the order of the contents, because they use each other's runs and files.
CONTENTS = TEXTS["docs/howto/index.md"].split(":caption: Experiments\n")[1].split("```")[0].split()
EXPERIMENTS = [
  "README.md",
  "docs/howto/custom_normalizer.md",
  *(f"docs/howto/{page}.md" for page in CONTENTS),
]
STANDALONE = [
  name
  for name, blocks in BLOCKS.items()
  if name not in EXPERIMENTS[2:] and any(language == "python" for language, _ in blocks)
]
# Flags of training that make runs short.
SMALL = [
  *("--config.train.num_train_steps=2", "--config.train.batch_size=4", "--config.train.eval_every_steps=1"),
  *("--config.evaluation.num_eval_examples=2", "--config.evaluation.num_validation_examples=2"),
  *("--config.evaluation.max_decode_length=5", "--config.model.features=8", "--config.model.embed_dim=4"),
]


def run(program, place, names):
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    exec(compile(program, place, "exec"), names)


def main_module():
  return {"__name__": "__main__"}  # dataclasses look up their module


@pytest.mark.parametrize("name", STANDALONE)
def test_programs_run(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  names = main_module()
  for language, program in BLOCKS[name]:
    if language == "python":
      run(program, name, names)


def run_command(command):
  """Runs a command in the current folder. Training is short."""
  if re.search(r"experiments\.(train|sweep) ", command):
    command = " ".join([command, *SMALL])
  command = re.sub(r"^\S*python ", f"{sys.executable} ", command)
  finished = subprocess.run(command, shell=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
  assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"


def test_commands_run_in_order(tmp_path, monkeypatch):
  shutil.copytree(ROOT / "configs", tmp_path / "configs")
  shutil.copytree(ROOT / "examples", tmp_path / "examples")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  run_command("python -m experiments.train --workdir=runs/toy_translation")  # as `make train`
  assert len(EXPERIMENTS) >= 10
  for name in EXPERIMENTS:
    names = main_module()
    for language, block in BLOCKS[name]:
      if language == "python":
        if file := re.match(r"# (\w+\.py)\n", block):
          pathlib.Path(file[1]).write_text(block, "utf-8")
        run(block, name, names)
      for line in [] if language else block.replace("\\\n", " ").splitlines():
        # Studies take hours.
        if re.match(r"(\S*python -m experiments\.|cut |paste )", line) and not re.search(
          "experiments/studies|write_findings", line
        ):
          run_command(line.split("  #")[0])
