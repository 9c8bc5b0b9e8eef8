"""The page while a user reads it: what stays where it is, what is in sight, what Back undoes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import browser
from test_explorer_live import make

from experiments.explorer import recorded
from experiments.explorer.bundle import page
from experiments.explorer.live import live_model
from experiments.tasks import Example
from experiments.text.parallel_corpus import SentencePair
from experiments.translation.metrics import AlignedAttention, alignment_error_rate
from experiments.translation.restore import KeptCheckpoints
from experiments.translation.translator import Heads, Translation

pytestmark = browser.needs_chromium

SOURCE = "the red cat does not see the apples and the old dogs sleep near my house"
TARGET = "il gatto rosso non vede le mele e i vecchi cani dormono vicino a casa mia"
LINKS = frozenset({(0, 0), (1, 2), (2, 1), (2, 2), (3, 4), (4, 5), (6, 7), (15, 14)})
MINUS = "\N{MINUS SIGN}"
PHONES = 360, 390, 430
TRUE = "&words=" + ",".join(f"{t}:{word}" for t, word in enumerate([*TARGET.split(), "</s>"]))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
  """Gives the file of a page with one run, whose only example is a sentence with its true links."""
  config, translator = make("additive")
  example = Example((), (), LINKS, SOURCE, TARGET)
  live = live_model(config, translator, KeptCheckpoints({7: translator.params}, 7), {"mine": [example]})
  path = tmp_path_factory.mktemp("page") / "explore.html"
  path.write_text(page({"runs": [{"name": "one", "summary": "of chance", **live}]}), "utf-8")
  return path


@pytest.fixture(scope="module")
def expected():
  """Gives the log-probabilities of the words of the true translation, and its attention, by JAX."""
  _, translator = make("additive")
  task = translator.task
  ids = np.array([*task.target.vocabulary.encode(TARGET.split()), 2])
  sources = jnp.array([[*task.source.vocabulary.encode(SOURCE.split()), 2]], jnp.int32)
  arguments = sources, jnp.array([sources.shape[1]]), jnp.array([[1, *ids[:-1]]], jnp.int32)
  with jax.numpy_rank_promotion("allow"):
    logits, weights = jax.jit(translator.model.apply)({"params": translator.params}, *arguments)
  logits = logits[0].at[:, :2].set(-jnp.inf)
  return np.asarray(jax.nn.log_softmax(logits))[np.arange(len(ids)), ids], np.asarray(weights[0])


@pytest.fixture
def path_of(tmp_path):
  """Gives a function that returns the file of a page with runs of recorded weights [T S] of some tokens."""

  def write(*runs):
    path = tmp_path / "recorded.html"
    path.write_text(page({"runs": [_recorded(*run) for run in runs]}), "utf-8")
    return path

  return write


def _recorded(weights, sources, targets, links=()):
  pair = SentencePair(" ".join(sources), " ".join(targets), frozenset(links))
  translation = Translation(pair.target, tuple(targets), 0.0, None)
  heads = Heads(tuple(sources), tuple(targets), None, np.asarray(weights, np.float32)[None, None])
  sentence = recorded._sentence(pair, translation, heads)
  return {"name": "mine", "summary": "", "why": "it is a test", "sentences": [sentence]}


def _boxes(shown, selector=".word, th, td, p, svg text, button, h2"):
  program = """selector => [...document.querySelectorAll(selector)].map((each) => {
    const { x, y, width, height } = each.getBoundingClientRect();
    return [x, y, width, height];
  }).filter(([, , width]) => width)"""
  return shown.evaluate(program, selector)


def _moved(before, after):
  """Returns by how much elements have moved against the first one, or grown."""
  before, after = (np.array(boxes) - [*boxes[0][:2], 0, 0] for boxes in (before, after))
  return {*np.abs(before - after).round(3).ravel().tolist()}


@pytest.mark.exhaustive
def test_pointing_at_words_moves_nothing(path):
  for view in ("map", "arcs"):
    with browser.in_chromium(path, f"#view={view}", height=844) as shown:
      for width in PHONES:
        shown.set_viewport_size({"width": width, "height": 844})
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


def test_hiding_words_moves_no_other(path):
  with browser.in_chromium(path) as shown:
    for width in PHONES:
      shown.set_viewport_size({"width": width, "height": 900})
      before = _boxes(shown, ".sources .word")
      word = shown.locator(".sources .word").nth(2)
      for is_hidden in (1, 0):
        word.click()
        assert shown.locator(".sources [aria-pressed='true']").count() == is_hidden
        assert _moved(before, _boxes(shown, ".sources .word")) == {0.0}


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
@pytest.mark.exhaustive
def test_open_steps_are_in_sight(path, width, height):
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


def test_nothing_stays_behind_open_steps(path):
  with browser.in_chromium(path, "#cell=1,1", width=390, height=844) as shown:
    shown.evaluate("window.scrollTo(0, 1e6)")
    last, panel = (shown.locator(each).bounding_box() for each in ("footer p", ".panels"))
    assert last["y"] + last["height"] <= panel["y"]


def test_first_steps_are_told_alone(path, expected):
  logs, weights = expected
  weights = np.vstack([weights[:5], np.zeros_like(weights[:1])])
  rate = alignment_error_rate([AlignedAttention(weights, {link for link in LINKS if link[0] < 5})])
  assert rate < 1  # a strongest weight is on a link
  told = f"log-probability {MINUS}{-logs[:5].sum():.3f}, of the 5 steps shown"
  with browser.in_chromium(path, f"#shown=5{TRUE}") as shown:
    facts = shown.inner_text(".facts >> nth=0")
    assert facts == f"{told} · longer than any sentence in training, 14 tokens"
    assert f"The true translation begins so. Alignment error {rate:.2f}" in shown.inner_text(".truth")
    text = " ".join(TARGET.split()[:5]) + " …"
    assert shown.inner_text("#said") == shown.inner_text("article .text") == text
    cells = [each.get_attribute("data-cell") for each in shown.locator("td.true").all()]
    assert cells == [f"{t},{s}" for t, s in sorted(LINKS) if t < 5]
    shown.click("#all")
    assert "This is the true translation" in shown.inner_text(".truth")
    assert "shown" not in shown.inner_text(".facts >> nth=0")
    shown.click("#fewer")
    assert "of the 16 steps shown" in shown.inner_text(".facts >> nth=0")
    shown.evaluate("location.hash = 'shown=0'")
    shown.wait_for_function("document.querySelectorAll('.targets .word').length === 0")
    assert "true" not in shown.inner_text("article")


def test_arcs_are_weights_and_stay(path, expected):
  _, weights = expected
  program = "all => all.map((each) => [each.dataset.cell, each.getAttribute('d')])"
  with browser.in_chromium(path, f"#view=arcs{TRUE}") as shown:
    arcs = shown.locator("path.arc")
    widths = dict(
      arcs.evaluate_all("all => all.map((e) => [e.dataset.cell, e.getAttribute('stroke-width')])")
    )
    cells = {cell: tuple(map(int, cell.split(","))) for cell in widths}
    assert {*cells.values()} == {*map(tuple, np.argwhere(weights >= 0.03).tolist())} | LINKS
    for cell, width in widths.items():
      assert float(width) == pytest.approx(0.5 + 7 * weights[cells[cell]], abs=0.01)
    # True links are in front of all arcs, which are clicked through them.
    kinds = shown.locator("svg.arcs path").evaluate_all("all => all.map((each) => each.classList[0])")
    first = kinds.index("paper")
    assert {*kinds[:first]} == {"arc"} and kinds[first:] == ["paper", "true"] * len(LINKS)
    assert shown.evaluate("getComputedStyle(document.querySelector('path.true')).pointerEvents") == "none"
    lines = dict(arcs.evaluate_all(program))
    for count in (1, 4):
      shown.evaluate("hash => { location.hash = hash; }", f"view=arcs&shown={count}{TRUE}")
      shown.wait_for_function("n => document.querySelectorAll('.targets .word').length === n", arg=count)
      first_lines = {cell: line for cell, line in lines.items() if cells[cell][0] < count}
      assert dict(arcs.evaluate_all(program)) == first_lines


@pytest.mark.exhaustive
def test_steps_move_nothing_below_words(path):
  for width in (390, 1400):
    for words in ("", TRUE):
      with browser.in_chromium(path, f"#view=arcs&shown=1{words}", width=width) as shown:
        places = []
        for _ in range(10):
          places.append(shown.locator("svg.arcs").bounding_box() | {"width": 0})
          shown.click("#more")
        assert shown.locator(".targets .word").count() == 11
        assert all(place == places[0] for place in places), places


def test_back_undoes_the_last_change(path):
  with browser.in_chromium(path) as shown:

    def goes(direction, text, results):
      direction()
      shown.wait_for_function("text => document.getElementById('text').value === text", arg=text)
      shown.wait_for_function("text => document.getElementById('results').innerText === text", arg=results)

    first = shown.inner_text("#results")
    shown.locator(".sources .word").nth(2).click()
    hidden = shown.inner_text("#results")
    shown.click("#text")
    shown.keyboard.press("Control+A")
    shown.keyboard.type("a big dog", delay=20)
    typed = shown.inner_text("#results")
    assert shown.inner_text("#changes") == ""  # another sentence has all its words
    shown.check("input[value=arcs]")
    goes(shown.go_back, "a big dog", typed)
    assert shown.is_checked("input[value=map]")
    goes(shown.go_back, SOURCE, hidden)  # a text that was typed is one change
    goes(shown.go_back, SOURCE, first)
    goes(shown.go_forward, SOURCE, hidden)


def test_arrow_keys_walk_the_map(path):
  with browser.in_chromium(path, width=360, height=844) as shown:

    def walk(*keys):
      for key in keys:
        shown.keyboard.press(key)
      return shown.evaluate("document.activeElement.dataset.cell")

    assert "from a weight of 0.005 on" in shown.inner_text("article .facts >> nth=-1")
    shown.click("td[data-cell='0,0']")
    assert walk("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft", "ArrowUp") == "0,1"
    assert shown.locator("[aria-selected='true']").get_attribute("data-cell") == "0,1"
    # A walk is one change.
    shown.wait_for_function("location.hash.includes('cell=0%2C1')")
    shown.go_back()
    shown.wait_for_function("document.querySelector('[aria-selected=true]').dataset.cell === '0,0'")
    shown.go_back()
    shown.wait_for_function("!document.querySelector('.stage')")
    shown.focus("td[data-cell='0,0']")
    assert walk("End") == "0,16"
    for s in range(16, 4, -1):
      # The cell is scrolled to, and not behind the words.
      cell, word = (
        shown.locator(each).bounding_box() for each in (f"td[data-cell='0,{s}']", "tbody th >> nth=0")
      )
      assert word["x"] + word["width"] <= cell["x"] and cell["x"] + cell["width"] <= 360
      assert walk("ArrowLeft") == f"0,{s - 1}"
    walk("Escape")
    assert shown.locator(".stage").count() == 0


def test_hidden_sentences_are_told_once(path):
  masked = ",".join(map(str, range(16)))
  with browser.in_chromium(path, f"#masked={masked}") as shown:
    for told in ("only the end is left", "all weights are 0"):
      facts = shown.inner_text(".facts >> nth=0")
      assert "all source words are hidden" in facts and told in facts
      assert "the encoder has read them" not in facts
      shown.locator(".sources .word").last.click()


def test_large_maps_have_words_beside(path_of):
  sixty, many = ([f"w{i}" for i in range(count)] for count in (60, 399))
  weights = np.random.default_rng(0).dirichlet(np.ones(61), 61)
  path = path_of((weights, sixty, sixty), (np.full((400, 400), 1 / 400), many, many))
  texts_of = "all => all.map((each) => each.firstChild.data)"
  with browser.in_chromium(path, "#run=0", width=1280) as shown:
    for side in ("above", "beside"):
      assert shown.locator(f"svg.{side} text").evaluate_all(texts_of) == [*sixty, "</s>"]
    assert "no numbers" in shown.inner_text("article .facts >> nth=-1")
    cells, label = (shown.locator(each).bounding_box() for each in ("canvas", "svg.beside text >> nth=30"))
    middle = label["y"] + label["height"] / 2
    assert abs(middle - (cells["y"] + 1 + 30.5 * 16)) < 4  # beside its row
    shown.select_option("#run", "1")
    shown.wait_for_function("document.querySelector('canvas').width === 800")
    assert shown.locator("svg.above text").evaluate_all(texts_of) == [*many, "</s>"][::7]
    assert "One word in 7" in shown.inner_text("article .facts >> nth=-1")


def test_signed_weights_and_long_words(path_of):
  weights = np.array([[2.5, -1.25, 0.0], [0.5, 0.25, 0.004]])
  word = "a" * 100_000
  path = path_of((weights, ["a", "b"], ["c"], {(0, 0)}), (np.full((2, 3), 1 / 3), ["the", word], [word]))
  with browser.in_chromium(path, "#run=0") as shown:
    cells = shown.locator("td[data-cell]")
    assert cells.all_inner_texts() == ["2.50", f"{MINUS}1.25", "", ".50", ".25", ""]
    drawn = [float(each.get_attribute("style").split()[1]) for each in cells.all()]
    np.testing.assert_allclose(drawn, np.abs(weights.ravel()) / 2.5, atol=1e-3)
    below = [each.get_attribute("data-cell") for each in shown.locator("td.below").all()]
    assert below == ["0,1"]
    assert f"Weights from {MINUS}1.25 to 2.5, not in [0, 1]" in shown.inner_text("article")
    shown.check("input[value=arcs]")
    assert [each.get_attribute("data-cell") for each in shown.locator("path.below").all()] == ["0,1"]
    shown.evaluate("location.hash = 'run=1'")
    shown.locator("thead th").nth(2).wait_for()
    assert shown.locator("thead th").all_inner_texts() == ["the", "a" * 39 + "…", "</s>"]
    assert shown.locator("table").bounding_box()["width"] < 800


@pytest.mark.exhaustive
def test_a_thousand_tokens_are_drawn(tmp_path):
  rng = np.random.default_rng(0)
  tokens = [f"w{i}" for i in range(1000)]
  weights = rng.random((2, 2, 1001, 1001), np.float32)
  sentence = recorded._sentence(
    SentencePair(" ".join(tokens), ""), Translation("t", (), 0.0, None), Heads(tokens, tokens, None, weights)
  )
  path = tmp_path / "long.html"
  runs = [{"name": "long", "summary": "of chance", "why": "it is long", "sentences": [sentence]}]
  path.write_text(page({"runs": runs}), "utf-8")
  with browser.in_chromium(path, "#layer=1&head=0") as shown:
    shown.focus("canvas")
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowDown")
    told = shown.inner_text(".told")
    assert shown.inner_text("#about").startswith("What trained translators looked at")
    assert told == f"2. w1 looks at 2. w1: {weights[1, 0, 1, 1]:.4f}"
    shown.select_option("#layer", "0")
    shown.wait_for_function("told => document.querySelector('.told').textContent !== told", arg=told)
