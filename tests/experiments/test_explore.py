"""Tests of experiments/explore.py, with runs that the page can run and others."""

import json
import re

import jax
import pytest
from helpers import scripts

from configs import base
from experiments.runs import load
from experiments.training.loop import train

pytestmark = pytest.mark.exhaustive


def trained(folder, **model):
  config = base.Config(
    model=base.Model(embed_dim=5, features=8, **model),
    train=base.Train(
      num_train_steps=2, batch_size=3, eval_every_steps=1, learning_rate=2.0
    ),  # the first checkpoint is the best
    evaluation=base.Evaluation(
      num_validation_examples=1, num_eval_examples=2, batch_size=2, max_decode_length=7
    ),
  )
  with jax.numpy_dtype_promotion("standard"):  # required by optax
    train(config, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with two runs."""
  folder = tmp_path_factory.mktemp("runs")
  trained(folder / "recurrent")
  trained(folder / "transformer", encoder="transformer", num_heads=2)
  return folder


def explore(folder, *names, flags=()):
  """Returns the data of the page, and the output of the script."""
  path = folder / "explore.html"
  workdir = ",".join(str(folder / name) for name in names)
  finished = scripts.run("explore", f"--workdir={workdir}", f"--output={path}", *flags)
  assert finished.code == 0, finished
  (text,) = re.findall(
    r'<script type="application/json" id="data"[^>]*>(.*?)</script>', path.read_text("utf-8")
  )
  return json.loads(text)["runs"], finished.output


def test_live_runs_have_checkpoints_and_examples(folder):
  (run,), output = explore(folder, "recurrent", flags=["--num_examples=3"])
  assert output.startswith(f"wrote {folder / 'explore.html'}: 0.")
  assert run["name"] == "recurrent"
  assert run["summary"] == "recurrent encoder, additive attention, 8 features, seed 0"
  assert [item["step"] for item in run["checkpoints"]] == [1, 2]
  assert len({item["arrays"] for item in run["checkpoints"]}) == 2
  splits = ["validation", "test", "length", "composition"]
  assert run["step"] == 1
  assert [item["split"] for item in run["examples"]] == [split for split in splits for _ in range(3)]
  assert all(item["links"] for item in run["examples"])
  (run,), _ = explore(folder, "recurrent", flags=["--checkpoints=2"])
  assert [item["step"] for item in run["checkpoints"]] == [2]


def test_transformers_are_recorded(folder):
  runs, _ = explore(folder, "recurrent", "transformer", flags=["--num_recorded=2"])
  assert [item["name"] for item in runs] == ["recurrent", "transformer"]
  assert runs[1]["why"] == "config.model.encoder is transformer"
  assert len(runs[1]["sentences"]) == 2
  for sentence in runs[1]["sentences"]:
    T, S = len(sentence["rows"]), len(sentence["columns"])
    assert sentence["rows"][-1] == sentence["columns"][-1] == "</s>"
    shapes = {side: item["shape"] for side, item in sentence["sides"].items()}
    assert shapes == {"encoder": [1, 2, S, S], "decoder": [1, 1, T, S]}
    assert sentence["links"]


def test_input_sentences_are_recorded(folder, tmp_path):
  path, texts = tmp_path / "lines.txt", ["a cat </script>", "the dog"]
  path.write_text("a cat </script>\n\nthe dog\n", "utf-8")
  (live, recorded), _ = explore(folder, "recurrent", "transformer", flags=[f"--input={path}"])
  assert [item["source"] for item in live["examples"][:2]] == texts
  assert [item["split"] for item in live["examples"][:3]] == ["input file", "input file", "validation"]
  sentences = recorded["sentences"]
  assert [(item["source_text"], item["links"]) for item in sentences] == [(text, None) for text in texts]
  # With translations by the model.
  translations = load(folder / "transformer").translate(texts)
  eos = [() if item.is_truncated else ("</s>",) for item in translations]
  assert [tuple(item["rows"]) for item in sentences] == [
    (*item.tokens, *eos_label) for item, eos_label in zip(translations, eos, strict=True)
  ]
  assert [item["columns"] for item in sentences] == [
    ["a", "cat", "<", "/", "script", ">", "</s>"],
    ["the", "dog", "</s>"],
  ]


PAGE = "--output=OUT/page.html"


@pytest.mark.parametrize(
  "flags, message",
  [
    ([PAGE], "--workdir must name the folder of a run, got none"),
    (["--workdir=OUT/nothing", PAGE], "nothing"),
    (["--workdir=RUN"], "--output must name a file, got none"),
    (["--workdir=RUN", "--output=OUT"], "--output must be a file, got the folder"),
    (["--workdir=RUN", "--output=OUT/no/page.html"], "--output must be in an existing folder"),
    (["--workdir=RUN", PAGE, "--checkpoints=7"], "step must be one of the checkpoints"),
    (["--workdir=RUN", PAGE, "--checkpoints=best"], "--checkpoints must be steps separated by commas"),
    (["--workdir=RUN", PAGE, "--num_examples=0"], "num_examples"),
    (["--workdir=RUN,RUN", PAGE], "--workdir and --weights must name distinct paths"),
    (["--workdir=RUN", PAGE, "--input=OUT/none"], "cannot read the file: No such file"),
    (["--workdir=RUN", PAGE, "--input="], "--input must name a file, got none"),
    (["--weights=,", PAGE], "--weights must name files, separated by commas, got ','"),
    (["--weights=.", PAGE], ".: cannot read the file: Is a directory"),
    (["--workdir=RUN", PAGE, "--input=OUT/empty"], "--input must have at least one sentence"),
  ],
)
def test_user_errors_are_one_line(folder, tmp_path, flags, message):
  (tmp_path / "empty").write_text(" \n\n", "utf-8")
  names = {"OUT": str(tmp_path), "RUN": str(folder / "recurrent")}
  arguments = [re.sub("OUT|RUN", lambda match: names[match.group()], flag) for flag in flags]
  finished = scripts.run("explore", *arguments)
  assert finished.code == 2
  assert message in finished.errors and finished.errors.count("\n") == 1
  assert not (tmp_path / "page.html").exists()
