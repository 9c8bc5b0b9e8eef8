"""explore.py: pages with a run that the page can run, another, and weights from a file."""

import json
import re

import numpy as np
import pytest

from experiments.runs import load

pytestmark = pytest.mark.slow


@pytest.fixture
def explore(run, tmp_path):
  """Returns a function that returns the runs in the page, and the output of the script."""
  path = tmp_path / "explore.html"

  def explore(*flags):
    finished = run("explore", f"--output={path}", *flags)
    (text,) = re.findall(
      r'<script type="application/json" id="data"[^>]*>(.*?)</script>', path.read_text("utf-8")
    )
    assert finished.output.startswith(f"wrote {path}: ")
    return json.loads(text)["runs"]

  return explore


def test_live_runs_have_checkpoints_and_examples(trained, explore):
  (run,) = explore(f"--workdir={trained[0]}", "--num_examples=3")
  assert run["name"] == "toy"
  assert run["summary"] == "recurrent encoder, additive attention, 8 features, seed 0"
  assert [item["step"] for item in run["checkpoints"]] == [3, 6] and run["step"] in (3, 6)
  assert len({item["arrays"] for item in run["checkpoints"]}) == 2
  splits = ["validation", "test", "length", "composition"]
  assert [item["split"] for item in run["examples"]] == [split for split in splits for _ in range(3)]
  assert all(item["links"] for item in run["examples"])


def test_transformers_and_files_are_recorded(trained, transformer, explore, tmp_path):
  weights = tmp_path / "bert.npz"
  np.savez(weights, weights=np.full((1, 2, 3, 3), 1 / 3), tokens=["a", "b", "c"])
  folders = f"--workdir={trained[0]},{transformer}"
  runs = explore(folders, f"--weights={weights}", "--num_recorded=2", "--checkpoints=6")
  assert [item["name"] for item in runs] == ["bert", "toy", "transformer"]
  assert [item["step"] for item in runs[1]["checkpoints"]] == [6]
  assert runs[2]["why"] == "config.model.encoder is transformer"
  assert runs[2]["summary"] == "transformer encoder, additive attention, 8 features, seed 0"
  assert len(runs[2]["sentences"]) == 2
  for sentence in runs[2]["sentences"]:
    T, S = len(sentence["rows"]), len(sentence["columns"])
    assert sentence["rows"][-1] == sentence["columns"][-1] == "</s>" and sentence["links"]
    shapes = {side: item["shape"] for side, item in sentence["sides"].items()}
    assert shapes == {"encoder": [1, 2, S, S], "decoder": [1, 1, T, S]}


def test_input_sentences_are_recorded(trained, transformer, explore, tmp_path):
  path, texts = tmp_path / "lines.txt", ["a cat </script>", "the dog"]
  path.write_text("a cat </script>\n\nthe dog\n", "utf-8")
  live, recorded = explore(f"--workdir={trained[0]},{transformer}", f"--input={path}")
  assert [item["source"] for item in live["examples"][:2]] == texts
  assert [item["split"] for item in live["examples"][:3]] == ["input file", "input file", "validation"]
  sentences = recorded["sentences"]
  assert [(item["source_text"], item["links"]) for item in sentences] == [(text, None) for text in texts]
  for sentence, item in zip(sentences, load(transformer).translate(texts), strict=True):
    assert tuple(sentence["rows"]) == (*item.tokens, *(() if item.is_truncated else ("</s>",)))
  assert sentences[0]["columns"] == ["a", "cat", "<", "/", "script", ">", "</s>"]


ERRORS = [
  ("", "--workdir must name the folder of a run, got none"),
  ("--workdir=nothing", "nothing: "),
  ("--workdir=RUN --checkpoints=7", "step must be one of the checkpoints"),
  ("--workdir=RUN --checkpoints=best", "--checkpoints must be steps separated by commas"),
  ("--workdir=RUN --num_examples=0", "num_examples"),
  ("--workdir=RUN,RUN", "--workdir and --weights must name distinct paths"),
  ("--workdir=RUN --input=none", "cannot read the file: No such file"),
  ("--workdir=RUN --input=/dev/null", "--input must have at least one sentence, got none in /dev/null"),
  ("--weights=,", "--weights must name files, separated by commas, got ','"),
  ("--weights=.", ".: cannot read the file: Is a directory"),
]


@pytest.mark.parametrize(("flags", "message"), ERRORS)
def test_user_errors_are_one_line(trained, error_of, tmp_path, flags, message):
  path = tmp_path / "page.html"
  assert message in error_of("explore", f"--output={path}", *flags.replace("RUN", str(trained[0])).split())
  assert not path.exists()
