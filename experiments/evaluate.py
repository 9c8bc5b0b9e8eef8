"""Evaluates a trained translator on all splits of its task, or on a file.

    python -m experiments.evaluate --workdir=runs/toy_translation --beam_size=5
    python -m experiments.evaluate --workdir=runs/mine --data=new.tsv --output=scores.json
    python -m experiments.evaluate --workdir=runs/a --custom_metrics=examples.custom_components:length_ratio

A --data file has one source TAB target per line, and may be compressed (.gz).
"""

import pathlib

from absl import flags

from experiments.cli import decoding_flags
from experiments.cli import flags as cli
from experiments.cli.io import check_files, define_output
from experiments.data.parallel_corpus import read_pairs
from experiments.data.task import make_example
from experiments.evaluation import reporting
from experiments.evaluation.evaluate import evaluate, load_custom_metrics
from experiments.runs.record import check_same_data, read_config
from experiments.runs.restore import load
from experiments.runs.validation import validate
from experiments.runs.workdir import write_json

_WORKDIR = cli.define_workdir(None)
_CHECKPOINT = decoding_flags.define_checkpoint()
_DECODE_FLAGS = decoding_flags.define_decode_flags()
_NUM_EXAMPLES = flags.DEFINE_integer(
  "num_examples",
  None,
  "number of sentences per split; 0 means all; default: from the config, or all with --data",
  lower_bound=0,
)
_CUSTOM_METRICS = flags.DEFINE_string(
  "custom_metrics",
  None,
  "package.module:name, separated by commas, instead of those of the config",
)
_DATA = flags.DEFINE_string("data", None, "file of pairs to evaluate on, instead of the splits of the task")
_ALIGNMENT_TOKENS = decoding_flags.define_alignment_tokens()
_OUTPUT = define_output("JSON file for the results: split -> metric -> value")


def main() -> None:
  folder = cli.workdir_path(_WORKDIR)
  decode_options = decoding_flags.decode_options(_DECODE_FLAGS)
  config = read_config(folder)
  if _CUSTOM_METRICS.value is not None:
    config.evaluation.custom_metrics = _CUSTOM_METRICS.value
    validate(config, imports=False)
  check_files(_DATA, _OUTPUT)
  if _DATA.value is None and flags.FLAGS["alignment_tokens"].present:
    raise cli.UsageError("--alignment_tokens needs --data")
  if _DATA.value is None:
    check_same_data(folder, "validation", "test")
  translator = load(folder, checkpoint=_CHECKPOINT.value, decode_options=decode_options)
  decoding_flags.check_decode_flags(_DECODE_FLAGS, translator.decode_options.beam_size)
  num_examples = config.evaluation.num_eval_examples if _NUM_EXAMPLES.value is None else _NUM_EXAMPLES.value
  if not num_examples and _DATA.value is None and translator.task.is_infinite:
    raise cli.UsageError("--num_examples must be at least 1 for a task with unlimited sentences, got 0")
  custom_metrics = load_custom_metrics(config.evaluation)
  if _DATA.value is None:
    results = reporting.evaluate_splits(translator, num_examples, custom_metrics)
  else:
    pairs = read_pairs(_DATA.value, alignment_tokens=_ALIGNMENT_TOKENS.value)[: _NUM_EXAMPLES.value or None]
    examples = [make_example(pair, translator.task.source, translator.task.target) for pair in pairs]
    results = {pathlib.Path(_DATA.value).name: evaluate(translator, examples, custom_metrics)}
  print(reporting.table(results))
  if _OUTPUT.value is not None:
    write_json(pathlib.Path(_OUTPUT.value), results)


if __name__ == "__main__":
  cli.run(main)
