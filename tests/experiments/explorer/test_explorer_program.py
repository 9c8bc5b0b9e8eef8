"""The functions of the page, in Node: tokens, addresses, alignments, weights, highlights and formulas."""

import json
import urllib.parse

import numpy as np
import pytest
from helpers import browser

from experiments.data import words
from experiments.data.toy import grammar
from experiments.data.toy.toy_translation import ItalianWords
from experiments.evaluation.metrics import AlignedAttention, alignment_error_rate
from experiments.explorer.recorded import weights_file

pytestmark = browser.needs_node

RUN = {"checkpoints": [{"step": 3}, {"step": 7}], "examples": [{"source": "a cat"}]}
DATA = {"runs": [{"name": "one", **RUN}, {"name": "two", **RUN}]}


def test_tokens_are_those_of_python():
  program = """
const { language } = given;
return {
  tokens: explorer.tokenize(language, "L'amico vede un'oca"),
  joined: explorer.detokenize(language, ["l'", "amico"]),
  ids: explorer.toIds(language, ["e\\u0301", "\\xe9", "<unk>", "x"]),
};
"""
  language = {"unit": "word", "joins": "elisions", "lowercase": True, "words": ["\xe9"]}
  language |= {"pattern": words.PATTERN, "classes": words.class_ranges()}
  result = browser.in_node(program, {"language": language})
  tokens = ["l'", "amico", "vede", "un'", "oca"]
  assert result["tokens"] == tokens == [*ItalianWords().tokenize("l'amico vede un'oca")]
  assert result["joined"] == "l'amico" == grammar.join(["l'", "amico"])
  assert result["ids"] == [4, 4, 3, 3]  # both spellings of a word have one id


def test_addresses_keep_states():
  program = """
const { state } = explorer.fromAddress("", given.data);
return given.states.map((changes) => {
  const address = explorer.toAddress({ ...state, ...changes }, given.data);
  return { initial: state, address, ...explorer.fromAddress(address, given.data) };
});
"""
  states = [
    {},
    {"text": "à “b”\n🦓", "run": "two", "compare": "one", "checkpoint": 7, "beamSize": 10},
    {"compare": None, "hidden": [0, 99], "forced": {"3": "#{"}, "overrides": {"1": "uniform", "2": 5}},
    {"view": "arcs", "numShown": 0, "cell": [2, 7], "side": "encoder", "layer": 1, "head": 0, "find": "%"},
  ]
  for state, result in zip(states, browser.in_node(program, {"data": DATA, "states": states}), strict=True):
    assert result["problems"] == [] and result["state"] == {**result["initial"], **state}
    assert json.loads(urllib.parse.unquote(result["address"][1:]) or "{}") == state


def test_invalid_addresses_are_explained():
  problems = {
    "checkpoint": (4, "checkpoint must be one of 3, 7, got 4"),
    "beamSize": (99, "beamSize must be one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, got 99"),
    "cell": ([3], "cell must be a target and a source position, got [3]"),
    "hidden": ([-1], "hidden must be a list of positions, got [-1]"),
    "forced": ({"x": "a"}, 'forced must be tokens by position, got {"x":"a"}'),
    "overrides": ({"1": "wide"}, 'overrides must be positions or "uniform" by position, got {"1":"wide"}'),
    "hypothesis": (None, "hypothesis must be a position from 0, got null"),
    "layer": (1.5, "layer must be a position from 0, got 1.5"),
    "toString": (1, "toString must be absent, got 1"),
  }
  fields = json.dumps({name: value for name, (value, _) in problems.items()})
  addresses = "", "#" + urllib.parse.quote(fields), "#cell=1,2"
  program = "return given.addresses.map((address) => explorer.fromAddress(address, given.data));"
  first, found, not_json = browser.in_node(program, {"data": DATA, "addresses": addresses})
  assert found == {"state": first["state"], "problems": [text for _, text in problems.values()]}
  assert not_json == {"state": first["state"], "problems": ["it is not JSON"]}


