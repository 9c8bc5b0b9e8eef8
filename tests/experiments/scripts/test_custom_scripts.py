"""Custom components in scripts, with examples/custom_components.py."""

import json

import pytest

pytestmark = pytest.mark.slow

MODULE = "examples.custom_components"
FLAGS = (
  *(f"--config.data.task={MODULE}:Reversal", f"--config.model.attention={MODULE}:gaussian"),
  f"--config.model.encoder={MODULE}:bag_of_words",
  f"--config.evaluation.custom_metrics={MODULE}:length_ratio",
  "--config.train.grad_accumulation_steps=3",  # does not divide the batch size, so rows are padded
)


def test_custom_components_train_and_translate(run, small, tmp_path, write_module):
  folder = f"--workdir={tmp_path / 'run'}"
  trained = run("train", folder, *small, *FLAGS)
  assert "reversal of letters" in trained.output
  results = json.loads((tmp_path / "run" / "results.json").read_text("utf-8"))
  assert results["test"]["length_ratio"] > 0
  evaluated = run("evaluate", folder).output
  assert evaluated.strip() in trained.output and "length_ratio" in evaluated
  assert len(run("translate", folder, "--text=a b c").output.splitlines()) == 1
  module = write_module("def first(translations, *_):\n  return len(translations)\n")
  header, row = run("evaluate", folder, f"--custom_metrics={module}:first").output.splitlines()
  assert header.split()[-1] == "first" and float(row.split()[-1]) == 5 and "length_ratio" not in header


IMPORT = "from examples import custom_components\n"
TASK = "class Part(custom_components.Reversal):\n"
NO_LINKS = f"{TASK}  def training_batch(self, i):\n    return super().training_batch(i)._replace(links=None)"
ENCODER = (
  "import attention\n"
  "class Mine(attention.RecurrentEncoder):\n"
  "  def __call__(self, *inputs, deterministic=True):\n"
  "    encoded = super().__call__(*inputs)\n"
  "    return {}\n"
  "def Part(config, size):\n  return Mine(size, 8, 8)"
)
DIVIDED = "encoded._replace(final_state=encoded.final_state / inputs[1][:, None].astype('float32'))"


FAILING = [
  ("data.task", NO_LINKS, "config.train.alignment_loss_weight must be 0 if the batches of the task have no"),
  (
    "data.task",
    "from experiments.data.tokenizers import CharacterTokenizer\n"
    f"{TASK}  def __init__(self, config, languages=None):\n"
    "    super().__init__(config)\n"
    "    mine = custom_components.dataclasses.replace(self.source, tokenizer=CharacterTokenizer())\n"
    "    self.source, self.target = languages or (mine, mine)\n",
    "source and target must be the same for a resumed run",
  ),
  ("model.encoder", ENCODER.format("encoded if deterministic else nothing"), "name 'nothing' is not defined"),
  ("model.encoder", ENCODER.format(DIVIDED), "logits must be finite, also for padding rows"),
]


@pytest.mark.parametrize(("field", "text", "message"), FAILING)
def test_failing_components_are_detected_early(tmp_path, write_module, small, error_of, field, text, message):
  module = write_module(f"{IMPORT}{text}\n")
  flags = [flag for flag in FLAGS if field not in flag]
  flags += [f"--config.{field}={module}:Part", "--config.train.alignment_loss_weight=0.5"]
  line = error_of("train", f"--workdir={tmp_path / 'run'}", *small, *flags)
  assert message in line and line.startswith("config.")
  assert not (tmp_path / "run").exists()
