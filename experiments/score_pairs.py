"""Says how likely a trained translator takes given translations for.

    python -m experiments.score_pairs --workdir=runs/mine --input=pairs.tsv --output=scores.tsv

Each line of the input is source TAB target; a third column is passed over. For each there is a line:
log-probability in nats TAB number of tokens, the end of the sentence included. Their perplexity is told on
standard error. A translation by a model may be made of other tokens than its text is cut into, and is scored
by its own with --tokens, from the output of `experiments.translate --tokens`.
"""

import math
import sys

from experiments.cli import flags as cli
from experiments.cli.io import check_files, define_input, define_output, input_path, write_lines
from experiments.text.parallel_corpus import read_pairs
from experiments.translation import decoding_flags, load

_WORKDIR = cli.define_workdir(None)
_CHECKPOINT = decoding_flags.define_checkpoint()
_TOKENS = decoding_flags.define_tokens()
_INPUT = define_input("file of pairs: source TAB target, one a line, plain or .gz")
_OUTPUT = define_output("file for the scores; without it they are printed")


def main() -> None:
  folder, path = cli.workdir_path(_WORKDIR), input_path(_INPUT)
  check_files(_INPUT, _OUTPUT)
  pairs = [pair[:2] for pair in read_pairs(path, alignment_tokens=None)]
  translator = load(folder, checkpoint=_CHECKPOINT.value)
  scored = translator.score_tokens(translator.pair_tokens(pairs, are_tokens=_TOKENS.value))
  write_lines(_OUTPUT, [f"{each.log_probability:.4f}\t{each.num_tokens}" for each in scored])
  total, tokens = sum(each.log_probability for each in scored), sum(each.num_tokens for each in scored)
  loss = -total / tokens
  perplexity = math.exp(loss) if loss < 700 else math.inf  # of a larger one, math raises an OverflowError
  print(
    f"{len(scored):,} pairs: log-probability {total:.2f}, {tokens:,} tokens, perplexity {perplexity:.4f}",
    file=sys.stderr,
  )


if __name__ == "__main__":
  cli.run(main)