def test_alignment_errors_are_those_of_python():
  rng, cases, desired = np.random.default_rng(0), [], []
  for _ in range(20):
    T, S = rng.integers(2, 9, 2)
    links = rng.random((T - 1, S - 1)) < 0.3
    links[0, 0] = True
    weights = rng.random((T, S)) * (rng.random((T, 1)) < 0.8)
    pairs = np.argwhere(links).tolist()
    cases.append({"weights": weights[:-1].tolist(), "links": pairs})
    desired.append(alignment_error_rate([AlignedAttention(weights, {*map(tuple, pairs)})]))
  program = "return given.map(({ weights, links }) => explorer.alignmentErrorRate(weights, links));"
  *rates, without_links = browser.in_node(program, [*cases, {"weights": [[0, 1]], "links": []}])
  np.testing.assert_allclose(rates, desired, atol=1e-12)
  assert without_links is None


RANGES = [
  (0, 1, None),
  (-1e-6, 1 + 1e-6, None),
  (-0.5, 0.5, "weights from −0.5 to 0.5; full color: 0.5"),
  (0, 300, "weights from 0 to 300; full color: 300"),
]


@pytest.mark.parametrize(("low", "high", "text"), RANGES)
def test_recorded_weights_are_decoded(tmp_path, low, high, text):
  weights = np.random.default_rng(0).uniform(low, high, (2, 3, 5, 5)).astype(np.float32)
  weights[0, 0, 0, :2] = low, high
  np.savez(tmp_path / "file.npz", weights=weights, tokens=[*"abcde"])
  packed = weights_file(tmp_path / "file.npz")["sentences"][0]["sides"]["encoder"]
  program = """
const values = await explorer.decodeWeights(given);
return { values: [...values], range: explorer.describeRange([values]) };
"""
  result = browser.in_node(program, packed)
  np.testing.assert_allclose(result["values"], weights.ravel(), atol=(high - low) / 65535)
  assert result["range"] == text


def test_highlighted_tokens_have_much_weight():
  program = """
const grid = { rows: [..."abc"], columns: [..."vwxy"], weights: given };
const at = (kind, point) => explorer.highlightedTokens(grid, kind, point);
return [at("rows", { t: 1 }), at("columns", { t: 1 }), at("rows", { s: 0 }), at("columns", { s: 3 })];
"""
  weights = [[1.0, 0, 0, 0], [0.01, 0.5, 0, -0.5], [0.3, 0.3, 0.4, 0]]
  assert browser.in_node(program, weights) == [
    [False, True, False],
    [False, True, False, True],
    [True, False, True],
    [False, False, False, True],
  ]


@pytest.mark.parametrize(("T", "S", "height", "width"), [(3, 5, 3, 5), (96, 144, 48, 48)])
def test_overviews_show_the_strongest_weights(T, S, height, width):
  weights = np.random.default_rng(0).normal(size=(2, 3, T, S)).astype(np.float32)
  given = {"shape": weights.shape, "values": weights.ravel().tolist()}
  program = "return explorer.strongestWeights(given, 1, 2).map((row) => [...row]);"
  actual = browser.in_node(program, given)
  parts = weights[1, 2].reshape(height, T // height, width, S // width).swapaxes(1, 2)
  parts = parts.reshape(height, width, -1)
  strongest = np.argmax(np.abs(parts), axis=-1, keepdims=True)
  np.testing.assert_array_equal(np.float32(actual), np.take_along_axis(parts, strongest, -1)[..., 0])


def test_formulas_are_those_of_the_model():
  program = "return given.map((shape) => explorer.formulasOf(shape).map(({ name }) => name));"
  shapes = [
    {"attention": "additive", "attend_order": "before", "num_decoder_layers": 1},
    {"attention": "bilinear", "attend_order": "after", "num_decoder_layers": 2, "input_feeding": True},
    {"attention": "none", "attend_order": "after", "num_decoder_layers": 1},
  ]
  attention = ["Query", "Key", "Score", "Weight", "Context"]
  assert browser.in_node(program, shapes) == [
    [*attention, "State", "Features"],
    ["State", *attention, "Features"],
    ["State", "Context", "Features"],
  ]
