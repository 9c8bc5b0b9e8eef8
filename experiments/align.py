"""Aligns the words of sentence pairs by the attention weights of a trained translator.

    python -m experiments.align --workdir=runs/toy_translation --input=pairs.tsv --output=alignments.txt

Each input line is source TAB target. Each output line has the alignment of a pair in Pharaoh format:
source-target positions of tokens, from 0. Each target token is linked to the source token with the largest
weight, unless that is the end of the sentence. With --level=word, positions are those of words separated by
spaces, as word aligners write them, also if tokens are subwords or characters. If the third column has true
alignments of the same units, sure links such as 0-0 or possible links such as 1p2, the alignment error rate
is printed to standard error. With --tokens (targets are the output of `experiments.translate --tokens`), the
third column is ignored.
"""

import sys
from collections.abc import Sequence

from absl import flags

from experiments.cli import decoding_flags
from experiments.cli import flags as cli
from experiments.cli.flags import UsageError
from experiments.cli.io import check_files, define_input, define_output, flag_path, write_lines
from experiments.cli.messages import counted
from experiments.data.alignments import format_alignment, word_indices, word_weights
from experiments.data.parallel_corpus import read_pairs
from experiments.data.tokenizers import WordTokenizer
from experiments.evaluation import metrics
from experiments.runs import load

_WORKDIR = cli.define_workdir(None)
_CHECKPOINT = decoding_flags.define_checkpoint()
_TOKENS = decoding_flags.define_tokens()
_ALIGNMENT_TOKENS = decoding_flags.define_alignment_tokens()
_LEVEL = flags.DEFINE_enum(
  "level", "token", ("token", "word"), "what is aligned: tokens of the model, or words separated by spaces"
)
_INPUT = define_input("file with one source TAB target per line, plain or .gz (required)")
_OUTPUT = define_output("file for the alignments; default: standard output")


def main() -> None:
  folder, path = cli.workdir_path(_WORKDIR), flag_path(_INPUT)
  check_files(_INPUT, _OUTPUT)
  is_word = _LEVEL.value == "word"
  if is_word and _TOKENS.value:
    raise UsageError("--level=word must not be set with --tokens")
  counted = "unconverted" if is_word else _ALIGNMENT_TOKENS.value
  pairs = read_pairs(path, alignment_tokens=None if _TOKENS.value else counted)
  translator = load(folder, checkpoint=_CHECKPOINT.value)
  tokens = translator.pair_tokens([pair[:2] for pair in pairs], are_tokens=_TOKENS.value)
  scored = translator.score_tokens(tokens)
  attention = [pair.attention for pair in scored if pair.attention is not None]
  if not attention:
    raise UsageError(f"--workdir must be a run with attention, got {folder}")
  task = translator.task
  if is_word:
    attention = [
      word_weights(weights, word_indices(task.target, pair.target), word_indices(task.source, pair.source))
      for weights, pair in zip(attention, pairs, strict=True)
    ]
  alignments = [frozenset(metrics.strongest_links(weights)) for weights in attention]
  write_lines(_OUTPUT, map(format_alignment, alignments))
  aligned = [
    metrics.AlignedAttention(weights, pair.alignment, pair.possible)
    for weights, pair in zip(attention, pairs, strict=True)
    if pair.alignment is not None
  ]
  if aligned:
    has_words = all(isinstance(side.tokenizer, WordTokenizer) for side in (task.source, task.target))
    print(_error_rate(aligned, is_word or has_words), file=sys.stderr)


def _error_rate(aligned: Sequence[metrics.AlignedAttention], are_words: bool) -> str:
  """Returns a line with the alignment error rate, or with the reason why there is none."""
  if not are_words:
    return "no alignment error rate: the tokens of this model are not words; pass --level=word"
  if not metrics.has_error_rate(aligned):
    return "no alignment error rate: it needs sure links, or possible links and at least one predicted link"
  rate = metrics.alignment_error_rate(aligned)
  return f"alignment error rate {rate:.4f} ({counted(len(aligned), 'pair')} with true alignments)"


if __name__ == "__main__":
  cli.run(main)
