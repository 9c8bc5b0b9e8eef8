"""A recurrent translator as the page runs it: which parts it knows, its words, its arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from configs import base
from experiments.explorer.encode_arrays import packed
from experiments.tasks import Example
from experiments.tasks.toy_translation import ItalianWords
from experiments.text import words
from experiments.text.text_processor import TextProcessor
from experiments.text.tokenizers import CharacterTokenizer, WordTokenizer
from experiments.translation.restore import KeptCheckpoints
from experiments.translation.translator import Translator

ATTENTION_TYPES = ("additive", "dot_product", "scaled_dot_product", "bilinear", "cosine", "none")
_SHAPE = (
  *("num_layers", "num_decoder_layers", "residual", "layer_norm"),
  *("attention", "attend_order", "input_feeding", "tied_embeddings"),
)
_JOINS = {WordTokenizer: "text", ItalianWords: "elisions", CharacterTokenizer: "characters"}


def why_not(config: base.Config, translator: Translator) -> str:
  """Returns why the page cannot run a translator, in a few words; nothing if it can."""
  model, languages = config.model, (translator.task.source, translator.task.target)
  known = {
    "encoder": (model.encoder, ("recurrent",)),
    "decoder": (model.decoder, ("recurrent",)),
    "attention": (model.attention, ATTENTION_TYPES),
    "normalizer": (model.normalizer, ("softmax",)),
    "dtype": (model.dtype, ("float32",)),
  }
  for name, (value, values) in known.items():
    if value not in values:
      return f"config.model.{name} is {value}"
  if any(type(language.tokenizer) not in _JOINS for language in languages):
    return f"its text is cut into tokens by {type(languages[0].tokenizer).__name__}"
  return "" if config.train.train_eos else "it has not learnt where sentences end"


def live_model(
  config: base.Config,
  translator: Translator,
  kept: KeptCheckpoints,
  examples: Mapping[str, Sequence[Example]],
) -> dict[str, Any]:
  """Returns what the page needs to run a translator.

  Args:
    config: the run's.
    translator: of the run, one that `why_not` finds nothing against.
    kept: checkpoints of the run, at least one.
    examples: sentences to choose from, by the names of their splits.

  Returns:
    A value for JSON; `checkpoints` have their arrays as text, and `layout` says which they are.
  """
  arrays = {step: _by_name(params) for step, params in kept.params.items()}
  first, *_ = arrays.values()
  return {
    "shape": {name: getattr(config.model, name) for name in _SHAPE},
    "source": _described(translator.task.source),
    "target": _described(translator.task.target),
    "max_length": translator.search.max_length,
    "beam_size": translator.search.beam_size,
    "length_penalty": translator.search.length_penalty,
    "longest": getattr(translator.task, "max_length", None),
    "layout": [{"name": name, "shape": array.shape} for name, array in first.items()],
    "step": kept.step,
    "checkpoints": [{"step": step, "arrays": packed([*each.values()])} for step, each in arrays.items()],
    "examples": [_example(split, each) for split, found in examples.items() for each in found],
  }


def _example(split: str, example: Example) -> dict[str, Any]:
  """Returns a sentence with the truth that is known of it."""
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


def _described(language: TextProcessor) -> dict[str, Any]:
  """Returns a language as tokenizer.mjs reads it."""
  is_word = isinstance(language.tokenizer, WordTokenizer)
  return {
    "unit": "word" if is_word else "character",
    **({"pattern": words.PATTERN, "classes": words.class_ranges()} if is_word else {}),
    "lowercase": language.lowercase,
    "words": language.vocabulary.words,
    "joins": _JOINS[type(language.tokenizer)],
  }
