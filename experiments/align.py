"""Aligns given translations by the attention of a trained translator.

    python -m experiments.align --workdir=runs/toy_translation --input=pairs.tsv --output=alignments.txt

Each line of the input is source TAB target. For each there is a line in Pharaoh form, source-target,
positions of tokens from 0: every token of the target is linked to the one of the source that it attends to
most, unless that is the end of the sentence. Where the input has true alignments as a third column, and
tokens are words, the alignment error rate of all pairs is told on standard error; with --tokens (targets are
tokens, as `experiments.translate --tokens` writes them) a third column is passed over.
"""

import sys

from experiments.cli import flags as cli
from experiments.cli.flags import UsageError
from experiments.cli.io import check_files, define_input, define_output, input_path, write_lines
from experiments.text.alignments import format_alignment
from experiments.text.parallel_corpus import read_pairs
from experiments.text.tokenizers import WordTokenizer
from experiments.translation import decoding_flags, load, metrics

_WORKDIR = cli.define_workdir(None)
_CHECKPOINT = decoding_flags.define_checkpoint()
_TOKENS = decoding_flags.define_tokens()
_ALIGNMENT_TOKENS = decoding_flags.define_alignment_tokens()
_INPUT = define_input("file of pairs: source TAB target, one a line, plain or .gz")
_OUTPUT = define_output("file for the alignments; without it they are printed")


def main() -> None:
  folder, path = cli.workdir_path(_WORKDIR), input_path(_INPUT)
  check_files(_INPUT, _OUTPUT)
  pairs = read_pairs(path, alignment_tokens=None if _TOKENS.value else _ALIGNMENT_TOKENS.value)
  translator = load(folder, checkpoint=_CHECKPOINT.value)
  tokens = translator.pair_tokens([pair[:2] for pair in pairs], are_tokens=_TOKENS.value)
  scored = translator.score_tokens(tokens)
  found = [each.attention for each in scored if each.attention is not None]
  if not found:
    raise UsageError(f"--workdir must hold a model with attention, got {folder}")
  write_lines(_OUTPUT, [format_alignment(frozenset(metrics.strongest_links(weights))) for weights in found])
  task = translator.task
  known = [
    metrics.AlignedAttention(weights, pair.alignment)
    for weights, pair in zip(found, pairs, strict=True)
    if pair.alignment is not None
  ]
  has_truth = any(one.alignment for one in known)
  if (
    has_truth
    and isinstance(task.source.tokenizer, WordTokenizer)
    and isinstance(task.target.tokenizer, WordTokenizer)
  ):
    rate = metrics.alignment_error_rate(known)
    print(f"{len(known):,} pairs with true alignments: error rate {rate:.4f}", file=sys.stderr)


if __name__ == "__main__":
  cli.run(main)
