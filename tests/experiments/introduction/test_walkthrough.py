"""Tests of experiments/walkthrough.py and experiments/introduction against NumPy."""

import contextlib
import functools
import io
import pathlib
import re
import types

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from helpers import scripts

from experiments import walkthrough
from experiments.introduction import (
  heads_from_config,
  masked_attention,
  self_attention,
  soft_lookup,
  translator_parts,
)


def _close(actual, expected, tolerance=2e-5):
  np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def _float64(tree):
  return jax.tree.map(lambda leaf: np.asarray(leaf, dtype=np.float64), tree)


def _softmax(scores):
  exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
  return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _attend(queries, keys, values):
  """softmax(Q K^T / sqrt(d_k)) V and the weights (Vaswani et al. 2017, eq. 1)."""
  weights = _softmax(queries @ np.swapaxes(keys, -1, -2) / np.sqrt(keys.shape[-1]))
  return weights @ values, weights


def _dense(layer, inputs):
  return inputs @ layer["kernel"] + layer["bias"]


def _multi_head(params, queries, sources):
  """Computes heads one by one, concatenates them and multiplies by W_O (section 3.2.2)."""
  num_heads = params["query"]["kernel"].shape[1]
  heads = []
  for n in range(num_heads):
    query, key, value = (
      {"kernel": params[name]["kernel"][:, n], "bias": params[name]["bias"][n]}
      for name in ("query", "key", "value")
    )
    heads.append(_attend(_dense(query, queries), _dense(key, sources), _dense(value, sources))[0])
  merged = params["out"]["kernel"].reshape(-1, params["out"]["kernel"].shape[-1])
  return np.concatenate(heads, axis=-1) @ merged + params["out"]["bias"]


def _norm(layer, inputs):
  mean, variance = inputs.mean(-1, keepdims=True), inputs.var(-1, keepdims=True)
  return (inputs - mean) / np.sqrt(variance + 1e-6) * layer["scale"] + layer["bias"]


def _sigmoid(inputs):
  return 1 / (1 + np.exp(-inputs))


@functools.cache
def _run(system, *sizes):
  run = jax.jit(system, static_argnums=range(1, 1 + len(sizes)))
  return types.SimpleNamespace(**_float64(run(jax.random.key(3, impl="unsafe_rbg"), *sizes)))


@functools.cache
def _one_head():
  return _run(self_attention.one_head)


@functools.cache
def _four_heads():
  inputs = np.random.default_rng(0).normal(size=(5, 16)).astype(np.float32)
  rng = jax.random.key(3, impl="unsafe_rbg")
  four = _float64(jax.jit(self_attention.four_heads)(rng, inputs))
  return inputs.astype(np.float64), types.SimpleNamespace(**four)


def test_words_are_embedding_rows():
  run = _one_head()
  assert run.embedding.shape == (10, 16)
  np.testing.assert_array_equal(run.inputs, [run.embedding[token] for token in (2, 6, 8, 3, 1)])


def test_one_head_projects_each_word():
  run = _one_head()
  _close(run.queries, run.inputs @ run.query_kernel)
  _close(run.keys, run.inputs @ run.key_kernel)
  _close(run.values, run.inputs @ run.value_kernel)
  assert run.query_kernel.shape == run.key_kernel.shape == run.value_kernel.shape == (16, 16)


def test_first_token_weights_are_a_softmax():
  run = _one_head()
  scores = [sum(run.queries[0] * key) / 4 for key in run.keys]
  exponentials = np.exp(scores)
  _close(run.weights[0], exponentials / sum(exponentials))


def test_first_context_is_a_weighted_sum():
  run = _one_head()
  a, v = run.weights[0], run.values
  expected = a[0] * v[0] + a[1] * v[1] + a[2] * v[2] + a[3] * v[3] + a[4] * v[4]
  _close(run.z_1, expected)
  _close(run.context[0], expected)
  _close(run.context, _attend(run.queries, run.keys, run.values)[0])


def test_four_heads_equal_four_single_heads():
  inputs, four = _four_heads()
  assert four.query_kernel.shape == four.key_kernel.shape == four.value_kernel.shape == (4, 16, 4)
  kernels = zip(four.query_kernel, four.key_kernel, four.value_kernel, strict=True)
  for n, (query, key, value) in enumerate(kernels):
    context, weights = _attend(inputs @ query, inputs @ key, inputs @ value)
    _close(four.contexts[n], context)
    _close(four.weights[n], weights)


def test_concatenated_heads_give_the_result():
  _, four = _four_heads()
  assert four.contexts.shape == (4, 5, 4)
  for n in range(4):
    np.testing.assert_array_equal(four.concatenated[:, 4 * n : 4 * n + 4], four.contexts[n])
  assert four.output_kernel.shape == (16, 16)
  _close(four.result, four.concatenated @ four.output_kernel)


