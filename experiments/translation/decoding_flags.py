"""Flags of the scripts that translate: which checkpoint, what is read, how translations are looked for."""

from typing import Any

from absl import flags

from experiments.cli.flags import UsageError
from experiments.text.alignments import ALIGNMENT_TOKENS
from experiments.translation.evaluate import CHECKPOINTS, LARGEST_PENALTY
from experiments.translation.validation import LARGEST

# The flags below belong to the script that asks for them, so that its --help tells of them.
flags.disclaim_key_flags()


def define_checkpoint() -> flags.FlagHolder:
  """Defines --checkpoint."""
  return flags.DEFINE_enum("checkpoint", None, CHECKPOINTS, "which one translates (default: the config's)")


def define_tokens() -> flags.FlagHolder:
  """Defines --tokens of scripts that read translations."""
  return flags.DEFINE_bool(
    "tokens", False, "the target is tokens with spaces between, as translate --tokens writes them, not text"
  )


def define_alignment_tokens() -> flags.FlagHolder:
  """Defines --alignment_tokens."""
  return flags.DEFINE_enum(
    "alignment_tokens",
    "auto",
    ALIGNMENT_TOKENS,
    "what alignments of the pairs count: words, whitespace (tokens with spaces between), or auto (words, but "
    "a file that may count whitespace tokens is an error)",
  )


def define_search() -> list[flags.FlagHolder]:
  """Defines the flags for decoding; each has the name of a field of `DecodeOptions`."""
  return [
    flags.DEFINE_integer(
      "max_length",
      None,
      "tokens, the end of the sentence included, after which a translation is cut (default: the config's)",
      lower_bound=1,
      upper_bound=LARGEST,
    ),
    flags.DEFINE_integer(
      "beam_size",
      None,
      "of beam search, 1 for the greedy search (default: the config's)",
      lower_bound=1,
      upper_bound=LARGEST,
    ),
    flags.DEFINE_float(
      "length_penalty", None, "exponent of the length in beam search (default: the config's)", lower_bound=0.0
    ),
    flags.DEFINE_float(
      "temperature", None, "draws words at this temperature instead of a search, 0 for none", lower_bound=0.0
    ),
    flags.DEFINE_integer(
      "top_k", None, "draws one of so many of the likeliest words, 0 for all", lower_bound=0
    ),
    flags.DEFINE_float(
      "top_p", None, "draws one of the likeliest words that have this probability together, 1 for all"
    ),
    flags.DEFINE_integer("seed", None, "of the drawing", lower_bound=0, upper_bound=2**32 - 1),
  ]


def chosen_search(chosen: list[flags.FlagHolder]) -> dict[str, Any]:
  """Returns the flags that were given.

  Raises:
    UsageError: if they do not go together.
  """
  given = {flag.name: flag.value for flag in chosen if flag.value is not None}
  is_drawn = given.get("temperature", 0.0) != 0
  for name in given:
    if name in ("top_k", "top_p", "seed") and not is_drawn:
      raise UsageError(f"--{name} is for words that are drawn, got no --temperature above 0")
    if name in ("beam_size", "length_penalty") and is_drawn:
      raise UsageError(f"--{name} is for a search, got --temperature={given['temperature']}")
  # At less or more, float32 has not the numbers that divide by it.
  if not 0 <= given.get("length_penalty", 0.0) <= LARGEST_PENALTY:
    raise UsageError(f"--length_penalty must be from 0 to {LARGEST_PENALTY}, got {given['length_penalty']}")
  if "temperature" in given and given["temperature"] != 0 and not 1e-4 <= given["temperature"] <= 1e4:
    raise UsageError(f"--temperature must be 0, or from 0.0001 to 10000, got {given['temperature']}")
  if not 1e-6 <= given.get("top_p", 1.0) <= 1:
    raise UsageError(f"--top_p must be from 0.000001 to 1, got {given['top_p']}")
  return given


def check_search(chosen: list[flags.FlagHolder], beam_size: int) -> None:
  """Raises UsageError for a flag that says nothing to a search of so many beams."""
  if beam_size == 1 and any(flag.name == "length_penalty" and flag.value is not None for flag in chosen):
    raise UsageError("--length_penalty is for beam search, got --beam_size=1")
