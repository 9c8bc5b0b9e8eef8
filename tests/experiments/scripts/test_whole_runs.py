"""Whole runs: interrupted sweeps, and runs with custom normalizers, decoders and metrics."""

import json
import time

import jax
import numpy as np
import pytest
from helpers import scripts

from experiments.runs import load
from tests.experiments.scripts.test_custom_scripts import MODULE
from tests.experiments.scripts.test_sweep_script import FILE

pytestmark = pytest.mark.nightly

TASK = f"--config.data.task={MODULE}:Reversal"


def test_interrupted_sweeps_give_equal_results(run, tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(FILE.replace("eval_every_steps = 2", "eval_every_steps = 60"), "utf-8")
  results = {}
  for name in ("disturbed", "undisturbed"):
    flags = (f"--config={path}", f"--workdir={tmp_path / name}", "--num_parallel=2")
    folders = [tmp_path / name / f"learning_rate={rate}_seed=0" for rate in (0.01, 0.001)]
    if name == "disturbed":
      with scripts.start("sweep", *flags) as running:
        while not (folders[0] / "checkpoints").exists():
          assert running.process.is_alive()
          time.sleep(0.05)
        running.process.terminate()
        assert running.finish().code == 143
      with scripts.start("sweep", *flags) as running:
        running.wait_for("started")  # then the sweep is killed, but its runs continue
    run("sweep", *flags)
    files = "metrics.jsonl", "results.json"
    results[name] = [(folder / file).read_text("utf-8") for folder in folders for file in files]
  assert results["disturbed"] == results["undisturbed"]


def test_normalizers_may_have_any_weights(run, small, tmp_path, write_module):
  module = write_module(
    "import dataclasses, attention\n"
    "@attention.register_pytree\n"
    "@dataclasses.dataclass(frozen=True)\n"
    "class Scaled(attention.Normalizer):\n"
    "  def weights(self, tile, state):\n"
    "    return 20 * tile.scores\n"
    "def scaled(config):\n  return Scaled()\n"
  )
  folder, page = tmp_path / "run", tmp_path / "explore.html"
  trained = run("train", f"--workdir={folder}", *small, TASK, f"--config.model.normalizer={module}:scaled")
  assert "warning" not in trained.errors
  assert len([*(folder / "figures").glob("attention_*.png")]) == 5
  run("explore", f"--workdir={folder}", f"--output={page}")
  data = json.loads(page.read_text("utf-8").split('id="data"')[1].split(">", 1)[1].split("</script>")[0])
  sides = [side["sides"]["decoder"] for side in data["runs"][0]["sentences"]]
  assert min(side["low"] for side in sides) < 0 and max(side["high"] for side in sides) > 1


def test_custom_decoders_beam_search(run, small, tmp_path):
  folder, text = tmp_path / "run", "a b c d"
  run("train", f"--workdir={folder}", *small, TASK, f"--config.model.decoder={MODULE}:feedback_decoder")
  with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
    translator = load(folder, decode_options={"beam_size": 3, "max_length": 40})
    assert type(translator.model.decoder).__name__ == "FeedbackDecoder"
    (translation,) = translator.translate([text])
    (scored,) = translator.score([(text, translation.text)])
  # Beam search gives the same scores and weights as teacher forcing.
  assert not translation.is_truncated
  np.testing.assert_allclose(translation.score * scored.num_tokens, scored.log_probability, rtol=1e-4)
  np.testing.assert_allclose(translation.attention, scored.attention, rtol=1e-4, atol=1e-6)


def test_failed_metrics_can_be_fixed(run, small, tmp_path, write_module):
  text = "calls = []\ndef late(*_):\n  calls.append(0)\n  return {}\n"
  module = write_module(text.format("1 / (len(calls) < 3)"))  # before training, then at steps 3 and 6
  flags = f"--workdir={tmp_path / 'run'}", *small, TASK, f"--config.evaluation.custom_metrics={module}:late"
  failed = scripts.run("train", *flags)
  line = f"{module}:late: ZeroDivisionError: division by zero ({tmp_path / module}.py, line 4)"
  assert failed.code == 2 and failed.errors.splitlines()[-1].endswith(line)
  write_module(text.format("1"))
  assert "resuming after step 3 of 6" in run("train", *flags).output
