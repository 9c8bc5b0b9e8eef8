"""Flags and files of published models."""

import json
import pathlib

import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments.cli.flags import UsageError

_MODEL = flags.DEFINE_string("model", None, "folder with config.json and model.safetensors", required=True)
_TOKENS = flags.DEFINE_list("tokens", None, "token ids of the input", required=True)
NUM_TOKENS = flags.DEFINE_integer("num_tokens", 20, "maximum number of decoded tokens", lower_bound=1)
_WEIGHTS = flags.DEFINE_string("weights", None, "file for the attention weights")


def read_model():
  """Returns the content of config.json and the arrays of all safetensors files in the folder `--model`."""
  from safetensors.flax import load_file  # pip install safetensors

  folder = pathlib.Path(_MODEL.value)
  files = sorted(folder.glob("*.safetensors"))
  if not files or not (folder / "config.json").exists():
    raise UsageError(f"--model must be a folder with config.json and model.safetensors, got {folder}")
  state = {name: array for file in files for name, array in load_file(file).items()}
  return json.loads((folder / "config.json").read_text("utf-8")), state


def read_tokens(vocabulary_size):
  """Returns `--tokens` as a batch of one sentence, [1 T]."""
  tokens = [int(token) if token.isdigit() else -1 for token in _TOKENS.value]
  if not all(0 <= token < vocabulary_size for token in tokens):
    raise UsageError(
      f"--tokens must be integers from 0 to {vocabulary_size - 1}, got {','.join(_TOKENS.value)}"
    )
  return jnp.array([tokens])


def write_weights(weights, **tokens):
  """Writes weights [L N T S] and the tokens to the file `--weights`, if it is given."""
  if _WEIGHTS.value:
    labels = {name: [str(token) for token in ids.tolist()] for name, ids in tokens.items()}
    np.savez(_WEIGHTS.value, weights=np.asarray(weights, np.float32), **labels)
