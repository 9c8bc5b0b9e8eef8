r"""Translates with a trained translator: one text, the lines of a file, or the lines of standard input.

    python -m experiments.translate --workdir=runs/toy_translation \
        --text="the red cat does not see the apples" --attention_png=map.png
    python -m experiments.translate --workdir=runs/multi30k --input=test.de --output=test.en --beam_size=5

    python -m experiments.translate --workdir=runs/seed_0,runs/seed_1 --input=test.de   # an ensemble

A file is translated in batches, line by line. With --n_best=N there are up to N lines for each line of the
source, the best first: its number, from 1, TAB the score TAB the translation. With --tokens a translation is
its tokens with spaces between, as `experiments.score_pairs` and `experiments.align` read them with --tokens.
"""

import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from experiments.cli import flags as cli
from experiments.cli.io import check_files, define_input, define_output, read_lines, write_lines
from experiments.text.text_processor import TextProcessor
from experiments.text.visible import escape_invisible
from experiments.text.words import strip_joiners
from experiments.translation import attention_maps, decoding_flags, reporting
from experiments.translation.restore import load_ensemble
from experiments.translation.translator import Translation, Translator

_WORKDIR = cli.define_workdir(None, "folder of the run; several, with commas between, are an ensemble")
_CHECKPOINT = decoding_flags.define_checkpoint()
_TEXT = flags.DEFINE_string(
  "text", None, "what to translate; without it and --input, standard input", allow_overwrite=False
)
_INPUT = define_input("file whose lines are translated")
_OUTPUT = define_output("file for the translations of --input; without it they are printed")
_FIGURE = flags.DEFINE_string("attention_png", None, "PNG to draw the attention of --text in")
_SEARCH = decoding_flags.define_search()
_N_BEST = flags.DEFINE_integer(
  "n_best", 1, "how many translations of each line, at most --beam_size", lower_bound=1
)
_TOKENS = flags.DEFINE_bool(
  "tokens", False, "write the tokens of translations, with spaces between, not text"
)


def main() -> None:
  folders = cli.workdir_paths(_WORKDIR)
  search = decoding_flags.decode_options(_SEARCH) | {"n_best": _N_BEST.value}
  _check_flags(search)
  lines = None if _INPUT.value is None else read_lines(pathlib.Path(_INPUT.value))
  translator = load_ensemble(
    folders, checkpoint=_CHECKPOINT.value, batch_size=1 if lines is None else None, search=search
  )
  decoding_flags.check_search(_SEARCH, translator.search.beam_size)
  if _N_BEST.value > translator.search.beam_size:
    beam_size = translator.search.beam_size
    raise cli.UsageError(f"--n_best must be at most --beam_size={beam_size}, got {_N_BEST.value}")
  if lines is not None:
    write_lines(_OUTPUT, _translated(translator, lines))
    return
  for number, text in enumerate(_typed() if _TEXT.value is None else [_TEXT.value], start=1):
    print(*_translated(translator, [text], number), sep="\n", flush=True)


def _check_flags(search: Mapping[str, Any]) -> None:
  """Raises UsageError for flags that do not go together."""
  if _N_BEST.value > 1 and search.get("temperature"):
    raise cli.UsageError(f"--n_best is for a search, got --temperature={search['temperature']}")
  if "\n" in (_TEXT.value or ""):
    raise cli.UsageError("--text is one line; several are for a file, --input")
  if _TEXT.value is not None and _INPUT.value is not None:
    raise cli.UsageError("--text and --input must not be given together")
  if _OUTPUT.value is not None and _INPUT.value is None:
    raise cli.UsageError("--output is for the translations of an --input, got no --input")
  check_files(_INPUT, _OUTPUT)
  if _FIGURE.value is None:
    return
  if _TEXT.value is None:
    raise cli.UsageError("--attention_png draws the attention of one --text, got no --text")
  if not _FIGURE.value.endswith(".png"):
    raise cli.UsageError(f"--attention_png must end in .png, got {_FIGURE.value!r}")
  if pathlib.Path(_FIGURE.value).is_dir():
    raise cli.UsageError(f"--attention_png must be a file, got the folder {_FIGURE.value!r}")


def _translated(translator: Translator, texts: Sequence[str], first: int = 1) -> list[str]:
  """Returns the lines to write for texts, of which the first has a number; says on stderr what they lack."""
  source = translator.task.source
  sources = translator.source_tokens(texts)
  if _FIGURE.value is not None and not sources[0]:
    raise cli.UsageError(f"--text must have at least one word for --attention_png, got {texts[0]!r}")
  _note_unknown(source.vocabulary.unknown(word for words in sources for word in words))
  _note_long([len(words) for words in sources], getattr(translator.task, "max_length", None))
  numbers = range(first, first + len(texts))
  found = translator.n_best(sources, with_attention=_FIGURE.value is not None, example_ids=numbers)
  if _FIGURE.value is not None:
    _draw(source, sources[0], found[0][0], pathlib.Path(_FIGURE.value))
  if num_cut := sum(translations[0].is_truncated for translations in found):
    longest = translator.search.max_length
    _note(f"cut: {num_cut:,} longer than --max_length={longest} tokens")
  if _N_BEST.value == 1:
    return [_written(best) for (best,) in found]
  return [
    f"{number}\t{each.score:.4f}\t{_written(each)}"
    for number, translations in enumerate(found, start=first)
    for each in translations
  ]


def _written(translation: Translation) -> str:
  return " ".join(translation.tokens) if _TOKENS.value else translation.text


def _note_unknown(words: Sequence[str]) -> None:
  if words:
    more = f" and {len(words) - 20:,} more" if len(words) > 20 else ""
    _note(f"unknown words: {' '.join(escape_invisible(strip_joiners(word)) for word in words[:20])}{more}")


def _note_long(lengths: Sequence[int], longest: int | None) -> None:
  count = sum(length > longest for length in lengths) if longest else 0
  if count:
    _note(f"{count:,} longer than any source in training, {longest} tokens: the longest has {max(lengths):,}")


def _draw(
  language: TextProcessor, source: Sequence[str], translation: Translation, path: pathlib.Path
) -> None:
  longest = max(len(source), len(translation.tokens))
  if longest > attention_maps.MAX_LENGTH:
    raise cli.UsageError(f"--attention_png is for at most {attention_maps.MAX_LENGTH} tokens, got {longest}")
  if translation.attention is None:
    raise cli.UsageError("--attention_png needs a model with attention; this one has none")
  if reporting.draw_translation(path, language, source, translation):
    _note(f"wrote {path}")


def _typed() -> Iterator[str]:
  """Yields the lines of standard input, each after a prompt if a person types them."""
  # As a file is read: without a byte-order mark, and lines end at a newline alone.
  sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline="\n")  # type: ignore[union-attr]
  while True:
    if sys.stdin.isatty():
      print("> ", end="", file=sys.stderr, flush=True)
    try:
      line = sys.stdin.readline()
    except UnicodeDecodeError as error:
      raise cli.UsageError(f"standard input: expected UTF-8, got {error}") from error
    except OSError as error:
      raise cli.UsageError(f"standard input: {error.strerror}") from error
    if not line:
      return
    yield line.strip()


def _note(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
  cli.run(main)
