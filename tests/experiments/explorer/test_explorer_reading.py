"""The page while a person reads it: what stays where it is, what is in sight, what Back undoes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import browser
from test_explorer_live import make

from experiments.explorer import recorded
from experiments.explorer.live import live_model
from experiments.explorer.page import page
from experiments.tasks import Example
from experiments.text.pairs import SentencePair
from experiments.translation.loading import Kept
from experiments.translation.metrics import AlignedAttention, alignment_error_rate
from experiments.translation.translator import Heads, Translation

pytestmark = browser.needs_chromium

SOURCE = "the red cat does not see the apples and the old dogs sleep near my house"
TARGET = "il gatto rosso non vede le mele e i vecchi cani dormono vicino a casa mia"
LINKS = frozenset({(0, 0), (1, 2), (2, 1), (3, 4), (4, 5), (6, 7), (15, 14)})
MINUS = "\N{MINUS SIGN}"
PHONES = 360, 390, 430
TRUE = "&words=" + ",".join(f"{t}:{word}" for t, word in enumerate([*TARGET.split(), "</s>"]))


@pytest.fixture(scope="module")
def run():
  return make("additive")


@pytest.fixture(scope="module")
def path(run, tmp_path_factory):
  """Gives the file of a page with one run, whose only example is a sentence with its true links."""
  config, translator = run
  example = Example((), (), LINKS, SOURCE, TARGET)
  live = live_model(config, translator, Kept({7: translator.params}, 7), {"mine": [example]})
  path = tmp_path_factory.mktemp("page") / "explore.html"
  path.write_text(page({"runs": [{"name": "one", "summary": "of chance", **live}]}), "utf-8")
  return path


@pytest.fixture
def path_of(tmp_path):
  """Gives a function that returns the file of a page with recorded weights [L N T S] of some tokens."""

  def write(weights, sources, targets, links=()):
    pair = SentencePair(" ".join(sources), " ".join(targets), frozenset(links))
    found = Translation(pair.target, tuple(targets), 0.0, None)
    sentence = recorded._sentence(pair, found, Heads(tuple(sources), tuple(targets), None, weights))
    path = tmp_path / "recorded.html"
    runs = [{"name": "mine", "summary": "", "why": "it is a test", "sentences": [sentence]}]
    path.write_text(page({"runs": runs}), "utf-8")
    return path

  return write


def _boxes(shown, selector=".word, th, td, p, svg text, button, h2"):
  program = """selector => [...document.querySelectorAll(selector)].map((each) => {
    const { x, y, width, height } = each.getBoundingClientRect();
    return [x, y, width, height];
  }).filter(([, , width]) => width)"""
  return shown.evaluate(program, selector)


@pytest.mark.parametrize("width", PHONES)
@pytest.mark.parametrize("view", ["map", "arcs"])
@pytest.mark.exhaustive
def test_pointing_at_a_word_moves_nothing(path, width, view):
  with browser.in_chromium(path, f"#view={view}", width=width, height=844) as shown:
    before = _boxes(shown)
    words = shown.locator(".word").all()
    assert len(before) > 60 and len(words) > 30
    for word in words[::3]:
      word.hover()
      assert shown.locator(".word.lit").count() > 0
      # Where it is scrolled to may be another place.
      assert _moved(before, _boxes(shown)) == {0.0}
    words[5].focus()
    assert _moved(before, _boxes(shown)) == {0.0}


def _moved(before, after):
  """Returns by how much elements have moved against the first one, or grown."""
  before, after = (np.array(boxes) - [*boxes[0][:2], 0, 0] for boxes in (before, after))
  return {*np.abs(before - after).round(3).ravel().tolist()}


@pytest.mark.parametrize("width", PHONES)
def test_hiding_a_source_word_moves_no_other(path, width):
  with browser.in_chromium(path, width=width) as shown:
    before = _boxes(shown, ".sources .word")
    shown.locator(".sources .word").nth(2).click()
    assert shown.locator(".sources [aria-pressed='true']").count() == 1
    assert _moved(before, _boxes(shown, ".sources .word")) == {0.0}


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
@pytest.mark.exhaustive
def test_an_open_step_is_in_sight(path, width, height):
  with browser.in_chromium(path, width=width, height=height) as shown:
    for selector in (".targets .word >> nth=-1", "td[data-cell='9,1']", "td[data-cell='0,0']"):
      shown.click(selector)
      panel, chosen = (shown.locator(each).bounding_box() for each in (".panels", selector))
      assert panel["y"] >= 0 and panel["y"] + panel["height"] <= height
      assert chosen["y"] >= 0 and chosen["y"] + chosen["height"] <= panel["y"]
      for part in ("h3", ".choices >> nth=0", ".choices >> nth=1", ".stages li >> nth=0"):
        box = shown.locator(f".stage {part}").bounding_box()
        assert panel["y"] <= box["y"] and box["y"] + box["height"] <= height, part
    if width == 1400:
      assert shown.locator(".panels").evaluate("(panels) => panels.scrollHeight <= panels.clientHeight")
    address = shown.evaluate("location.hash")
  with browser.in_chromium(path, address, width=width, height=height) as shown:
    box = shown.locator(".stage h3").bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= height


def test_everything_can_be_scrolled_out_from_behind_an_open_step(path):
  with browser.in_chromium(path, "#cell=1,1", width=390, height=844) as shown:
    shown.evaluate("window.scrollTo(0, 1e6)")
    last, panel = (shown.locator(each).bounding_box() for each in ("footer p", ".panels"))
    assert last["y"] + last["height"] <= panel["y"]


def _log_probabilities(translator, source, words):
  """Returns the log-probability of each word, as JAX computes it."""
  task = translator.task
  ids = np.array(task.target.vocabulary.encode(words))
  inputs = jnp.array([[1, *ids[:-1]]], jnp.int32)
  sources = jnp.array([[*task.source.vocabulary.encode(source.split()), 2]], jnp.int32)
  with jax.numpy_rank_promotion("allow"):
    arguments = sources, jnp.array([sources.shape[1]]), inputs
    logits, weights = translator.model.apply({"params": translator.params}, *arguments)
  logits = logits[0].at[:, :2].set(-jnp.inf)
  return np.asarray(jax.nn.log_softmax(logits))[np.arange(len(ids)), ids], np.asarray(weights[0])


def test_what_is_told_of_first_steps_is_of_these_alone(path, run):
  words = TARGET.split()[:5]
  logs, weights = _log_probabilities(run[1], SOURCE, words)
  rows = np.vstack([weights, np.zeros_like(weights[:1])])
  rate = alignment_error_rate([AlignedAttention(rows, {link for link in LINKS if link[0] < 5})])
  with browser.in_chromium(path, f"#shown=5{TRUE}") as shown:
    assert shown.inner_text(".facts >> nth=0") == _told(logs.sum(), 5)
    assert f"The true translation begins so. Alignment error {rate:.2f}" in shown.inner_text(".truth")
    assert shown.inner_text("#said") == shown.inner_text("article .text") == " ".join(words) + " …"
    cells = [each.get_attribute("data-cell") for each in shown.locator("td.true").all()]
    assert cells == [f"{t},{s}" for t, s in sorted(LINKS) if t < 5]
    shown.click("#all")
    assert "This is the true translation" in shown.inner_text(".truth")
    assert "shown" not in shown.inner_text(".facts >> nth=0")
    shown.evaluate("location.hash = 'shown=0'")
    shown.wait_for_function("document.querySelectorAll('.targets .word').length === 0")
    assert "true" not in shown.inner_text("article")


def _told(number, count):
  longer = "longer than any sentence in training, 14 tokens"
  return f"log-probability {MINUS}{-number:.3f}, of the {count} steps shown · {longer}"


def test_of_first_steps_with_beams_only_the_tree_is_shown(path):
  with browser.in_chromium(path, "#beam=3&shown=2") as shown:
    assert shown.locator(".beams li").count() == 0
    assert 2 <= shown.locator(".beams svg text").count() <= 6
    assert "of the 2 steps shown" in shown.inner_text(".facts >> nth=0")
    shown.click("#all")
    assert shown.locator(".beams li").count() > 0


def test_arcs_stay_where_they_are_from_step_to_step(path):
  program = "all => all.map((each) => [each.dataset.cell, each.getAttribute('d')])"
  with browser.in_chromium(path, f"#view=arcs{TRUE}") as shown:
    all_arcs = dict(shown.locator("path.arc").evaluate_all(program))
    for count in (1, 4):
      shown.evaluate("hash => { location.hash = hash; }", f"view=arcs&shown={count}{TRUE}")
      shown.wait_for_function("n => document.querySelectorAll('.targets .word').length === n", arg=count)
      arcs = dict(shown.locator("path.arc").evaluate_all(program))
      assert arcs == {cell: line for cell, line in all_arcs.items() if int(cell.split(",")[0]) < count}


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("words", ["", TRUE])
@pytest.mark.exhaustive
def test_a_step_moves_nothing_below_the_words(path, width, words):
  with browser.in_chromium(path, f"#view=arcs&shown=1{words}", width=width) as shown:
    places = []
    for _ in range(10):
      places.append(shown.locator("svg.arcs").bounding_box() | {"width": 0})
      shown.click("#more")
    assert shown.locator(".targets .word").count() == 11
    assert all(place == places[0] for place in places), places


def test_true_links_are_in_front_of_all_arcs(path):
  program = "() => [...document.querySelectorAll('svg.arcs path')].map((each) => each.getAttribute('class'))"
  with browser.in_chromium(path, f"#view=arcs{TRUE}") as shown:
    kinds = [kind.split()[0] for kind in shown.evaluate(program)]
    first = kinds.index("paper")
    assert {*kinds[:first]} == {"arc"} and kinds[first:] == ["paper", "true"] * len(LINKS)
    # An arc is clicked through the true link on it.
    assert shown.evaluate("getComputedStyle(document.querySelector('path.true')).pointerEvents") == "none"


def test_back_undoes_the_last_change(path):
  with browser.in_chromium(path) as shown:

    def back():
      shown.go_back()
      shown.wait_for_timeout(300)

    first = shown.inner_text("#results")
    shown.locator(".sources .word").nth(2).click()
    hidden = shown.inner_text("#results")
    shown.click("#text")
    shown.keyboard.press("Control+A")
    shown.keyboard.type("a big dog", delay=20)
    shown.check("input[value=arcs]")
    shown.wait_for_timeout(300)
    back()
    assert shown.is_checked("input[value=map]") and shown.input_value("#text") == "a big dog"
    back()  # a text that was typed is one change
    assert shown.input_value("#text") == SOURCE and shown.inner_text("#results") == hidden
    back()
    assert shown.inner_text("#results") == first
    shown.go_forward()
    shown.wait_for_timeout(300)
    assert shown.inner_text("#results") == hidden


def test_a_walk_over_the_map_is_one_change(path):
  with browser.in_chromium(path) as shown:
    shown.click("td[data-cell='0,0']")
    for key in ("ArrowDown", "ArrowRight", "ArrowDown"):
      shown.keyboard.press(key)
    shown.wait_for_function("location.hash.includes('cell=2%2C1')")
    shown.go_back()
    shown.wait_for_function("document.querySelector('[aria-selected=true]').dataset.cell === '0,0'")
    shown.go_back()
    shown.wait_for_function("!document.querySelector('.stage')")


def test_a_cell_that_is_walked_to_is_not_behind_the_words(path):
  with browser.in_chromium(path, width=360, height=844) as shown:
    shown.focus("td[data-cell='0,0']")
    shown.keyboard.press("End")
    for s in range(15, 4, -1):
      shown.keyboard.press("ArrowLeft")
      cell, word = (
        shown.locator(each).bounding_box() for each in (f"td[data-cell='0,{s}']", "tbody th >> nth=0")
      )
      assert word["x"] + word["width"] <= cell["x"] and cell["x"] + cell["width"] <= 360


@pytest.mark.parametrize(("end", "told"), [(",16", "all weights are 0"), ("", "only the end is left")])
def test_that_all_words_are_hidden_is_one_line(path, end, told):
  masked = ",".join(map(str, range(16))) + end
  with browser.in_chromium(path, f"#masked={masked}") as shown:
    facts = shown.inner_text(".facts >> nth=0")
    assert "all source words are hidden" in facts and told in facts
    assert "the encoder has read them" not in facts


def test_a_map_of_sixty_words_has_its_words(path_of):
  words = [f"w{i}" for i in range(60)]
  weights = np.random.default_rng(0).dirichlet(np.ones(61), (1, 1, 61)).astype(np.float32)
  with browser.in_chromium(path_of(weights, words, words), width=1280) as shown:
    for side in ("above", "beside"):
      texts = shown.locator(f"svg.{side} text")
      assert texts.evaluate_all("all => all.map((each) => each.firstChild.data)") == [*words, "</s>"]
    assert "no numbers" in shown.inner_text("article .facts >> nth=-1")
    cells, label = (shown.locator(each).bounding_box() for each in ("canvas", "svg.beside text >> nth=30"))
    middle = label["y"] + label["height"] / 2
    assert abs(middle - (cells["y"] + 1 + 30.5 * 16)) < 4  # beside its row


def test_beside_small_cells_every_nth_word_is_written(path_of):
  words = [f"w{i}" for i in range(399)]
  weights = np.full((1, 1, 400, 400), 1 / 400, np.float32)
  with browser.in_chromium(path_of(weights, words, words)) as shown:
    texts = shown.locator("svg.above text").evaluate_all("all => all.map((each) => each.firstChild.data)")
    assert texts == [*words, "</s>"][::7]
    assert "One word in 7" in shown.inner_text("article .facts >> nth=-1")


def test_a_map_says_from_which_weight_on_numbers_are_shown(path):
  with browser.in_chromium(path) as shown:
    assert "from a weight of 0.005 on" in shown.inner_text("article .facts >> nth=-1")


def test_weights_that_are_no_shares_are_shown_as_they_are(path_of):
  weights = np.array([[[[2.5, -1.25, 0.0], [0.5, 0.25, 0.004]]]], np.float32)
  path = path_of(weights, ["a", "b"], ["c"], {(0, 0)})
  with browser.in_chromium(path) as shown:
    cells = shown.locator("td[data-cell]")
    assert cells.all_inner_texts() == ["2.50", f"{MINUS}1.25", "", ".50", ".25", ""]
    drawn = [float(each.get_attribute("style").split()[1]) for each in cells.all()]
    np.testing.assert_allclose(drawn, np.abs(weights.ravel()) / 2.5, atol=1e-3)
    below = [each.get_attribute("data-cell") for each in shown.locator("td.below").all()]
    assert below == ["0,1"]
    assert f"Weights from {MINUS}1.25 to 2.5, not in [0, 1]" in shown.inner_text("article")
    shown.check("input[value=arcs]")
    assert [each.get_attribute("data-cell") for each in shown.locator("path.below").all()] == ["0,1"]


@pytest.mark.parametrize(
  ("low", "high", "is_told"), [(0, 1, False), (-1e-6, 1 + 1e-6, False), (-0.5, 0.5, True), (0, 300, True)]
)
def test_recorded_weights_come_back(low, high, is_told):
  weights = np.random.default_rng(0).uniform(low, high, (1, 2, 3, 5)).astype(np.float32)
  weights[0, 0, 0, :2] = low, high
  program = """
const { unpackWeights } = await load("decode_arrays");
const { strengthsOf, toldRange } = await load("strengths");
const numbers = await unpackWeights(given);
return { numbers: [...numbers], told: toldRange([numbers]), strengths: [...strengthsOf([numbers])[0]] };
"""
  found = browser.in_node(program, json.loads(json.dumps(recorded._described(weights))))
  np.testing.assert_allclose(found["numbers"], weights.ravel(), atol=(high - low) / 65535)
  assert (found["told"] is not None) is is_told
  most = np.abs(weights).max() if is_told else 1
  np.testing.assert_allclose(found["strengths"], np.abs(weights.ravel()) / most, atol=1e-4)


def test_very_long_words_are_cut_short(path_of):
  word = "a" * 100_000
  weights = np.full((1, 1, 2, 3), 1 / 3, np.float32)
  with browser.in_chromium(path_of(weights, ["the", word], [word])) as shown:
    heads = shown.locator("thead th").all_inner_texts()
    assert heads == ["the", "a" * 39 + "…", "</s>"]
    assert shown.locator("table").bounding_box()["width"] < 800