def test_single_and_stacked_heads_match_formula():
  config = heads_from_config.HeadsConfig(hidden_size=15, num_attention_heads=5)
  run = _run(heads_from_config.heads_from_config, config, 7)
  heads = []
  for n in range(config.num_attention_heads):
    head = run.params[f"head_{n}"]
    assert np.abs(head["query"]["bias"]).min() > 0
    projected = [_dense(head[name], run.inputs) for name in ("query", "key", "value")]
    heads.append(_attend(*projected)[0])
  expected = _dense(run.params["output"], np.concatenate(heads, axis=-1))
  assert expected.shape == (1, 7, 15)
  _close(run.one_by_one, expected)
  _close(run.stacked, expected)


def test_default_config_has_twelve_heads():
  config = heads_from_config.HeadsConfig()
  assert (config.hidden_size, config.num_attention_heads, config.head_width) == (768, 12, 64)


@pytest.mark.parametrize(("hidden_size", "num_heads"), [(10, 3), (10, 0)])
def test_indivisible_head_size_raises(hidden_size, num_heads):
  with pytest.raises(ValueError) as caught:
    heads_from_config.HeadsConfig(hidden_size, num_heads)
  assert str(caught.value) == (
    "hidden_size must be a multiple of num_attention_heads, "
    f"got hidden_size={hidden_size}, num_attention_heads={num_heads}"
  )


@pytest.mark.parametrize("place", [0, 1, 2])
def test_soft_lookup_finds_the_query(place):
  query = [1.0, 1.0, 1.0]
  query[place] = 10.0
  # Scores (10, 1, 1), not scaled: the softmax is (e^9, 1, 1) / (e^9 + 2).
  expected = np.full(3, 1 / (np.exp(9) + 2))
  expected[place] = np.exp(9) / (np.exp(9) + 2)
  context, weights = soft_lookup.soft_lookup(query)
  _close(weights, [expected], 1e-6)
  _close(context, [expected], 1e-6)


def test_masked_attention_shapes():
  run = _run(masked_attention.masked_attention)
  assert (run.queries.shape, run.keys.shape, run.values.shape) == ((1, 3, 8), (1, 4, 8), (1, 4, 16))
  assert (run.context.shape, run.weights.shape) == ((1, 3, 16), (1, 3, 4))


def test_unmasked_attention_uses_every_key():
  run = _run(masked_attention.masked_attention)
  context, weights = _attend(run.queries, run.keys, run.values)
  _close(run.context, context)
  _close(run.weights, weights)
  _close(run.weights.sum(axis=-1), np.ones((1, 3)), 1e-6)


def test_masked_key_equals_deleted_key():
  run = _run(masked_attention.masked_attention)
  np.testing.assert_array_equal(run.mask, [[[1, 1, 1, 0]]])
  context, weights = _attend(run.queries, run.keys[:, :3], run.values[:, :3])
  _close(run.masked_context, context)
  _close(run.masked_weights[..., :3], weights)
  np.testing.assert_array_equal(run.masked_weights[..., 3], np.zeros((1, 3)))
  _close(run.masked_weights.sum(axis=-1), np.ones((1, 3)), 1e-6)


@pytest.mark.parametrize(
  ("system", "shape", "num_heads"),
  [(soft_lookup.same_shape, (4, 10, 32), 4), (translator_parts.eight_heads, (32, 50, 256), 8)],
)
def test_multi_head_layers_equal_the_formula(system, shape, num_heads):
  run = _run(system)
  assert run.params["query"]["kernel"].shape[1] == num_heads
  assert run.inputs.shape == run.outputs.shape == shape
  _close(run.outputs, _multi_head(run.params, run.inputs, getattr(run, "sources", run.inputs)))


def test_same_shape_uses_cross_attention():
  run = _run(soft_lookup.same_shape)
  assert np.abs(run.inputs - run.sources).min() > 0


def test_encoder_layer_matches_the_formula():
  run = _run(translator_parts.encoder_layer)
  params = run.params
  assert params["attention"]["query"]["kernel"].shape == (256, 8, 32)
  assert params["feed_forward"]["hidden"]["kernel"].shape == (256, 1024)
  attended = run.inputs + _multi_head(params["attention"], run.inputs, run.inputs)
  attended = _norm(params["attention_norm"], attended)
  hidden = np.maximum(_dense(params["feed_forward"]["hidden"], attended), 0)
  expected = _norm(params["feed_forward_norm"], attended + _dense(params["feed_forward"]["out"], hidden))
  assert expected.shape == (32, 50, 256)
  _close(run.outputs, expected)


