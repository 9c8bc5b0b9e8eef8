"""The page in use: layout, stepping, browser history and keyboard."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explorer_page import opened
from helpers import browser
from test_explorer_live import make

from experiments.data.parallel_corpus import SentencePair
from experiments.data.task import Example
from experiments.evaluation.metrics import AlignedAttention, alignment_error_rate
from experiments.explorer import recorded
from experiments.explorer.bundle import page
from experiments.explorer.live import live_model
from experiments.inference.translator import Heads, Translation
from experiments.runs.restore import KeptCheckpoints

pytestmark = browser.needs_chromium

SOURCE = "the red cat does not see the apples and the old dogs sleep near my house"
TARGET = "il gatto rosso non vede le mele e i vecchi cani dormono vicino a casa mia"
LINKS = frozenset({(0, 0), (1, 2), (2, 1), (2, 2), (3, 4), (4, 5), (6, 7), (15, 14)})
MINUS = "\N{MINUS SIGN}"
PHONES = 360, 390, 430
TRUE = "&forcedWords=" + ",".join(f"{t}:{word}" for t, word in enumerate([*TARGET.split(), "</s>"]))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
  """Returns the file of a page with one run, whose only example has a true alignment."""
  config, translator = make("additive")
  example = Example((), (), LINKS, SOURCE, TARGET)
  live = live_model(config, translator, KeptCheckpoints({7: translator.params}, 7), {"mine": [example]})
  path = tmp_path_factory.mktemp("page") / "explore.html"
  path.write_text(page({"runs": [{"name": "one", "summary": "of chance", **live}]}), "utf-8")
  return path


@pytest.fixture(scope="module")
def expected():
  """Returns the log-probabilities and the attention weights of the reference translation, from JAX."""
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
  """Returns a function that writes a page with recorded runs of weights [T S] and tokens."""

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


def _boxes(shown, selector="th, td, p, svg text, button, h2"):
  program = """selector => {
    for (const each of document.querySelectorAll(".scrolled")) each.scrollLeft = 0;
    return [...document.querySelectorAll(selector)].map((each) => {
      const { x, y, width, height } = each.getBoundingClientRect();
      return [x, y, width, height];
    }).filter(([, , width]) => width);
  }"""
  return shown.evaluate(program, selector)


def _moved(before, after):
  """Returns by how much elements have moved relative to the first one, or grown."""
  before, after = (np.array(boxes) - [*boxes[0][:2], 0, 0] for boxes in (before, after))
  return {*np.abs(before - after).round(3).ravel().tolist()}


@pytest.mark.exhaustive
def test_hovering_moves_nothing(path):
  for view in ("heatmap", "arcs"):
    with opened(path, f"#view={view}", height=844) as shown:
      for width in PHONES:
        shown.set_viewport_size({"width": width, "height": 844})
        before = _boxes(shown)
        words = shown.locator("[data-target], [data-source]").all()
        assert len(before) > 50 and len(words) > 30
        for word in words[::3]:
          word.hover()
          assert shown.locator(".highlighted").count() > 0
          assert _moved(before, _boxes(shown)) == {0.0}
        shown.focus("[data-source='3'] button, [data-source='3'][role]")
        assert _moved(before, _boxes(shown)) == {0.0}


def test_hiding_moves_no_words(path):
  with opened(path) as shown:
    for width in PHONES:
      shown.set_viewport_size({"width": width, "height": 900})
      before = _boxes(shown, "thead th")
      word = shown.locator("thead button").nth(2)
      for is_hidden in (1, 0):
        word.click()
        assert shown.locator("thead [aria-pressed='true']").count() == is_hidden
        assert _moved(before, _boxes(shown, "thead th")) == {0.0}


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (800, 600), (390, 844)])
@pytest.mark.exhaustive
def test_selected_steps_are_visible(path, width, height):
  with opened(path, width=width, height=height) as shown:
    for selector in ("tbody th button >> nth=-1", "td[data-cell='9,1']", "td[data-cell='0,0']"):
      shown.click(selector)
      panel, selected = (shown.locator(item).bounding_box() for item in (".panels", selector))
      assert panel["y"] >= -1 and panel["y"] + panel["height"] <= height
      assert selected["y"] >= 0 and selected["y"] + selected["height"] <= height
      # The panel is beside the map, or below the selected cell on a phone.
      assert selected["x"] + selected["width"] <= panel["x"] or (
        width == 390 and selected["y"] + selected["height"] <= panel["y"]
      )
      for part in ("h3", ".choices", ".candidates button >> nth=0"):
        box = shown.locator(f".step {part}").bounding_box()
        assert panel["y"] <= box["y"] and box["y"] + box["height"] <= height, part
    if width == 1400:
      assert shown.locator(".panels").evaluate("(panels) => panels.scrollHeight <= panels.clientHeight")
    address = shown.evaluate("location.hash")
  with opened(path, address, width=width, height=height) as shown:
    box = shown.locator(".step h3").bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= height


def test_panel_covers_nothing_at_the_end(path):
  with opened(path, "#cell=1,1", width=390, height=844) as shown:
    shown.evaluate("window.scrollTo(0, 1e6)")
    last, panel = (shown.locator(item).bounding_box() for item in ("article", ".panels"))
    assert last["y"] + last["height"] <= panel["y"]


def test_facts_are_those_of_the_first_steps(path, expected):
  logs, weights = expected
  weights = np.vstack([weights[:5], np.zeros_like(weights[:1])])
  rate = alignment_error_rate([AlignedAttention(weights, {link for link in LINKS if link[0] < 5})])
  assert rate < 1  # a strongest weight is on a link
  with opened(path, f"#numShown=5{TRUE}") as shown:
    facts = shown.inner_text(".facts")
    assert facts.startswith(f"Log-probability of the 5 steps shown {MINUS}{-logs[:5].sum():.3f} (")
    assert facts.endswith("%) · longer than all training sentences (at most 14 tokens)")
    assert "Starts like the reference translation." in shown.inner_text(".reference")
    assert f"Alignment error {rate:.2f}" in shown.inner_text(".reference")
    text = " ".join(TARGET.split()[:5]) + " …"
    assert shown.inner_text("#spoken") == shown.inner_text("article .text") == text
    cells = [item.get_attribute("data-cell") for item in shown.locator("td.true").all()]
    assert cells == [f"{t},{s}" for t, s in sorted(LINKS) if t < 5]
    shown.click("#all")
    assert "Matches the reference translation" in shown.inner_text(".reference")
    assert "shown" not in shown.inner_text(".facts")
    shown.click("#previous")
    assert "of the 16 steps shown" in shown.inner_text(".facts")
    shown.evaluate("location.hash = 'numShown=0'")
    shown.wait_for_function("document.querySelectorAll('[data-target]').length === 0")
    assert shown.inner_text(".reference") == ""


def test_arcs_are_weights_and_stay(path, expected):
  _, weights = expected
  program = "all => all.map((each) => [each.dataset.cell, each.getAttribute('d')])"
  with opened(path, f"#view=arcs{TRUE}") as shown:
    arcs = shown.locator("path.arc")
    widths = dict(
      arcs.evaluate_all("all => all.map((e) => [e.dataset.cell, e.getAttribute('stroke-width')])")
    )
    cells = {cell: tuple(map(int, cell.split(","))) for cell in widths}
    assert {*cells.values()} == {*map(tuple, np.argwhere(weights >= 0.03).tolist())} | LINKS
    for cell, width in widths.items():
      assert float(width) == pytest.approx(0.5 + 9 * weights[cells[cell]], abs=0.01)
    # The true alignment is drawn over the arcs, and clicks pass through it.
    kinds = shown.locator("svg.arcs path").evaluate_all("all => all.map((each) => each.classList[0])")
    first = kinds.index("background")
    assert {*kinds[:first]} == {"arc"} and kinds[first:] == ["background", "true"] * len(LINKS)
    assert shown.evaluate("getComputedStyle(document.querySelector('path.true')).pointerEvents") == "none"
    lines = dict(arcs.evaluate_all(program))
    for count in (1, 4):
      shown.evaluate("hash => { location.hash = hash; }", f"view=arcs&numShown={count}{TRUE}")
      shown.wait_for_function("n => document.querySelectorAll('[data-target]').length === n", arg=count)
      first_lines = {cell: line for cell, line in lines.items() if cells[cell][0] < count}
      assert dict(arcs.evaluate_all(program)) == first_lines


@pytest.mark.exhaustive
def test_steps_do_not_move_arcs(path):
  for width in (390, 1400):
    for words in ("", TRUE):
      with opened(path, f"#view=arcs&numShown=1{words}", width=width) as shown:
        places = []
        for _ in range(10):
          places.append(shown.locator("svg.arcs").bounding_box() | {"width": 0})
          shown.click("#next")
        assert shown.locator("[data-target]").count() == 11
        assert all(place == places[0] for place in places), places


def test_back_undoes_the_last_change(path):
  with opened(path) as shown:

    def goes(direction, text, results):
      direction()
      shown.wait_for_function("text => document.getElementById('text').value === text", arg=text)
      shown.wait_for_function("text => document.getElementById('results').innerText === text", arg=results)

    first = shown.inner_text("#results")
    shown.locator("thead button").nth(2).click()
    hidden = shown.inner_text("#results")
    shown.click("#text")
    shown.keyboard.press("Control+A")
    shown.keyboard.type("a big dog", delay=20)
    typed = shown.inner_text("#results")
    assert shown.inner_text("#changes") == ""  # no word of the new sentence is hidden
    shown.check("input[value=arcs]")
    goes(shown.go_back, "a big dog", typed)
    assert shown.is_checked("input[value=heatmap]")
    goes(shown.go_back, SOURCE, hidden)  # typing is one change
    goes(shown.go_back, SOURCE, first)
    goes(shown.go_forward, SOURCE, hidden)


def test_arrow_keys_move_in_the_map(path):
  with opened(path, width=360, height=844) as shown:

    def press(*keys):
      for key in keys:
        shown.keyboard.press(key)
      return shown.evaluate("document.activeElement.dataset.cell")

    shown.click("td[data-cell='0,0']")
    assert press("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft", "ArrowUp") == "0,1"
    assert shown.locator("[aria-selected='true']").get_attribute("data-cell") == "0,1"
    # Successive moves are one change.
    shown.wait_for_function("location.hash.includes('cell=0%2C1')")
    shown.go_back()
    shown.wait_for_function("document.querySelector('[aria-selected=true]').dataset.cell === '0,0'")
    shown.go_back()
    shown.wait_for_function("!document.querySelector('.step')")
    shown.focus("td[data-cell='0,0']")
    assert press("End") == "0,16"
    for s in range(16, 4, -1):
      # The cell is visible, not behind the row labels.
      cell, word = (
        shown.locator(item).bounding_box() for item in (f"td[data-cell='0,{s}']", "tbody th >> nth=0")
      )
      assert word["x"] + word["width"] <= cell["x"] and cell["x"] + cell["width"] <= 360
      assert press("ArrowLeft") == f"0,{s - 1}"
    press("Escape")
    assert shown.locator(".step").count() == 0


def test_hidden_sentences_are_explained(path):
  masked = ",".join(map(str, range(16)))
  with opened(path, f"#masked={masked}") as shown:
    for explanation in ("can only attend to </s>", "all weights are 0"):
      facts = shown.inner_text(".facts")
      assert "all source words are hidden" in facts and explanation in facts
      assert "the encoder has read them" not in facts
      shown.locator("thead button").last.click()


def test_large_maps_have_labels(path_of):
  sixty, many = ([f"w{i}" for i in range(count)] for count in (60, 399))
  weights = np.random.default_rng(0).dirichlet(np.ones(61), 61)
  path = path_of((weights, sixty, sixty), (np.full((400, 400), 1 / 400), many, many))
  texts_of = "all => all.map((each) => each.firstChild.data)"
  with opened(path, "#run=0", width=1280) as shown:
    for side in ("column-labels", "row-labels"):
      assert shown.locator(f"svg.{side} text").evaluate_all(texts_of) == [*sixty, "</s>"]
    cells, label = (
      shown.locator(item).bounding_box() for item in ("canvas", "svg.row-labels text >> nth=30")
    )
    middle = label["y"] + label["height"] / 2
    assert abs(middle - (cells["y"] + 1 + 30.5 * 16)) < 4  # beside its row
    shown.select_option("#run", "1")
    shown.wait_for_function("document.querySelector('canvas').width === 800")
    assert shown.locator("svg.column-labels text").evaluate_all(texts_of) == [*many, "</s>"][::7]
    assert "One word in 7 is labeled" in shown.inner_text("figcaption")


def test_signed_weights_and_long_words(path_of):
  weights = np.array([[2.5, -1.25, 0.0], [0.5, 0.25, 0.004]])
  word = "a" * 100_000
  path = path_of((weights, ["a", "b"], ["c"], {(0, 0)}), (np.full((2, 3), 1 / 3), ["the", word], [word]))
  with opened(path, "#run=0") as shown:
    cells = shown.locator("td[data-cell]")
    assert cells.all_inner_texts() == ["2.50", f"{MINUS}1.25", "", ".50", ".25", ""]
    drawn = [float(item.get_attribute("style").split()[1]) for item in cells.all()]
    np.testing.assert_allclose(drawn, np.abs(weights.ravel()) / 2.5, atol=1e-3)
    negative = [item.get_attribute("data-cell") for item in shown.locator("td.negative").all()]
    assert negative == ["0,1"]
    assert f"Weights range from {MINUS}1.25 to 2.5" in shown.inner_text("article")
    shown.check("input[value=arcs]")
    assert [item.get_attribute("data-cell") for item in shown.locator("path.negative").all()] == ["0,1"]
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
  with opened(path, "#layer=1&head=0") as shown:
    shown.focus("figure canvas")
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowDown")
    description = shown.inner_text(".description")
    assert shown.inner_text("#about").startswith("Recorded attention weights")
    assert description == f"2. w1 attends to 2. w1: {weights[1, 0, 1, 1]:.4f}"
    shown.select_option("#layer", "0")
    shown.wait_for_function(
      "text => document.querySelector('.description').textContent !== text", arg=description
    )


def test_play_shows_one_word_at_a_time(path):
  with opened(path, TRUE.replace("&", "#")) as shown:
    shown.evaluate("window.setInterval = (callback) => { window.tick = callback; return 1; }")
    shown.evaluate("window.clearInterval = (timer) => { window.cleared = timer; }")
    shown.click("[data-target='3'] button")
    shown.click("#play")
    for count in range(1, 18):
      assert shown.locator("[data-target]").count() == count
      assert shown.inner_text(".step h3").startswith(f"Step {count}: ")  # the selection moves, too
      assert shown.inner_text("#play") == ("Pause" if count < 17 else "Play")
      shown.evaluate("window.cleared || tick()")
    # A second click pauses, and so do other changes.
    for pause in (lambda: shown.click("#play"), lambda: shown.fill("#text", "a dog")):
      shown.evaluate("window.cleared = 0")
      shown.click("#play")
      pause()
      assert shown.inner_text("#play") == "Play"
      assert shown.evaluate("window.cleared") == 1


def test_play_is_slow_with_reduced_motion(path):
  with opened(path) as shown:
    for motion, interval in (("reduce", 2500), ("no-preference", 900)):
      shown.emulate_media(reduced_motion=motion)
      shown.evaluate("window.setInterval = (_, interval) => { window.interval = interval; return 1; }")
      shown.click("#play")
      assert shown.evaluate("window.interval") == interval
      shown.click("#play")
