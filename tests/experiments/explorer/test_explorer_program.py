"""The program of the page, in Node: tokens, addresses, alignment errors, weights and formulas."""

import json
import urllib.parse

import hypothesis
import numpy as np
from helpers import browser
from hypothesis import strategies as st

from experiments.data import words
from experiments.data.toy import grammar
from experiments.data.toy.toy_translation import ItalianWords
from experiments.evaluation.metrics import AlignedAttention, alignment_error_rate
from experiments.explorer import recorded

pytestmark = browser.needs_node

POSITIONS = st.integers(0, 99)
PLACES = POSITIONS.map(str)
TEXTS = st.text(st.characters(codec="utf-8"))
STATES = st.fixed_dictionaries(
  {},
  optional={
    "text": TEXTS,
    "run": st.just("two"),
    "compare": st.sampled_from(["one", None]),
    "checkpoint": st.just(7),
    "beamSize": st.integers(1, 10),
    "hidden": st.lists(POSITIONS, min_size=1),
    "forced": st.dictionaries(PLACES, TEXTS, min_size=1),
    "overrides": st.dictionaries(PLACES, st.just("uniform") | POSITIONS, min_size=1),
    "view": st.just("arcs"),
    "numShown": POSITIONS,
    "cell": st.lists(POSITIONS, min_size=2, max_size=2),
    "side": st.just("encoder"),
    "layer": POSITIONS,
    "head": POSITIONS,
    "find": TEXTS,
  },
)
RUN = {"checkpoints": [{"step": 3}, {"step": 7}], "examples": [{"source": "a cat"}]}
DATA = {"runs": [{"name": "one", **RUN}, {"name": "two", **RUN}]}


def read(*addresses):
  """Returns the state of the page without an address, and the states and problems of some addresses."""
  program = "return given.addresses.map((address) => explorer.fromAddress(address, given.data));"
  first, *others = browser.in_node(program, {"data": DATA, "addresses": ["", *addresses]})
  assert first["problems"] == []
  return first["state"], others


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


@hypothesis.settings(max_examples=2)
@hypothesis.given(st.lists(STATES, min_size=20, max_size=40))
def test_addresses_keep_states(states):
  program = """
const { state } = explorer.fromAddress("", given.data);
return given.states.map((changes) => explorer.toAddress({ ...state, ...changes }, given.data));
"""
  addresses = browser.in_node(program, {"data": DATA, "states": states})
  initial, found = read(*addresses)
  assert found == [{"state": {**initial, **state}, "problems": []} for state in states]
  for address, state in zip(addresses, states, strict=True):
    fields = json.loads(urllib.parse.unquote(address[1:]) or "{}")
    assert fields == {name: value for name, value in state.items() if value != initial[name]}


def test_invalid_addresses_are_explained():
  problems = {
    "run": ("three", 'run must be one of one, two, got "three"'),
    "checkpoint": (4, "checkpoint must be one of 3, 7, got 4"),
    "beamSize": (99, "beamSize must be one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, got 99"),
    "cell": ([3], "cell must be a target and a source position, got [3]"),
    "hidden": ([-1], "hidden must be a list of positions, got [-1]"),
    "forced": ({"x": "a"}, 'forced must be tokens by position, got {"x":"a"}'),
    "overrides": ({"1": "wide"}, 'overrides must be positions or "uniform" by position, got {"1":"wide"}'),
    "view": ("cube", 'view must be one of heatmap, arcs, got "cube"'),
    "side": (None, "side must be one of decoder, encoder, got null"),
    "hypothesis": (None, "hypothesis must be a position from 0, got null"),
    "numShown": ("2", 'numShown must be a position from 0, got "2"'),
    "layer": (1.5, "layer must be a position from 0, got 1.5"),
    "text": (1, "text must be text, got 1"),
    "toString": (1, "toString must be absent, got 1"),
  }
  fields = {name: value for name, (value, _) in problems.items()}
  initial, (found, not_json) = read("#" + urllib.parse.quote(json.dumps(fields)), "#cell=1,2")
  assert found == {"state": initial, "problems": [text for _, text in problems.values()]}
  assert not_json == {"state": initial, "problems": ["it is not JSON"]}


def test_alignment_errors_are_those_of_python():
  rng, given = np.random.default_rng(0), []
  for _ in range(50):
    T, S = rng.integers(2, 9, 2)
    links = rng.random((T - 1, S - 1)) < 0.3
    links[0, 0] = True
    weights = rng.random((T, S)) * (rng.random((T, 1)) < 0.8)
    given.append({"weights": weights[:-1].tolist(), "links": np.argwhere(links).tolist(), "all": weights})
  program = "return given.map(({ weights, links }) => explorer.alignmentErrorRate(weights, links));"
  cases = [{name: item[name] for name in ("weights", "links")} for item in given]
  *rates, without_links = browser.in_node(program, [*cases, {"weights": [[0, 1]], "links": []}])
  expected = [
    alignment_error_rate([AlignedAttention(item["all"], {*map(tuple, item["links"])})]) for item in given
  ]
  np.testing.assert_allclose(rates, expected, atol=1e-12)
  assert without_links is None


def test_recorded_weights_are_decoded():
  ranges = {
    (0, 1): None,
    (-1e-6, 1 + 1e-6): None,
    (-0.5, 0.5): "weights from −0.5 to 0.5; full color: 0.5",
    (0, 300): "weights from 0 to 300; full color: 300",
  }
  arrays = [np.random.default_rng(0).uniform(*item, (1, 2, 3, 5)).astype(np.float32) for item in ranges]
  for weights, limits in zip(arrays, ranges, strict=True):
    weights[0, 0, 0, :2] = limits
  program = """
return Promise.all(given.map(async (packed) => {
  const values = await explorer.decodeWeights(packed);
  return { values: [...values], range: explorer.describeRange([values]) };
}));
"""
  packed = json.loads(json.dumps([recorded._quantize(weights) for weights in arrays]))
  results = browser.in_node(program, packed)
  for ((low, high), text), weights, result in zip(ranges.items(), arrays, results, strict=True):
    np.testing.assert_allclose(result["values"], weights.ravel(), atol=(high - low) / 65535)
    assert result["range"] == text


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
