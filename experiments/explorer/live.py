"""Data of recurrent translators, which the page runs in the browser."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from configs import base
from experiments.data import words
from experiments.data.task import Example
from experiments.data.text_processor import TextProcessor
from experiments.data.tokenizers import CharacterTokenizer, WordTokenizer
from experiments.data.toy.toy_translation import ItalianWords
from experiments.explorer.encode_arrays import encode_arrays
from experiments.inference.translator import Translator
from experiments.runs.restore import KeptCheckpoints

ATTENTION_TYPES = ("additive", "dot_product", "scaled_dot_product", "bilinear", "cosine", "none")
_SHAPE = (
  *("num_layers", "num_decoder_layers", "residual", "layer_norm"),
  *("attention", "attend_order", "input_feeding", "tied_embeddings"),
)
_JOINS = {WordTokenizer: "text", ItalianWords: "elisions", CharacterTokenizer: "characters"}


def unsupported_reason(config: base.Config, translator: Translator) -> str:
  """Returns why the page cannot run a translator, or an empty string if it can."""
  model, languages = config.model, (translator.task.source, translator.task.target)
  supported = {
    "encoder": (model.encoder, ("recurrent",)),
    "decoder": (model.decoder, ("recurrent",)),
    "attention": (model.attention, ATTENTION_TYPES),
    "normalizer": (model.normalizer, ("softmax",)),
    "dtype": (model.dtype, ("float32",)),
  }
  for name, (value, values) in supported.items():
    if value not in values:
      return f"config.model.{name} is {value}"
  if any(type(language.tokenizer) not in _JOINS for language in languages):
    return "it uses subwords or a custom tokenizer"
  return "" if config.train.train_eos else "config.train.train_eos is False"


def live_model(
  config: base.Config,
  translator: Translator,
  kept: KeptCheckpoints,
  examples: Mapping[str, Sequence[Example]],
) -> dict[str, Any]:
  """Returns the data that the page needs to run a translator.

  Args:
    config: config of the run.
    translator: translator of the run, without an `unsupported_reason`.
    kept: at least one checkpoint of the run.
    examples: example sentences by split.

  Returns:
    A JSON value. `layout` has the names and shapes of the arrays of each checkpoint.
  """
  arrays = {step: _by_name(params) for step, params in kept.params.items()}
  first, *_ = arrays.values()
  return {
    "shape": {name: getattr(config.model, name) for name in _SHAPE},
    "source": _language(translator.task.source),
    "target": _language(translator.task.target),
    "max_length": translator.decode_options.max_length,
    "beam_size": translator.decode_options.beam_size,
    "length_penalty": translator.decode_options.length_penalty,
    "max_train_length": translator.task.max_length,
    "layout": [{"name": name, "shape": array.shape} for name, array in first.items()],
    "step": kept.step,
    "checkpoints": [
      {"step": step, "arrays": encode_arrays([*by_name.values()])} for step, by_name in arrays.items()
    ],
    "examples": [_example(split, example) for split, group in examples.items() for example in group],
  }


def _example(split: str, example: Example) -> dict[str, Any]:
  """Returns an example sentence with its reference."""
  return {
    "split": split,
    "source": example.source_text,
    "target": example.target_text,
    "links": None if example.alignment is None else sorted(example.alignment),
  }


def _by_name(params: Any) -> dict[str, np.ndarray]:
  leaves = jax.tree_util.tree_leaves_with_path(params)
  named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
  return {name: np.asarray(leaf, np.float32) for name, leaf in named.items()}


def _language(language: TextProcessor) -> dict[str, Any]:
  """Returns a language in the format of page/src/data.ts."""
  is_word = isinstance(language.tokenizer, WordTokenizer)
  return {
    "unit": "word" if is_word else "character",
    **({"pattern": words.PATTERN, "classes": words.class_ranges()} if is_word else {}),
    "lowercase": language.lowercase,
    "words": language.vocabulary.words,
    "joins": _JOINS[type(language.tokenizer)],
  }
