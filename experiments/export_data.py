r"""Writes sentence pairs of a task as tab-separated text, for other toolkits.

    python -m experiments.export_data --config=configs/toy_translation.py --split=train --num_examples=10000 \
        --output=pairs.tsv

Each line is source TAB target, and TAB alignment in Pharaoh format (source-target positions of words, 0-0
1-2) if it is known. Parallel text has alignments only with config.data.tokenization=word.
"""

from absl import flags

from experiments.cli import flags as cli
from experiments.cli.io import output_path
from experiments.cli.messages import counted
from experiments.data.parallel_corpus import SentencePair, write_pairs
from experiments.data.tasks import make_task
from experiments.runs.validation import validate

cli.define_config()
_SPLIT = flags.DEFINE_string("split", "train", "split of the task")
_NUM_EXAMPLES = flags.DEFINE_integer("num_examples", 10_000, "number of pairs; 0 means all", lower_bound=0)
_OUTPUT = flags.DEFINE_string("output", None, "file to write, compressed if it ends in .gz (required)")


def main() -> None:
  config = cli.get_config()
  validate(config)
  path = output_path(_OUTPUT)
  task = make_task(config)
  splits = dict.fromkeys(("train", task.validation_split, *task.splits))
  if _SPLIT.value not in splits:
    raise cli.UsageError(f"--split must be one of {', '.join(splits)}, got {_SPLIT.value!r}")
  if not _NUM_EXAMPLES.value and task.is_infinite:
    raise cli.UsageError("--num_examples must be at least 1 for a task with unlimited sentences, got 0")
  examples = task.examples(_SPLIT.value, _NUM_EXAMPLES.value)
  pairs = [SentencePair(example.source_text, example.target_text, example.alignment) for example in examples]
  write_pairs(path, pairs)
  print(f"wrote {counted(len(pairs), 'pair')} to {path}")


if __name__ == "__main__":
  cli.run(main)
