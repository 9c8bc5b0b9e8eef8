"""Shows what each layer and head of a trained translator attends to, in one sentence.

    python -m experiments.plot_heads --workdir=runs/transformer --text="the red cat sees the dog" \
        --output=heads

The folder gets heads.npz with arrays: decoder [L N T S], of a transformer encoder also encoder [L N S S], and
the tokens, whose end is one position more. Where there are few enough weights for a figure it also gets
decoder_heads.png and encoder_heads.png.
"""

import pathlib

from absl import flags

from experiments.cli import flags as cli
from experiments.cli.flags import UsageError
from experiments.translation import decoding_flags, load, reporting

_WORKDIR = cli.define_workdir(None)
_CHECKPOINT = decoding_flags.define_checkpoint()
_TEXT = flags.DEFINE_string("text", None, "the source")
_TRANSLATION = flags.DEFINE_string("translation", None, "its translation; without it, the one that is found")
_OUTPUT = flags.DEFINE_string("output", None, "folder for the figures and arrays; it is made")


def main() -> None:
  folder = cli.workdir_path(_WORKDIR)
  text, output = _given(_TEXT), pathlib.Path(_given(_OUTPUT))
  translator = load(folder, checkpoint=_CHECKPOINT.value, batch_size=1)
  if _TRANSLATION.value is None:
    (found,) = translator.translate([text])
    print(found.text)
    tokens = [(translator.task.source.tokenize(text), found.tokens)]
  else:
    tokens = translator.pair_tokens([(text, _TRANSLATION.value)])
  (heads,) = translator.heads_of_tokens(tokens)
  written = reporting.draw_heads(output, translator, heads)
  if not written:
    raise UsageError(f"--workdir must hold a model with attention, got {folder}")
  for path in written:
    print(f"wrote {path}")


def _given(flag: flags.FlagHolder) -> str:
  if not flag.value:
    raise UsageError(f"--{flag.name} must be given, got none")
  return flag.value


if __name__ == "__main__":
  cli.run(main)
