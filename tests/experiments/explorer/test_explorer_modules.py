"""Modules of the page, in Node: tokens, addresses, alignment errors, weights and requests."""

import json

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

PLACES = st.integers(0, 99).map(str)
TEXTS = st.text(st.characters(codec="utf-8"))
STATES = st.fixed_dictionaries(
  {},
  optional={
    "text": TEXTS,
    "run": st.integers(0, 9),
    "compare": st.integers(0, 9),
    "checkpoint": st.integers(0, 10**6),
    "beamSize": st.integers(1, 10),
    "temperature": st.sampled_from([0.1, 1.5, 2]),
    "masked": st.lists(st.integers(0, 99), min_size=1),
    "forcedWords": st.dictionaries(PLACES, TEXTS.filter(bool), min_size=1),
    "weightOverrides": st.dictionaries(PLACES, st.just("uniform") | st.integers(0, 99), min_size=1),
    "view": st.just("arcs"),
    "numShown": st.integers(0, 99),
    "cell": st.lists(st.integers(0, 99), min_size=2, max_size=2),
    "side": st.just("encoder"),
    "layer": st.integers(0, 9),
  },
)


def test_words_are_those_of_python():
  program = """
const { toIds, isBlank, detokenize, tokenize, escapeInvisible } = await load("tokenizer");
const { language, texts } = given;
return {
  tokens: tokenize(language, "L'amico vede un'oca"),
  joined: detokenize(language, ["l'", "amico"]),
  ids: toIds(language, ["e\\u0301", "\\xe9", "<unk>", "x"]),
  seen: texts.map((text) => [isBlank(text), escapeInvisible(text)]),
};
"""
  language = {"unit": "word", "joins": "elisions", "lowercase": True, "words": ["\xe9"]}
  language |= {"pattern": words.PATTERN, "classes": words.class_ranges()}
  result = browser.in_node(program, {"language": language, "texts": ["\u200b \u200d\ufeff", "a\u200b", ""]})
  tokens = ["l'", "amico", "vede", "un'", "oca"]
  assert result["tokens"] == tokens == [*ItalianWords().tokenize("l'amico vede un'oca")]
  assert result["joined"] == "l'amico" == grammar.join(["l'", "amico"])
  assert result["ids"] == [4, 4, 3, 3]  # both spellings of a word have one id
  assert result["seen"] == [[True, "\\u{200b} \\u{200d}\\u{feff}"], [False, "a\\u{200b}"], [True, ""]]


@hypothesis.settings(max_examples=2)
@hypothesis.given(st.lists(STATES, min_size=20, max_size=40))
def test_addresses_keep_states(states):
  program = """
const { DEFAULTS, fromAddress, toAddress } = await load("url_state");
const kept = (state) => fromAddress(`#${toAddress({ ...DEFAULTS, ...state })}`);
return { usual: DEFAULTS, found: given.map(kept) };
"""
  result = browser.in_node(program, states)
  assert result["found"] == [{**result["usual"], **state} for state in states]


def test_invalid_addresses_are_ignored():
  program = (
    "const { DEFAULTS, fromAddress } = await load('url_state'); return [DEFAULTS, fromAddress(given)];"
  )
  address = (
    "#beamSize=99&run=-1&cell=3&masked=a,b&forcedWords=x:y&weightOverrides=1:wide&view=cube&temperature="
  )
  usual, found = browser.in_node(program, f"{address}&checkpoint=1.5&nothing=1&toString=1")
  assert found == usual


def test_alignment_errors_are_those_of_python():
  rng, given = np.random.default_rng(0), []
  for _ in range(50):
    T, S = rng.integers(2, 9, 2)
    links = rng.random((T - 1, S - 1)) < 0.3
    links[0, 0] = True
    weights = rng.random((T, S)) * (rng.random((T, 1)) < 0.8)
    given.append({"weights": weights.tolist(), "links": np.argwhere(links).tolist()})
  program = """
const { alignmentErrorRate } = await load("metrics");
return given.map(({ weights, links }) => alignmentErrorRate(weights, links));
"""
  *rates, without_links = browser.in_node(program, [*given, {"weights": [[0, 0], [1, 0]], "links": []}])
  expected = [
    alignment_error_rate([AlignedAttention(np.array(item["weights"]), {*map(tuple, item["links"])})])
    for item in given
  ]
  np.testing.assert_allclose(rates, expected, atol=1e-12)
  assert without_links is None


def test_recorded_weights_are_decoded():
  ranges = {(0, 1): True, (-1e-6, 1 + 1e-6): True, (-0.5, 0.5): False, (0, 300): False}
  arrays = [np.random.default_rng(0).uniform(*item, (1, 2, 3, 5)).astype(np.float32) for item in ranges]
  for weights, limits in zip(arrays, ranges, strict=True):
    weights[0, 0, 0, :2] = limits
  program = """
const { unpackWeights } = await load("decode_arrays");
const { describeRange, strengthsOf } = await load("weight_range");
return Promise.all(given.map(async (packed) => {
  const values = await unpackWeights(packed);
  return { values: [...values], range: describeRange([values]), strengths: [...strengthsOf([values])[0]] };
}));
"""
  packed = json.loads(json.dumps([recorded._quantize(weights) for weights in arrays]))
  results = browser.in_node(program, packed)
  for ((low, high), are_shares), weights, result in zip(ranges.items(), arrays, results, strict=True):
    np.testing.assert_allclose(result["values"], weights.ravel(), atol=(high - low) / 65535)
    assert (result["range"] is None) is are_shares
    most = 1 if are_shares else np.abs(weights).max()
    np.testing.assert_allclose(result["strengths"], np.abs(weights.ravel()) / most, atol=1e-4)


def test_negative_weights_are_described():
  program = "const { describeRange } = await load('weight_range'); return given.map(describeRange);"
  assert browser.in_node(program, [[[-3, -1]], [[-1, 2]], [[1, 2]], [[0, 1]]]) == [
    "Weights range from −3 to −1; the darkest is the largest absolute value.",
    "Weights range from −1 to 2; the darkest is the largest absolute value.",
    "Weights range from 1 to 2; the darkest is the largest.",
    None,
  ]


def test_newer_requests_replace_waiting_ones():
  program = """
const { TranslationClient } = await load("translation_client");
const sent = [];
const worker = new EventTarget();
worker.postMessage = (request) => sent.push(request);
const client = new TranslationClient(worker);
const answer = (response) => worker.dispatchEvent(new MessageEvent("message", { data: response }));
const results = ["a1", "a2", "b1", "a3"].map((request) =>
  client.translate(request[0], request).then((text) => text ?? null, (error) => error.message));
answer({ translation: "A1", error: null });
answer({ translation: "A3", error: null });
answer({ translation: null, error: "failed" });
return { sent, results: await Promise.all(results) };
"""
  result = browser.in_node(program)
  assert result["sent"] == ["a1", "a3", "b1"]
  assert result["results"] == ["A1", None, "failed", "A3"]
