"""Compares the decoding speed of this library's translators with PyTorch and CTranslate2.

    python -m experiments.benchmark_decoding

The models are those of configs/toy_translation.py and configs/toy_translation_transformer.py with the sizes
below and random parameters. All decode the same number of tokens: the end of the sentence is not allowed.
The PyTorch models (peers/torch_translator.py and torch_transformer.py) cache keys and values. Before
they are timed, outputs are compared. PyTorch and CTranslate2 are included if they are installed:
pip install torch ctranslate2. Each is measured in turn with this library. CTranslate2 comes first: once
PyTorch has run in the same process, CTranslate2 is several times slower with few sentences.
"""

import functools
import importlib.util
import itertools
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags

from configs import base
from experiments.benchmarks.timing import in_turn
from experiments.cli import flags as cli
from experiments.cli.messages import markdown
from experiments.data.vocabularies import BOS_ID, EOS_ID, NUM_SPECIAL_IDS, PAD_ID, UNK_ID
from experiments.inference.decoding import DecodeOptions, decode
from experiments.learning.model import make_model

_BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["1", "16", "200"], "numbers of sentences")
_BEAM_SIZES = flags.DEFINE_list("beam_sizes", ["1", "5"], "beam sizes; 1 is greedy decoding")
_LENGTH = flags.DEFINE_integer("length", 20, "tokens per source and translation", lower_bound=1)
_VOCABULARY = flags.DEFINE_integer("vocabulary", 4000, "vocabulary size of each language", lower_bound=8)
_FEATURES = flags.DEFINE_integer("features", 256, "width of the models", lower_bound=4)
_REPEATS = flags.DEFINE_integer("repeats", 7, "number of timed runs", lower_bound=1)

_OTHERS = {"CTranslate2": "ctranslate2", "PyTorch": "torch"}  # names of their packages
_KINDS = "recurrent", "transformer"  # CTranslate2 does not support the recurrent one
_NUM_HEADS, _NUM_LAYERS = 4, 2
_BANNED_IDS = (PAD_ID, BOS_ID, EOS_ID, UNK_ID)
# Share of tokens that must be equal. Nearly equal probabilities may be ranked differently.
_MIN_EQUAL = 0.98


def main() -> None:
  batch_sizes, beam_sizes = _sizes(_BATCH_SIZES), _sizes(_BEAM_SIZES)
  if _FEATURES.value % (2 * _NUM_HEADS):
    raise cli.UsageError(f"--features must be a multiple of {2 * _NUM_HEADS}, got {_FEATURES.value}")
  others = [name for name in _OTHERS if _is_installed(name)]
  pairs = [
    (kind, other) for other in others for kind in _KINDS if (kind, other) != ("recurrent", "CTranslate2")
  ]
  pairs += [(kind, "") for kind in _KINDS if kind not in {kind for kind, _ in pairs}]
  rates: dict[tuple[str, int, int], dict[str, float]] = {}
  with tempfile.TemporaryDirectory() as folder:
    for kind, other in pairs:
      baselines = _baselines(kind, other, pathlib.Path(folder))
      for batch_size, beam_size in itertools.product(batch_sizes, beam_sizes):
        measured = _measure(baselines, batch_size, beam_size)
        row = rates.setdefault((kind, batch_size, beam_size), {"attention": measured["attention"]})
        if other:
          row[other] = measured["attention"] / measured[other]
        print(kind, batch_size, beam_size, {name: round(rate) for name, rate in measured.items()}, flush=True)
  header = ["model", "sentences", "beam size", "attention, tokens/s", *(f"vs. {name}" for name in _OTHERS)]
  rows = []
  for (kind, batch_size, beam_size), row in rates.items():
    speedups = [f"{row[name]:.2f}×" if name in row else "-" for name in _OTHERS]
    rows.append([kind, f"{batch_size:,}", f"{beam_size}", f"{row['attention']:,.0f}", *speedups])
  print(f"\n{markdown(header, rows)}")


def _is_installed(name: str) -> bool:
  """Returns whether another library is installed, and otherwise prints that it is not."""
  if importlib.util.find_spec(_OTHERS[name]) is not None:
    return True
  print(f"not measured: {name} is not installed")
  return False


def _sizes(flag: flags.FlagHolder) -> list[int]:
  """Returns the values of a flag, or raises UsageError unless they are positive integers."""
  if not flag.value or not all(value.isdecimal() and int(value) > 0 for value in flag.value):
    raise cli.UsageError(f"--{flag.name} must be positive integers, got {','.join(flag.value)!r}")
  return [int(value) for value in flag.value]


