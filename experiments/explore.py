r"""Writes an interactive page with a trained translator, to inspect and change its attention.

    python -m experiments.explore --workdir=runs/toy_translation --output=explore.html
    python -m experiments.explore --workdir=runs/additive,runs/no_attention --output=explore.html
    python -m experiments.explore --workdir=runs/multi30k --input=sentences.txt --output=explore.html
    python -m experiments.explore --weights=bert.npz --output=explore.html

The page is one file and needs no network. It runs recurrent translators of words or characters in the
browser. For other models it shows recorded attention of the sentences of --input, or of the first sentences
of the task. With --weights it shows the attention of any model: a NumPy file has weights [layers heads T S],
and tokens [S] or source [S] and target [T]. Two of several runs or files can be compared side by side.
"""

import pathlib
import re
from collections.abc import Sequence

from absl import flags

from configs import base
from experiments.cli import flags as cli
from experiments.cli.io import check_files, define_input, define_output, output_path, read_lines, write_text
from experiments.data.task import Example
from experiments.explorer.bundle import page
from experiments.explorer.live import live_model, unsupported_reason
from experiments.explorer.recorded import recorded_model, weights_file
from experiments.inference.translator import Translator
from experiments.runs import load
from experiments.runs.record import read_config
from experiments.runs.restore import kept_params

_WORKDIR = cli.define_workdir(
  None, "folder of the run, or folders to compare, separated by commas (required without --weights)"
)
_WEIGHTS = flags.DEFINE_list(
  "weights", [], "NumPy files with attention weights and tokens of any model, separated by commas"
)
_INPUT = define_input("file of example sentences, one per line")
_OUTPUT = define_output("HTML file to write (required)")
_CHECKPOINTS = flags.DEFINE_list(
  "checkpoints", [], "steps of the checkpoints to include, separated by commas; empty means all"
)
_NUM_EXAMPLES = flags.DEFINE_integer(
  "num_examples", 40, "number of example sentences per split", lower_bound=1
)
_NUM_RECORDED = flags.DEFINE_integer(
  "num_recorded", 10, "number of sentences with recorded attention, without --input", lower_bound=1
)


def main() -> None:
  paths = [pathlib.Path(name) for name in _WEIGHTS.value if name]
  if _WEIGHTS.present and not paths:
    raise cli.UsageError(f"--weights must name files, separated by commas, got {','.join(_WEIGHTS.value)!r}")
  folders = [] if paths and _WORKDIR.value is None else cli.workdir_paths(_WORKDIR)
  output = output_path(_OUTPUT)
  check_files(_INPUT, _OUTPUT)
  names = _names([*(path.parent / path.stem for path in paths), *folders])
  runs = [weights_file(path) | {"name": name} for path, name in zip(paths, names, strict=False)]
  for folder, name in zip(folders, names[len(paths) :], strict=True):
    config, translator = read_config(folder), load(folder)
    run = {"name": name, "summary": _summary(config)}
    if reason := unsupported_reason(config, translator):
      run |= recorded_model(translator, reason, _sentences(translator))
    else:
      run |= live_model(config, translator, kept_params(folder, _steps()), _examples(translator))
    runs.append(run)
  write_text(output, page({"runs": runs}))
  print(f"wrote {output}: {output.stat().st_size / 1e6:.1f} MB; open it in a browser")


def _names(paths: Sequence[pathlib.Path]) -> list[str]:
  """Returns the last parts of the paths if they are distinct, else the paths."""
  if len({path.resolve() for path in paths}) < len(paths):
    raise cli.UsageError(
      f"--workdir and --weights must name distinct paths, got {', '.join(map(str, paths))}"
    )
  names = [path.resolve().name for path in paths]
  return names if len({*names}) == len(names) else [str(path) for path in paths]


def _steps() -> list[int]:
  if not all(re.fullmatch("[0-9]+", step) for step in _CHECKPOINTS.value):
    value = ",".join(_CHECKPOINTS.value)
    raise cli.UsageError(f"--checkpoints must be steps separated by commas, got {value!r}")
  return [int(step) for step in _CHECKPOINTS.value]


def _summary(config: base.Config) -> str:
  """Returns a short description of the model."""
  model, is_mean = config.model, config.evaluation.checkpoint == "average"
  parts = [f"{model.encoder} encoder"]
  if model.decoder == "recurrent":
    parts += [
      f"{'no' if model.attention == 'none' else model.attention} attention",
      *(["attends after the state update"] if model.attend_order == "after" else []),
    ]
  else:
    parts.append(f"{model.decoder} decoder")
  parts += [f"{model.features} features", f"seed {config.seed}"]
  return ", ".join([*parts, *(["single checkpoint, not averaged"] if is_mean else [])])


def _examples(translator: Translator) -> dict[str, list[Example]]:
  """Returns example sentences: those of --input, and some of each split."""
  task, count = translator.task, _NUM_EXAMPLES.value
  custom = [] if _INPUT.value is None else _read_input()
  return {"input file": custom} | {split: task.examples(split, count)[:count] for split in task.splits}


def _read_input() -> list[Example]:
  """Returns the sentences of --input, without translations."""
  lines = [line.strip() for line in read_lines(pathlib.Path(_INPUT.value)) if line.strip()]
  if not lines:
    raise cli.UsageError(f"--input must have at least one sentence, got none in {_INPUT.value}")
  return [Example((), (), None, line, "") for line in lines]


def _sentences(translator: Translator) -> list[Example]:
  """Returns the sentences to record: those of --input, or the first ones of the task."""
  if _INPUT.value is not None:
    return _read_input()
  task = translator.task
  return task.examples(task.splits[0], _NUM_RECORDED.value)[: _NUM_RECORDED.value]


if __name__ == "__main__":
  cli.run(main)
