r"""Writes the attention weights of all layers and heads for one sentence.

    python -m experiments.plot_heads --workdir=runs/transformer --text="the red cat sees the dog" \
        --output=heads

It writes heads.npz with arrays: decoder [L N T S], encoder [L N S S] for Transformer encoders, and the
tokens. Weights have one more position than there are tokens, for EOS. If the weights fit into a figure, it
also writes decoder_heads.png and encoder_heads.png.
"""

from absl import flags

from experiments.cli import decoding_flags
from experiments.cli import flags as cli
from experiments.cli.flags import UsageError
from experiments.cli.io import output_folder
from experiments.cli.messages import is_blank
from experiments.figures import run_figures
from experiments.runs import load

_WORKDIR = cli.define_workdir(None)
_CHECKPOINT = decoding_flags.define_checkpoint()
_TEXT = flags.DEFINE_string("text", None, "source text (required)")
_TRANSLATION = flags.DEFINE_string("translation", None, "translation of --text; default: decoded")
_OUTPUT = flags.DEFINE_string(
  "output", None, "folder for the arrays and figures, created if missing (required)"
)


def main() -> None:
  folder = cli.workdir_path(_WORKDIR)
  text, output = _TEXT.value or "", output_folder(_OUTPUT)
  if is_blank(text):
    raise UsageError(f"--text must have at least one word, got {text!r}")
  translator = load(folder, checkpoint=_CHECKPOINT.value, batch_size=1)
  if _TRANSLATION.value is None:
    (translation,) = translator.translate([text])
    print(translation.text)
    tokens = [(translator.task.source.tokenize(text), translation.tokens)]
  else:
    tokens = translator.pair_tokens([(text, _TRANSLATION.value)])
  (heads,) = translator.heads_of_tokens(tokens)
  paths = run_figures.draw_heads(output, translator, heads)
  if not paths:
    raise UsageError(f"--workdir must be a run with attention, got {folder}")
  for path in paths:
    print(f"wrote {path}")


if __name__ == "__main__":
  cli.run(main)
