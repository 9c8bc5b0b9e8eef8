"""Flags for checkpoints, tokens and decoding, which several scripts share."""

from typing import Any

from absl import flags

from configs.base import MAX_SIZE
from experiments.cli import config_fields
from experiments.cli.flags import UsageError

_, _MAX_LENGTH_PENALTY = config_fields.rules()["evaluation.length_penalty"]["range"]

# Flags defined below are key flags of the script that calls the function, so that its --help lists them.
flags.disclaim_key_flags()


def define_checkpoint() -> flags.FlagHolder:
  """Defines --checkpoint."""
  choices = config_fields.rules()["evaluation.checkpoint"]["choices"]
  return flags.DEFINE_enum("checkpoint", None, choices, "checkpoint to use; default: from the config")


def define_tokens() -> flags.FlagHolder:
  """Defines --tokens, for scripts that read translations."""
  return flags.DEFINE_bool(
    "tokens",
    False,
    "read target tokens separated by spaces, as written by translate --tokens, instead of text",
  )


def define_alignment_tokens() -> flags.FlagHolder:
  """Defines --alignment_tokens."""
  return flags.DEFINE_enum(
    "alignment_tokens",
    "auto",
    config_fields.rules()["data.alignment_tokens"]["choices"],
    "what alignment positions count: words, whitespace (tokens separated by spaces), or auto (words; a file "
    "that may count whitespace tokens is an error)",
  )


def define_decode_flags() -> list[flags.FlagHolder]:
  """Defines the flags for decoding, named like the fields of `DecodeOptions`."""
  return [
    flags.DEFINE_integer(
      "max_length",
      None,
      "maximum number of target tokens, including the end of the sentence; default: from the config",
      lower_bound=1,
      upper_bound=MAX_SIZE,
    ),
    flags.DEFINE_integer(
      "beam_size",
      None,
      "beam size; 1 is greedy decoding; default: from the config",
      lower_bound=1,
      upper_bound=MAX_SIZE,
    ),
    flags.DEFINE_float(
      "length_penalty",
      None,
      f"exponent of the length penalty in beam search, from 0 to {_MAX_LENGTH_PENALTY}; default: from the "
      "config",
    ),
    flags.DEFINE_float(
      "temperature", None, "sampling temperature: 0, which disables sampling, or from 0.0001 to 10000"
    ),
    flags.DEFINE_integer("top_k", None, "sample from the k most probable tokens; 0 means all", lower_bound=0),
    flags.DEFINE_float(
      "top_p",
      None,
      "sample from the most probable tokens whose probabilities sum to p, from 0.000001 to 1; 1 means all",
    ),
    flags.DEFINE_integer(
      "seed", None, "random seed for sampling; default: 0", lower_bound=0, upper_bound=2**32 - 1
    ),
  ]


def decode_options(decode_flags: list[flags.FlagHolder]) -> dict[str, Any]:
  """Returns the values of the decoding flags that are set.

  Raises:
    UsageError: if a value is invalid, or flags conflict.
  """
  options = {flag.name: flag.value for flag in decode_flags if flag.value is not None}
  is_sampling = options.get("temperature", 0.0) != 0
  for name in options:
    if name in ("top_k", "top_p", "seed") and not is_sampling:
      raise UsageError(f"--{name} needs a positive --temperature")
    if name in ("beam_size", "length_penalty") and is_sampling:
      raise UsageError(f"--{name} must not be set with --temperature={options['temperature']}")
  # float32 cannot represent the results outside these ranges.
  if not 0 <= options.get("length_penalty", 0.0) <= _MAX_LENGTH_PENALTY:
    raise UsageError(
      f"--length_penalty must be from 0 to {_MAX_LENGTH_PENALTY}, got {options['length_penalty']}"
    )
  if "temperature" in options and options["temperature"] != 0 and not 1e-4 <= options["temperature"] <= 1e4:
    raise UsageError(f"--temperature must be 0, or from 0.0001 to 10000, got {options['temperature']}")
  if not 1e-6 <= options.get("top_p", 1.0) <= 1:
    raise UsageError(f"--top_p must be from 0.000001 to 1, got {options['top_p']}")
  return options


def check_decode_flags(decode_flags: list[flags.FlagHolder], beam_size: int) -> None:
  """Raises UsageError if --length_penalty is set without beam search."""
  if beam_size == 1 and any(
    flag.name == "length_penalty" and flag.value is not None for flag in decode_flags
  ):
    raise UsageError("--length_penalty needs --beam_size of at least 2, got 1")
