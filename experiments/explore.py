r"""Writes a page in which a trained translator lives: type a sentence, see its attention, change it.

    python -m experiments.explore --workdir=runs/toy_translation --output=explore.html
    python -m experiments.explore --workdir=runs/additive,runs/no_attention --output=explore.html
    python -m experiments.explore --workdir=runs/multi30k --input=sentences.txt --output=explore.html

The page is one file, which needs no network. It runs recurrent translators of words or characters by itself,
several side by side. Of others it shows the attention of some sentences, those of --input, or the first ones
of the task.
"""

import pathlib
import re
from collections.abc import Sequence

from absl import flags

from configs import base
from experiments.cli import flags as cli
from experiments.cli.io import check_files, define_input, define_output, read_lines, write_text
from experiments.explorer.bundle import page
from experiments.explorer.live import live_model, why_not
from experiments.explorer.recorded import recorded_model
from experiments.tasks import Example
from experiments.text.parallel_corpus import SentencePair
from experiments.translation import load
from experiments.translation.restore import kept_params
from experiments.translation.run_config import read_config
from experiments.translation.translator import Translator

_WORKDIR = cli.define_workdir(None, "folder of the run; several, with commas between, are put side by side")
_INPUT = define_input("file with a sentence in each line, to be recorded, and to choose from")
_OUTPUT = define_output("file for the page, such as explore.html")
_CHECKPOINTS = flags.DEFINE_list(
  "checkpoints", [], "steps of the checkpoints that the page has; all that are kept if none is named"
)
_EXAMPLES = flags.DEFINE_integer("num_examples", 40, "sentences of each split to choose from", lower_bound=1)
_RECORDED = flags.DEFINE_integer(
  "num_recorded", 10, "sentences whose attention is recorded without --input", lower_bound=1
)


def main() -> None:
  folders = cli.workdir_paths(_WORKDIR)
  if _OUTPUT.value is None:
    raise cli.UsageError("--output must name a file such as explore.html, got none")
  check_files(_INPUT, _OUTPUT)
  runs = []
  for folder, name in zip(folders, _names(folders), strict=True):
    config, translator = read_config(folder), load(folder)
    run = {"name": name, "summary": _summary(config)}
    if reason := why_not(config, translator):
      run |= recorded_model(translator, reason, _sentences(translator))
    else:
      run |= live_model(config, translator, kept_params(folder, _steps()), _examples(translator))
    runs.append(run)
  path = pathlib.Path(_OUTPUT.value)
  write_text(path, page({"runs": runs}))
  print(f"wrote {path}: {path.stat().st_size / 1e6:.1f} MB; open it in a browser")


def _names(folders: Sequence[pathlib.Path]) -> list[str]:
  """Returns the folders' own names, if these are distinct."""
  if len({folder.resolve() for folder in folders}) < len(folders):
    raise cli.UsageError(f"--workdir must name distinct folders, got {_WORKDIR.value}")
  names = [folder.resolve().name for folder in folders]
  return names if len({*names}) == len(names) else [str(folder) for folder in folders]


def _steps() -> list[int]:
  if not all(re.fullmatch("[0-9]+", step) for step in _CHECKPOINTS.value):
    got = ",".join(_CHECKPOINTS.value)
    raise cli.UsageError(f"--checkpoints must be steps such as 300,600, got {got}")
  return [int(step) for step in _CHECKPOINTS.value]


def _summary(config: base.Config) -> str:
  """Returns what a person needs to tell one run from another."""
  model, is_mean = config.model, config.evaluation.checkpoint == "average"
  parts = [f"{model.encoder} encoder"]
  if model.decoder == "recurrent":
    parts += [
      f"{model.attention} attention",
      *(["looks after reading"] if model.attend_order == "after" else []),
    ]
  else:
    parts.append(f"{model.decoder} decoder")
  parts += [f"{model.features} features", f"seed {config.seed}"]
  return ", ".join([*parts, *(["not the mean of its checkpoints"] if is_mean else [])])


def _examples(translator: Translator) -> dict[str, list[Example]]:
  """Returns sentences to choose from: those of --input, and some of each split."""
  task, count = translator.task, _EXAMPLES.value
  own = [] if _INPUT.value is None else [Example((), (), None, each.source, "") for each in _lines()]
  return {"your own": own} | {split: task.examples(split, count)[:count] for split in task.splits}


def _lines() -> list[SentencePair]:
  """Returns the sentences of --input, without translations."""
  lines = [line.strip() for line in read_lines(pathlib.Path(_INPUT.value)) if line.strip()]
  if not lines:
    raise cli.UsageError(f"--input must have a sentence, got none in {_INPUT.value}")
  return [SentencePair(line, "") for line in lines]


def _sentences(translator: Translator) -> list[SentencePair]:
  """Returns the sentences to record: those of --input, or the first ones of the task."""
  if _INPUT.value is not None:
    return _lines()
  task = translator.task
  examples = task.examples(task.splits[0], _RECORDED.value)[: _RECORDED.value]
  # Links are those of the true translation; without them a model's own says more of it.
  return [
    SentencePair(each.source_text, "" if each.alignment is None else each.target_text, each.alignment)
    for each in examples
  ]


if __name__ == "__main__":
  cli.run(main)