def _model_config(kind: str) -> base.Model:
  features = _FEATURES.value
  if kind == "recurrent":
    return base.Model(embed_dim=features, features=features)
  return base.Model(
    encoder="transformer",
    decoder="transformer",
    features=features,
    num_heads=_NUM_HEADS,
    mlp_dim=2 * features,
    num_layers=_NUM_LAYERS,
    num_decoder_layers=_NUM_LAYERS,
  )


# A baseline takes sources [B S] and a beam size, and returns tokens [B T].
Baseline = Callable[[np.ndarray, int], np.ndarray]


def _baselines(kind: str, other: str, folder: pathlib.Path) -> dict[str, Baseline]:
  """Returns this library and the other one, "" for none, with the same parameters."""
  config = _model_config(kind)
  sizes = {"source_vocabulary_size": _VOCABULARY.value, "target_vocabulary_size": _VOCABULARY.value}
  model = make_model(config, **sizes)
  sources = np.ones((1, _LENGTH.value), np.int32)
  params = model.init(jax.random.key(0), sources, np.array([_LENGTH.value]), sources)["params"]
  baselines: dict[str, Baseline] = {"attention": _ours(model, params)}
  if other == "PyTorch":
    baselines[other] = _torch(kind, config, params)
  elif other == "CTranslate2":
    baselines[other] = _ctranslate2(params, folder)
  return baselines


def _measure(baselines: dict[str, Baseline], batch_size: int, beam_size: int) -> dict[str, float]:
  """Returns the tokens per second of each baseline."""
  shape = batch_size, _LENGTH.value
  sources = np.random.default_rng(0).integers(NUM_SPECIAL_IDS, _VOCABULARY.value, shape).astype(np.int32)
  expected = baselines["attention"](sources, beam_size)
  for name, baseline in baselines.items():
    equal = np.mean(baseline(sources, beam_size) == expected)
    if not equal >= _MIN_EQUAL:
      raise RuntimeError(f"{name} must decode the same tokens, got {equal:.0%} equal")
  calls = {name: functools.partial(baseline, sources, beam_size) for name, baseline in baselines.items()}
  seconds = in_turn(calls, _REPEATS.value)
  return {name: batch_size * _LENGTH.value / float(np.median(times)) for name, times in seconds.items()}


def _ours(model: Any, params: Any) -> Baseline:
  def run(sources: np.ndarray, beam_size: int) -> np.ndarray:
    lengths = np.full(len(sources), sources.shape[1])
    result = decode(
      params,
      sources,
      lengths,
      np.arange(len(sources), dtype=np.uint32),
      np.uint32(0),
      model=model,
      decode_options=DecodeOptions(_LENGTH.value, beam_size),
      with_weights=False,
      banned_ids=_BANNED_IDS,
    )
    return np.asarray(result.tokens)[:, 0]

  return run


def _torch(kind: str, config: base.Model, params: Any) -> Baseline:
  import torch

  from experiments.peers import torch_search, torch_transformer, torch_translator

  vocabularies = _VOCABULARY.value, _VOCABULARY.value
  if kind == "recurrent":
    module = torch_translator.Translator(vocabularies, config.embed_dim, config.features, optimized=True)
    torch_translator.load(module, params)
  else:
    sizes = config.features, config.num_heads, config.mlp_dim, config.num_layers, _LENGTH.value
    module = torch_transformer.Transformer(vocabularies, *sizes)
    torch_transformer.load(module, params)
  module.eval()
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  options = {"max_length": _LENGTH.value, "bos_id": BOS_ID, "banned_ids": list(_BANNED_IDS)}

  def run(sources: np.ndarray, beam_size: int) -> np.ndarray:
    tensor, lengths = torch.tensor(sources).long(), torch.full((len(sources),), sources.shape[1])
    return torch_search.search(module, tensor, lengths, beam_size=beam_size, **options).numpy()

  return run


def _ctranslate2(params: Any, folder: pathlib.Path) -> Baseline:
  from experiments.peers import ctranslate2_transformer

  translator = ctranslate2_transformer.make_translator(
    folder, params, num_heads=_NUM_HEADS, num_layers=_NUM_LAYERS, max_length=_LENGTH.value + 1
  )

  def run(sources: np.ndarray, beam_size: int) -> np.ndarray:
    results = translator.translate_batch(
      [[str(token) for token in row] for row in sources],
      beam_size=beam_size,
      max_decoding_length=_LENGTH.value,
      min_decoding_length=_LENGTH.value,
      suppress_sequences=[[str(token)] for token in _BANNED_IDS],
    )
    return np.array([[int(token) for token in result.hypotheses[0]] for result in results])

  return run


if __name__ == "__main__":
  cli.run(main, uses_cache=False)
