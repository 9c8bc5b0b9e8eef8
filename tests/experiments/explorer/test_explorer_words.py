"""Text, addresses and alignment errors of the page: as Python has them."""

import hypothesis
import numpy as np
import pages
import pytest
from hypothesis import strategies as st

from experiments.tasks import grammar
from experiments.text import pairs
from experiments.text.tokenizers import Characters
from experiments.translation.metrics import AlignedAttention, alignment_error_rate

pytestmark = pages.needs_node

TEXTS = [
  *(
    "L'albero non c'è: 3.5 T-shirts!",
    "Perche\u0301 İstanbul ΣΑΣ",
    'he said "no" („so“) and "yes"',
    "a_b-c 1,000.5:3",
  ),
  *(
    "don't 'quote' \u2019s l\u2019amico",
    "一二三 ③ ½ x² नमस्ते",
    "🦓 👩‍🚀 ǰ J\u030c",
    "a\u2028b\x85c\x1cd\ufeffe\u00a0f",
    "",
    "  ",
  ),
]
WORDS = """
const { tokenize, join } = await load("words");
return given.texts.map((text) => {
  const tokens = tokenize(given.language, text);
  return { tokens, text: join(given.language, tokens) };
});
"""


def language(unit="word", joins="text", lowercase=True):
  return {"unit": unit, "joins": joins, "lowercase": lowercase, "words": []}


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_are_cut_and_joined_as_in_python(lowercase):
  found = pages.in_node(WORDS, {"language": language(lowercase=lowercase), "texts": TEXTS})
  for text, one in zip(TEXTS, found, strict=True):
    tokens = pairs.tokenize(text, lowercase=lowercase)
    assert tuple(one["tokens"]) == tokens, text
    assert one["text"] == pairs.detokenize(tokens)


def test_any_text_is_cut_as_in_python():
  rng = np.random.default_rng(0)
  alphabet = "ab1_-.,:'\u2019\u0301 \t\u00a0\x1c„“\"(é日½"
  texts = ["".join(rng.choice([*alphabet], 30)) for _ in range(500)]
  found = pages.in_node(WORDS, {"language": language(), "texts": texts})
  assert [tuple(one["tokens"]) for one in found] == [pairs.tokenize(text) for text in texts]
  assert [one["text"] for one in found] == [pairs.detokenize(pairs.tokenize(text)) for text in texts]


def test_characters_and_elisions_are_as_in_python():
  texts = ["è  lì", " a\tb "]
  found = pages.in_node(WORDS, {"language": language("character", "characters"), "texts": texts})
  assert [tuple(one["tokens"]) for one in found] == [Characters().tokenize(text) for text in texts]
  assert [one["text"] for one in found] == ["è lì", "a b"]
  (found,) = pages.in_node(WORDS, {"language": language(joins="elisions"), "texts": ["l'amico vede un'oca"]})
  assert found["text"] == grammar.join(found["tokens"]) == "l'amico vede un'oca"


@hypothesis.given(
  st.fixed_dictionaries(
    {},
    optional={
      "text": st.text(st.characters(codec="utf-8")),
      "run": st.integers(0, 9),
      "beside": st.integers(0, 9),
      "step": st.integers(0, 10**6),
      "beam": st.integers(1, 10),
      "temperature": st.sampled_from([0.1, 1.5, 2]),
      "masked": st.lists(st.integers(0, 99), min_size=1),
      "words": st.dictionaries(
        st.integers(0, 99).map(str), st.text(st.characters(codec="utf-8"), min_size=1), min_size=1
      ),
      "rows": st.dictionaries(
        st.integers(0, 99).map(str), st.one_of(st.just("flat"), st.integers(0, 99)), min_size=1
      ),
      "view": st.just("arcs"),
      "shown": st.integers(0, 99),
      "cell": st.lists(st.integers(0, 99), min_size=2, max_size=2),
      "side": st.just("encoder"),
      "layer": st.integers(0, 9),
    },
  )
)
def test_an_address_leads_back_to_the_state_that_it_was_made_of(state):
  program = """
const { DEFAULTS, fromAddress, toAddress } = await load("address");
return { usual: DEFAULTS, found: fromAddress(`#${toAddress({ ...DEFAULTS, ...given })}`) };
"""
  found = pages.in_node(program, state)
  assert found["found"] == {**found["usual"], **state}


def test_nonsense_in_an_address_is_passed_over():
  program = "const { DEFAULTS, fromAddress } = await load('address'); return [DEFAULTS, fromAddress(given)];"
  address = (
    "#beam=99&run=-1&cell=3&masked=a,b&words=x:y&rows=1:wide&view=cube&nothing=1&temperature=&step=1.5"
  )
  address += "&toString=1"
  usual, found = pages.in_node(program, address)
  assert found == usual


def test_the_alignment_error_is_that_of_the_metrics():
  rng, given = np.random.default_rng(0), []
  for _ in range(50):
    T, S = rng.integers(2, 9, 2)
    links = rng.random((T - 1, S - 1)) < 0.3
    links[0, 0] = True
    weights = rng.random((T, S)) * (rng.random((T, 1)) < 0.8)
    given.append({"weights": weights.tolist(), "links": np.argwhere(links).tolist()})
  program = """
const { alignmentErrorRate } = await load("alignment");
return given.map(({ weights, links }) => alignmentErrorRate(weights, links));
"""
  found = pages.in_node(program, given)
  expected = [
    alignment_error_rate(
      [AlignedAttention(np.array(each["weights"]), {tuple(link) for link in each["links"]})]
    )
    for each in given
  ]
  np.testing.assert_allclose(found, expected, atol=1e-12)


def test_where_there_is_no_link_there_is_no_error():
  program = (
    "const { alignmentErrorRate } = await load('alignment'); return alignmentErrorRate([[0, 0], [1, 0]], []);"
  )
  assert pages.in_node(program) is None
