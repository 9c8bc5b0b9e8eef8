r"""Writes sentences of a task as tab-separated text, so that other toolkits can train on the same data.

    python -m experiments.export_data --config=configs/toy_translation.py --split=train --count=10000 \
        --output=pairs.tsv

Each line is source TAB target and, where known, TAB alignment of words in Pharaoh form (source-target:
0-0 1-2). Your own text has alignments here if its unit is the word.
"""

from absl import flags

from experiments.cli import flags as cli
from experiments.tasks import make_task
from experiments.text.parallel_corpus import SentencePair, write_pairs
from experiments.translation.validation import validate

cli.define_config()
_SPLIT = flags.DEFINE_string("split", "train", "which sentences")
_COUNT = flags.DEFINE_integer("count", 10_000, "how many, 0 for all there are", lower_bound=0)
_OUTPUT = flags.DEFINE_string("output", None, "file to write; through gzip if it ends in .gz")


def main() -> None:
  config = cli.get_config()
  validate(config)
  if not _OUTPUT.value:
    raise cli.UsageError("--output must name the file to write, got none")
  task = make_task(config)
  examples = task.examples(_SPLIT.value, _COUNT.value)
  pairs = [SentencePair(example.source_text, example.target_text, example.alignment) for example in examples]
  write_pairs(_OUTPUT.value, pairs)
  print(f"wrote {len(pairs):,} pairs to {_OUTPUT.value}")


if __name__ == "__main__":
  cli.run(main)
