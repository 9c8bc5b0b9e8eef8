"""Prints the log-probability of given translations.

    python -m experiments.score_pairs --workdir=runs/mine --input=pairs.tsv --output=scores.tsv

Each input line is source TAB target. A third column is ignored. Each output line is log-probability in nats
TAB number of tokens, including the end of the sentence. The perplexity is printed to standard error. With
--tokens, targets are tokens from the output of `experiments.translate --tokens`, because tokenizing the text
of a translation may give different tokens.
"""

import math
import sys

from experiments.cli import decoding_flags
from experiments.cli import flags as cli
from experiments.cli.io import check_files, define_input, define_output, flag_path, write_lines
from experiments.cli.messages import counted
from experiments.data.parallel_corpus import read_pairs
from experiments.runs import load

_WORKDIR = cli.define_workdir(None)
_CHECKPOINT = decoding_flags.define_checkpoint()
_TOKENS = decoding_flags.define_tokens()
_INPUT = define_input("file with one source TAB target per line, plain or .gz (required)")
_OUTPUT = define_output("file for the scores; default: standard output")


def main() -> None:
  folder, path = cli.workdir_path(_WORKDIR), flag_path(_INPUT)
  check_files(_INPUT, _OUTPUT)
  pairs = [pair[:2] for pair in read_pairs(path, alignment_tokens=None)]
  translator = load(folder, checkpoint=_CHECKPOINT.value)
  tokens = translator.pair_tokens(pairs, are_tokens=_TOKENS.value)
  scored = translator.score_tokens(tokens, with_attention=False)
  write_lines(_OUTPUT, [f"{pair.log_probability:.4f}\t{pair.num_tokens}" for pair in scored])
  total = sum(pair.log_probability for pair in scored)
  num_tokens = sum(pair.num_tokens for pair in scored)
  loss = -total / num_tokens
  perplexity = math.exp(loss) if loss < 700 else math.inf  # math.exp overflows for larger values
  print(
    f"{counted(len(scored), 'pair')}: log-probability {total:.2f}, {counted(num_tokens, 'token')}, "
    f"perplexity {perplexity:.4f}",
    file=sys.stderr,
  )


if __name__ == "__main__":
  cli.run(main)