def test_decoder_step_matches_the_formula():
  run = _run(translator_parts.decoder_step)
  attend, cell = run.params["attention_layer"], run.params["cell"]
  before = np.tanh(_dense(run.params["initial"], run.final_state))
  # a_j = softmax(v_a . tanh(W_a state + U_a memory_j)), with the previous state.
  queries, keys = before @ attend["query"]["kernel"], run.memory @ attend["key"]["kernel"]
  hidden = np.tanh(queries[:, None] + keys)
  weights = _softmax(hidden @ attend["score_vector"])
  _close(run.weights, weights)
  context = np.stack([row @ memory for row, memory in zip(weights, run.memory, strict=True)])
  # The inputs of the GRU are the previous word and the context.
  embedded = run.params["embedding"]["embedding"][run.tokens.astype(int)]
  projected = np.concatenate([embedded, context], axis=-1) @ cell["input"] + cell["bias"]
  recurrent = before @ cell["recurrent"]
  reset = _sigmoid(projected[:, :512] + recurrent[:, :512])
  update = _sigmoid(projected[:, 512:1024] + recurrent[:, 512:1024])
  candidate = np.tanh(projected[:, 1024:] + reset * (recurrent[:, 1024:] + cell["recurrent_bias"]))
  state = (1 - update) * candidate + update * before
  _close(run.state, state)
  read = np.tanh(_dense(run.params["readout"], np.concatenate([state, context, embedded], axis=-1)))
  _close(run.logits, _dense(run.params["logits"], read))


def test_decoder_step_shapes():
  run = _run(translator_parts.decoder_step)
  assert run.params["embedding"]["embedding"].shape == (10_000, 256)
  assert run.memory.shape == (32, 50, 512)
  shapes = run.logits.shape, run.state.shape, run.weights.shape
  assert shapes == ((32, 10_000), (32, 512), (32, 50))
  _close(run.weights.sum(axis=-1), np.ones(32), 1e-5)


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
  """The output of the script, and its folder of figures."""
  folder = tmp_path_factory.mktemp("walkthrough") / "figures"
  with flagsaver.flagsaver(), contextlib.redirect_stdout(io.StringIO()) as output:
    flags.FLAGS(["walkthrough", f"--figures={folder}"])
    walkthrough.main()
  flags.FLAGS.unparse_flags()  # for later tests
  return output.getvalue(), folder


@pytest.mark.exhaustive
def test_walkthrough_has_five_parts(walk):
  assert re.findall(r"^(\d)\. .*\n=+$", walk[0], flags=re.MULTILINE) == list("01234")


@pytest.mark.exhaustive
def test_walkthrough_prints_the_first_context(walk):
  """The listed weights are those in the weighted sum, and sum to one."""
  listed = re.findall(r"^  (0\.\d{3})  (\w+)$", walk[0], flags=re.MULTILINE)
  assert [word for _, word in listed] == ["the", "cat", "sees", "a", "bird"]
  terms = re.findall(r"(0\.\d{3}) v_(\d)", walk[0])
  assert terms == [(weight, str(j)) for j, (weight, _) in enumerate(listed, 1)]
  assert abs(sum(float(weight) for weight, _ in terms) - 1) < 0.003


@pytest.mark.parametrize(
  "text",
  [
    '"the cat sees a bird" is [2, 6, 8, 3, 1]; embedded: (5, 16)',
    "contexts of the heads:         (4, 5, 4)",
    "concatenated:                  (5, 16)",
    "times W_O:                     (5, 16)",
    "D = 768, N = 12: H = 64",
    "stacked heads, in one call:            (1, 5, 768)",
    "looking up dog, [1.0, 10.0, 1.0], in ['cat', 'dog', 'bird']: [[0. 1. 0.]]",
    "looking up bird, [1.0, 1.0, 10.0], in ['cat', 'dog', 'bird']: [[0. 0. 1.]]",
    "4 heads: (4, 10, 32) -> (4, 10, 32)",
    "no mask: context (1, 3, 16), weights (1, 3, 4)",
    "mask (1, 1, 4): [[[ True  True  True False]]]",
    "-> logits (32, 10000), state (32, 512), weights (32, 50)",
    "8 heads: (32, 50, 256) -> (32, 50, 256)",
  ],
)
@pytest.mark.exhaustive
def test_walkthrough_prints_expected_lines(walk, text):
  assert text in walk[0]


@pytest.mark.exhaustive
def test_printed_rows_sum_to_one(walk):
  _, masked = walk[0].split("last key masked: ")
  rows = re.findall(r"\[+(0\.\d+) (0\.\d+) (0\.\d+) (0\.\d+)\]", masked)
  assert [row[3] for row in rows] == ["0.000"] * 3
  np.testing.assert_allclose(np.array(rows, dtype=float).sum(axis=1), 1.0, atol=0.003)
  assert walk[0].count("row sums: [1. 1. 1.]") == 2


@pytest.mark.exhaustive
def test_walkthrough_compares_single_and_stacked_heads(walk):
  (difference,) = re.findall(r"largest difference: (\S+)", walk[0])
  assert float(difference) < 1e-4


@pytest.mark.exhaustive
def test_walkthrough_writes_heatmaps(walk):
  names = re.findall(r"heatmap: (\S+)", walk[0])
  assert sorted(map(pathlib.Path, names)) == sorted(walk[1].iterdir())
  assert len(names) == 3
  assert all(pathlib.Path(name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for name in names)


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("--attention_png=maps", "unknown flag --attention_png"),
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
