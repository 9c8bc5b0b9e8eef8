"""Flags and files of published models."""

import json
import pathlib

from absl import flags

MODEL = flags.DEFINE_string("model", None, "folder with config.json and model.safetensors", required=True)
TOKENS = flags.DEFINE_list("tokens", None, "token ids of the input", required=True)
NUM_TOKENS = flags.DEFINE_integer("num_tokens", 20, "maximum number of decoded tokens", lower_bound=1)
WEIGHTS = flags.DEFINE_string("weights", None, "file for the attention weights")


def read_model():
  """Returns the content of config.json and the arrays of model.safetensors in the folder `--model`."""
  from safetensors.flax import load_file  # pip install safetensors

  folder = pathlib.Path(MODEL.value)
  return json.loads((folder / "config.json").read_text("utf-8")), load_file(folder / "model.safetensors")
