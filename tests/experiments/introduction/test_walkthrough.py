"""walkthrough.py, and the parts of a translator against NumPy."""

import pathlib
import re

import jax
import numpy as np
import pytest
from helpers import scripts
from test_lessons import attend, close, run

from experiments.introduction import soft_lookup, translator_parts

pytestmark = pytest.mark.nightly


def dense(layer, inputs):
  return inputs @ layer["kernel"] + layer["bias"]


def multi_head(params, queries, sources):
  """Computes heads one by one, concatenates them and multiplies by W_O (section 3.2.2)."""
  heads = []
  for n in range(params["query"]["kernel"].shape[1]):
    query, key, value = (
      {"kernel": params[name]["kernel"][:, n], "bias": params[name]["bias"][n]}
      for name in ("query", "key", "value")
    )
    heads.append(attend(dense(query, queries), dense(key, sources), dense(value, sources))[0])
  merged = params["out"]["kernel"].reshape(-1, params["out"]["kernel"].shape[-1])
  return np.concatenate(heads, axis=-1) @ merged + params["out"]["bias"]


def norm(layer, inputs):
  mean, variance = inputs.mean(-1, keepdims=True), inputs.var(-1, keepdims=True)
  return (inputs - mean) / np.sqrt(variance + 1e-6) * layer["scale"] + layer["bias"]


def sigmoid(inputs):
  return 1 / (1 + np.exp(-inputs))


@pytest.mark.parametrize(
  ("system", "shape", "num_heads"),
  [(soft_lookup.same_shape, (4, 10, 32), 4), (translator_parts.eight_heads, (32, 50, 256), 8)],
)
def test_multi_head_layers_are_the_formula(system, shape, num_heads):
  layer = run(system)
  assert layer.params["query"]["kernel"].shape[1] == num_heads
  assert layer.inputs.shape == layer.outputs.shape == shape
  close(layer.outputs, multi_head(layer.params, layer.inputs, getattr(layer, "sources", layer.inputs)))


def test_encoder_layer_is_the_formula():
  layer = run(translator_parts.encoder_layer)
  params, inputs = layer.params, layer.inputs
  assert params["attention"]["query"]["kernel"].shape == (256, 8, 32)
  attended = norm(params["attention_norm"], inputs + multi_head(params["attention"], inputs, inputs))
  hidden = np.maximum(dense(params["feed_forward"]["hidden"], attended), 0)
  assert hidden.shape == (32, 50, 1024)
  close(
    layer.outputs,
    norm(params["feed_forward_norm"], attended + dense(params["feed_forward"]["out"], hidden)),
  )


def test_decoder_step_is_the_formula():
  step = run(translator_parts.decoder_step)
  layer, cell = step.params["attention_layer"], step.params["cell"]
  before = np.tanh(dense(step.params["initial"], step.final_state))
  # a_j = softmax(v_a . tanh(W_a state + U_a memory_j)), with the previous state.
  queries, keys = before @ layer["query"]["kernel"], step.memory @ layer["key"]["kernel"]
  weights = np.asarray(jax.nn.softmax(np.tanh(queries[:, None] + keys) @ layer["score_vector"]))
  assert weights.shape == (32, 50)
  close(step.weights, weights)
  context = np.einsum("BS,BSD->BD", weights, step.memory)
  # The inputs of the GRU are the previous word and the context.
  embedded = step.params["embedding"]["embedding"][step.tokens.astype(int)]
  projected = np.concatenate([embedded, context], axis=-1) @ cell["input"] + cell["bias"]
  recurrent = before @ cell["recurrent"]
  reset = sigmoid(projected[:, :512] + recurrent[:, :512])
  update = sigmoid(projected[:, 512:1024] + recurrent[:, 512:1024])
  candidate = np.tanh(projected[:, 1024:] + reset * (recurrent[:, 1024:] + cell["recurrent_bias"]))
  state = (1 - update) * candidate + update * before
  close(step.state, state)
  read = np.tanh(dense(step.params["readout"], np.concatenate([state, context, embedded], axis=-1)))
  close(step.logits, dense(step.params["logits"], read))
  assert step.logits.shape == (32, 10_000)


def test_walkthrough_prints_five_lessons(tmp_path):
  folder = tmp_path / "figures"
  finished = scripts.run("walkthrough", f"--figures={folder}")
  assert finished.code == 0, finished.errors
  output = finished.output
  assert re.findall(r"^(\d)\. .*\n=+$", output, flags=re.MULTILINE) == list("01234")
  for text in (
    '"the cat sees a bird" is [2, 6, 8, 3, 1]; embedded: (5, 16)',
    "concatenated:                  (5, 16)",
    "D = 768, N = 12: H = 64",
    "stacked heads, in one call:            (1, 5, 768)",
    "looking up dog, [1.0, 10.0, 1.0], in ['cat', 'dog', 'bird']: [[0. 1. 0.]]",
    "4 heads: (4, 10, 32) -> (4, 10, 32)",
    "mask (1, 1, 4): [[[ True  True  True False]]]",
    "-> logits (32, 10000), state (32, 512), weights (32, 50)",
    "8 heads: (32, 50, 256) -> (32, 50, 256)",
  ):
    assert text in output
  # The listed weights are those in the weighted sum, and sum to one.
  listed = re.findall(r"^  (0\.\d{3})  (\w+)$", output, flags=re.MULTILINE)
  assert [word for _, word in listed] == ["the", "cat", "sees", "a", "bird"]
  terms = re.findall(r"(0\.\d{3}) v_(\d)", output)
  assert terms == [(weight, str(j)) for j, (weight, _) in enumerate(listed, 1)]
  assert abs(sum(float(weight) for weight, _ in terms) - 1) < 0.003
  assert output.count("row sums: [1. 1. 1.]") == 2
  assert float(re.findall(r"largest difference: (\S+)", output)[0]) < 1e-4
  names = re.findall(r"heatmap: (\S+)", output)
  assert len(names) == 3 and sorted(map(pathlib.Path, names)) == sorted(folder.iterdir())
  assert all(pathlib.Path(name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for name in names)


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("maps", "got 'maps'"),
    ("--figures=", "--figures must name a folder, got none"),
    ("--figures={file}/maps", "{file}/maps: Not a directory"),
  ],
)
def test_user_errors_are_one_line(tmp_path, argument, message):
  file = tmp_path / "file"
  file.touch()
  finished = scripts.run("walkthrough", argument.format(file=file))
  assert (finished.code, finished.output, finished.errors.count("\n")) == (2, "", 1)
  assert message.format(file=file) in finished.errors
