"""Words, addresses and alignment errors of the page: as Python has them."""

import hypothesis
import numpy as np
import pytest
from helpers import browser
from hypothesis import strategies as st

from experiments.tasks import grammar
from experiments.tasks.toy_translation import ItalianWords
from experiments.text import words
from experiments.translation.metrics import AlignedAttention, alignment_error_rate

pytestmark = browser.needs_node


def test_elisions_are_as_in_python():
  program = """
const { tokenize, join } = await load("tokenizer");
return [tokenize(given, "L'amico vede un'oca"), join(given, ["l'", "amico"])];
"""
  language = {"unit": "word", "joins": "elisions", "lowercase": True, "words": []}
  language |= {"pattern": words.PATTERN, "classes": words.ranges()}
  tokens, text = browser.in_node(program, language)
  assert tokens == ["l'", "amico", "vede", "un'", "oca"] == [*ItalianWords().tokenize("l'amico vede un'oca")]
  assert text == "l'amico" == grammar.join(["l'", "amico"])


def test_both_spellings_of_a_word_have_one_id():
  program = (
    "const { idsOf } = await load('tokenizer'); return idsOf(given, ['e\\u0301', '\\xe9', '<unk>', 'x']);"
  )
  assert browser.in_node(program, {"words": ["\xe9"]}) == [4, 4, 3, 3]


def test_invisible_characters_are_shown_and_a_text_of_them_is_blank():
  program = (
    "const { isBlank, visible } = await load('tokenizer'); return given.map((t) => [isBlank(t), visible(t)]);"
  )
  found = browser.in_node(program, ["\u200b \u200d\ufeff", "a\u200b", ""])
  assert found == [[True, "\\u{200b} \\u{200d}\\u{feff}"], [False, "a\\u{200b}"], [True, ""]]


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
@pytest.mark.exhaustive
def test_an_address_leads_back_to_the_state_that_it_was_made_of(state):
  program = """
const { DEFAULTS, fromAddress, toAddress } = await load("url_state");
return { usual: DEFAULTS, found: fromAddress(`#${toAddress({ ...DEFAULTS, ...given })}`) };
"""
  found = browser.in_node(program, state)
  assert found["found"] == {**found["usual"], **state}


def test_nonsense_in_an_address_is_passed_over():
  program = (
    "const { DEFAULTS, fromAddress } = await load('url_state'); return [DEFAULTS, fromAddress(given)];"
  )
  address = (
    "#beam=99&run=-1&cell=3&masked=a,b&words=x:y&rows=1:wide&view=cube&nothing=1&temperature=&step=1.5"
  )
  address += "&toString=1"
  usual, found = browser.in_node(program, address)
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
const { alignmentErrorRate } = await load("metrics");
return given.map(({ weights, links }) => alignmentErrorRate(weights, links));
"""
  found = browser.in_node(program, given)
  expected = [
    alignment_error_rate(
      [AlignedAttention(np.array(each["weights"]), {tuple(link) for link in each["links"]})]
    )
    for each in given
  ]
  np.testing.assert_allclose(found, expected, atol=1e-12)


def test_where_there_is_no_link_there_is_no_error():
  program = (
    "const { alignmentErrorRate } = await load('metrics'); return alignmentErrorRate([[0, 0], [1, 0]], []);"
  )
  assert browser.in_node(program) is None
