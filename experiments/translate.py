r"""Translates a text, the lines of a file, or standard input.

    python -m experiments.translate --workdir=runs/toy_translation \
        --text="the red cat does not see the apples" --attention_png=map.png
    python -m experiments.translate --workdir=runs/multi30k --input=test.de --output=test.en --beam_size=5

    python -m experiments.translate --workdir=runs/seed_0,runs/seed_1 --input=test.de   # an ensemble

Files are translated in batches, one sentence per line. With --n_best=N, there are up to N output lines per
source line, best first: source line number (from 1) TAB score TAB translation. With --tokens, translations
are written as tokens separated by spaces, which `experiments.score_pairs` and `experiments.align` read with
--tokens. With --replace_unknown, an unknown word is replaced by the source word that it attends to most, or
by the translation of that word in --dictionary.
"""

import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from experiments.cli import decoding_flags
from experiments.cli import flags as cli
from experiments.cli.io import (
  check_files,
  define_input,
  define_output,
  flag_path,
  output_path,
  read_lines,
  write_lines,
)
from experiments.cli.messages import escape_invisible
from experiments.data.text_processor import TextProcessor
from experiments.data.vocabularies import UNK_TOKEN
from experiments.data.words import strip_joiners
from experiments.evaluation import reporting
from experiments.inference.translator import Translation, Translator
from experiments.inference.unknown_words import read_dictionary, replace_unknown
from experiments.runs.restore import load_ensemble

_WORKDIR = cli.define_workdir(
  None, "folder of the run, or folders of an ensemble, separated by commas (required)"
)
_CHECKPOINT = decoding_flags.define_checkpoint()
_TEXT = flags.DEFINE_string("text", None, "text to translate; default: standard input", allow_overwrite=False)
_INPUT = define_input("file to translate, one sentence per line")
_OUTPUT = define_output("file for the translations of --input; default: standard output")
_FIGURE = flags.DEFINE_string("attention_png", None, "PNG file for the attention map of --text")
_DECODE_FLAGS = decoding_flags.define_decode_flags()
_N_BEST = flags.DEFINE_integer(
  "n_best", 1, "number of translations per line, at most --beam_size", lower_bound=1
)
_TOKENS = flags.DEFINE_bool("tokens", False, "write tokens separated by spaces instead of text")
_REPLACE_UNKNOWN = flags.DEFINE_bool(
  "replace_unknown", False, "replace unknown words by the source words that they attend to most"
)
_DICTIONARY = flags.DEFINE_string(
  "dictionary", None, "file of word translations for --replace_unknown, one source TAB target per line"
)


def main() -> None:
  folders = cli.workdir_paths(_WORKDIR)
  decode_options = decoding_flags.decode_options(_DECODE_FLAGS) | {"n_best": _N_BEST.value}
  _check_flags(decode_options)
  lines = None if _INPUT.value is None else read_lines(pathlib.Path(_INPUT.value))
  translator = load_ensemble(
    folders,
    checkpoint=_CHECKPOINT.value,
    batch_size=1 if lines is None else None,
    decode_options=decode_options,
  )
  decoding_flags.check_decode_flags(_DECODE_FLAGS, translator.decode_options.beam_size)
  if _N_BEST.value > translator.decode_options.beam_size:
    beam_size = translator.decode_options.beam_size
    raise cli.UsageError(f"--n_best must be at most --beam_size={beam_size}, got {_N_BEST.value}")
  dictionary = {}
  if _DICTIONARY.value is not None:
    dictionary = read_dictionary(pathlib.Path(_DICTIONARY.value), translator.task.source)
  if lines is not None:
    write_lines(_OUTPUT, _translate(translator, lines, dictionary))
    return
  for number, text in enumerate(_read_stdin() if _TEXT.value is None else [_TEXT.value], start=1):
    print(*_translate(translator, [text], dictionary, number), sep="\n", flush=True)


def _check_flags(decode_options: Mapping[str, Any]) -> None:
  """Raises UsageError if flags conflict."""
  if _N_BEST.value > 1 and decode_options.get("temperature"):
    raise cli.UsageError(f"--n_best must not be set with --temperature={decode_options['temperature']}")
  if "\n" in (_TEXT.value or ""):
    raise cli.UsageError("--text must be one line; use --input for several lines")
  if _TEXT.value is not None and _INPUT.value is not None:
    raise cli.UsageError("--text and --input must not be set together")
  if _DICTIONARY.value is not None and not _REPLACE_UNKNOWN.value:
    raise cli.UsageError("--dictionary needs --replace_unknown")
  if _OUTPUT.value is not None and _INPUT.value is None:
    raise cli.UsageError("--output needs --input")
  check_files(_INPUT, _OUTPUT)
  if _DICTIONARY.value is not None:
    flag_path(_DICTIONARY)
  if _FIGURE.value is None:
    return
  if _TEXT.value is None:
    raise cli.UsageError("--attention_png needs --text")
  if not _FIGURE.value.endswith(".png"):
    raise cli.UsageError(f"--attention_png must end in .png, got {_FIGURE.value!r}")
  output_path(_FIGURE)


