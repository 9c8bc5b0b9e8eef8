r"""Writes sentence pairs of a task as tab-separated text, for other toolkits.

    python -m experiments.export_data --config=configs/toy_translation.py --split=train --num_examples=10000 \
        --output=pairs.tsv

Each line is source TAB target, and TAB alignment in Pharaoh format (source-target positions of words, 0-0
1-2) if it is known. Parallel text has alignments only with config.data.tokenization=word.
"""

from absl import flags

from experiments.cli import flags as cli
from experiments.tasks import make_task
from experiments.text.parallel_corpus import SentencePair, write_pairs
from experiments.translation.validation import validate

cli.define_config()
_SPLIT = flags.DEFINE_string("split", "train", "split of the task")
_NUM_EXAMPLES = flags.DEFINE_integer("num_examples", 10_000, "number of pairs; 0 means all", lower_bound=0)
_OUTPUT = flags.DEFINE_string("output", None, "file to write, compressed if it ends in .gz (required)")


def main() -> None:
  config = cli.get_config()
  validate(config)
  if not _OUTPUT.value:
    raise cli.UsageError("--output must name a file, got none")
  task = make_task(config)
  examples = task.examples(_SPLIT.value, _NUM_EXAMPLES.value)
  pairs = [SentencePair(example.source_text, example.target_text, example.alignment) for example in examples]
  write_pairs(_OUTPUT.value, pairs)
  print(f"wrote {len(pairs):,} pairs to {_OUTPUT.value}")


if __name__ == "__main__":
  cli.run(main)
