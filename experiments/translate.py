"""Translates with a trained translator: one text, or the lines of standard input.

    python -m experiments.translate --workdir=runs/toy_translation \
        --text="the red cat does not see the apples" --figure=map.png
"""

import pathlib
import sys
from collections.abc import Iterator

from absl import flags

from experiments.translation import commands, figures, report
from experiments.translation.evaluation import Translator
from experiments.translation.loop import load

_WORKDIR = commands.define_workdir(None)
_TEXT = flags.DEFINE_string("text", None, "what to translate; without it, lines of standard input")
_FIGURE = flags.DEFINE_string("figure", None, "PNG to draw the attention of --text in")


def main() -> None:
  folder = commands.workdir_path(_WORKDIR)
  if _FIGURE.value is not None and _TEXT.value is None:
    raise commands.UsageError("--figure draws the attention of one --text, got no --text")
  if _FIGURE.value is not None and not _FIGURE.value.endswith(".png"):
    raise commands.UsageError(f"--figure must end in .png, got {_FIGURE.value!r}")
  if _FIGURE.value is not None and pathlib.Path(_FIGURE.value).is_dir():
    raise commands.UsageError(f"--figure must be a file, got the folder {_FIGURE.value!r}")
  _, translator = load(folder, batch_size=1)
  for text in _lines() if _TEXT.value is None else [_TEXT.value]:
    print(_translate(translator, text), flush=True)


def _translate(translator: Translator, text: str) -> str:
  """Returns the translation of a text; says which of its words the translator does not know."""
  words = translator.task.tokenize(text)
  if not words:
    if _FIGURE.value is not None:
      raise commands.UsageError(f"--text must have at least one word for --figure, got {text!r}")
    return ""
  unknown = translator.task.source_vocabulary.unknown(words)
  if unknown:
    print(f"unknown words: {' '.join(unknown)}", file=sys.stderr, flush=True)
  (translation,) = translator.translate([words])
  if translation.is_cut:
    print("cut: longer than config.evaluation.max_target_length", file=sys.stderr, flush=True)
  if _FIGURE.value is not None:
    figure = report.translation_map(words, translation)
    if figure is None:
      raise commands.UsageError("--figure needs a model with attention; this one has none")
    figures.save(figure, pathlib.Path(_FIGURE.value))
    print(f"wrote {_FIGURE.value}", file=sys.stderr, flush=True)
  return translator.task.detokenize(translation.words)


def _lines() -> Iterator[str]:
  """Yields the lines of standard input, each after a prompt if a person types them."""
  sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # type: ignore[union-attr]
  while True:
    if sys.stdin.isatty():
      print("> ", end="", file=sys.stderr, flush=True)
    try:
      line = sys.stdin.readline()
    except UnicodeDecodeError as error:
      raise commands.UsageError(f"standard input: expected UTF-8, got {error}") from error
    if not line:
      return
    yield line.strip()


if __name__ == "__main__":
  commands.run(main)