def _translate(
  translator: Translator, texts: Sequence[str], dictionary: Mapping[str, str], first: int = 1
) -> list[str]:
  """Returns the output lines of texts, and prints warnings about them to standard error.

  Args:
    translator: the translator.
    texts: source texts.
    dictionary: translations of words, for --replace_unknown.
    first: line number of the first text.
  """
  source = translator.task.source
  sources = translator.source_tokens(texts)
  if _FIGURE.value is not None and not sources[0]:
    raise cli.UsageError(f"--text must have at least one word for --attention_png, got {texts[0]!r}")
  _warn_unknown(source.vocabulary.unknown(token for tokens in sources for token in tokens))
  _warn_long([len(tokens) for tokens in sources], translator.task.max_length)
  line_numbers = range(first, first + len(texts))
  with_attention = _FIGURE.value is not None or _REPLACE_UNKNOWN.value
  n_best = translator.n_best(sources, with_attention=with_attention, example_ids=line_numbers)
  if _FIGURE.value is not None:
    _draw(source, sources[0], n_best[0][0], pathlib.Path(_FIGURE.value))
  if num_truncated := sum(translations[0].is_truncated for translations in n_best):
    max_length = translator.decode_options.max_length
    _print_error(f"translations truncated to --max_length={max_length} tokens: {num_truncated:,}")
  if _REPLACE_UNKNOWN.value:
    n_best = [
      [_without_unknown(translator, tokens, translation, dictionary) for translation in translations]
      for tokens, translations in zip(sources, n_best, strict=True)
    ]
  if _N_BEST.value == 1:
    return [_format(best) for (best,) in n_best]
  return [
    f"{number}\t{translation.score:.4f}\t{_format(translation)}"
    for number, translations in enumerate(n_best, start=first)
    for translation in translations
  ]


def _without_unknown(
  translator: Translator, source: Sequence[str], translation: Translation, dictionary: Mapping[str, str]
) -> Translation:
  """Returns a translation without unknown words."""
  if not source:
    return translation  # a blank line
  if translation.attention is None:
    raise cli.UsageError("--replace_unknown needs a model with attention")
  if UNK_TOKEN not in translation.tokens:
    return translation
  target = translator.task.target
  tokens = replace_unknown(translation.tokens, translation.attention, source, dictionary, target)
  return translation._replace(tokens=tokens, text=target.detokenize(tokens))


def _format(translation: Translation) -> str:
  return " ".join(translation.tokens) if _TOKENS.value else translation.text


def _warn_unknown(words: Sequence[str]) -> None:
  if words:
    more = f" and {len(words) - 20:,} more" if len(words) > 20 else ""
    _print_error(
      f"unknown words: {' '.join(escape_invisible(strip_joiners(word)) for word in words[:20])}{more}"
    )


def _warn_long(lengths: Sequence[int], max_length: int | None) -> None:
  count = sum(length > max_length for length in lengths) if max_length else 0
  if count:
    _print_error(
      f"sources longer than in training ({max_length} tokens): {count:,}, up to {max(lengths):,} tokens"
    )


def _draw(
  language: TextProcessor, source: Sequence[str], translation: Translation, path: pathlib.Path
) -> None:
  num_tokens = max(len(source), len(translation.tokens))
  if num_tokens > reporting.MAX_MAP_LENGTH:
    raise cli.UsageError(f"--attention_png needs at most {reporting.MAX_MAP_LENGTH} tokens, got {num_tokens}")
  if translation.attention is None:
    raise cli.UsageError("--attention_png needs a model with attention")
  from experiments.figures import run_figures

  if run_figures.draw_translation(path, language, source, translation):
    _print_error(f"wrote {path}")


def _read_stdin() -> Iterator[str]:
  """Yields the lines of standard input, with a prompt in a terminal."""
  # Read like a file: without a byte-order mark, and with LF line ends.
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


def _print_error(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
  cli.run(main)
