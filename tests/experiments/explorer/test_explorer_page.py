"""The page in headless Chromium, with two translators and recorded weights."""

import jax
import numpy as np
import pytest
from helpers import browser
from helpers.browser import address_of, opened

from experiments.data.task import Example
from experiments.evaluation.metrics import AlignedAttention, alignment_error_rate
from experiments.explorer.bundle import page
from experiments.explorer.live import live_model
from experiments.explorer.recorded import recorded_model
from experiments.runs.restore import KeptCheckpoints
from tests.experiments.explorer.test_explorer_model import DEEP, TEXT, make

pytestmark = [pytest.mark.nightly, browser.needs_chromium]

REFERENCE = "il gatto rosso vede il cane"
LINKS = frozenset({(0, 0), (1, 2), (3, 3)})
FORCED = {str(t): token for t, token in enumerate([*REFERENCE.split(), "</s>"])}
ALONE = {"run": "one", "compare": None}
NOTES, MAP, PANEL = ".notes", ".map", ".panel"


@pytest.fixture(scope="module")
def translators():
  return make("additive"), make("bilinear", **DEEP)


@pytest.fixture(scope="module")
def path(translators, tmp_path_factory):
  """Returns the file of a page with two live runs and a recorded one."""
  mine = Example((), (), LINKS, TEXT, REFERENCE)
  odd = Example((), (), None, "a cat", "un zzz")
  runs = []
  for name, (config, translator) in zip(("one", "other"), translators, strict=True):
    # The parameters of the first checkpoint are half those of the second.
    half = jax.tree.map(lambda leaf: leaf / 2, translator.params)
    kept = KeptCheckpoints({3: half, 7: translator.params}, 7)
    live = live_model(config, translator, kept, {"mine": [mine, odd]})
    runs.append({"name": name, "summary": "/* data */", **live})
  runs[1]["checkpoints"][0]["step"] = 5
  examples = [Example((), (), LINKS, "</script><b>a cat", "un gatto"), odd._replace(source_text="the dog")]
  recorded = recorded_model(translators[0][1], "it is a test", examples)
  runs.append({"name": "third", "summary": "was recorded", **recorded})
  path = tmp_path_factory.mktemp("page") / "explore.html"
  path.write_text(page({"runs": runs}), "utf-8")
  return path


def content(shown):
  """Returns what the page shows, except of what is pointed at."""
  tokens = shown.locator(".labels > :not(.later)").evaluate_all("all => all.map((each) => each.ariaPressed)")
  return [*shown.locator(f"h2, {NOTES}, {MAP}, {PANEL}").all_inner_texts(), tokens]


def translation_of(translator, text, **decode_options):
  return translator.with_decode_options(**decode_options).translate([text])[0]


def test_translations_are_those_of_jax(path, translators):
  translation = translation_of(translators[0][1], "a big dog")
  with opened(path, **ALONE) as shown:
    assert shown.input_value("#text") == TEXT  # the first example
    shown.fill("#text", "a big dog")
    assert shown.inner_text(".text") == translation.text
    assert shown.tokens("top").all_inner_texts() == ["a", "big", "dog", "</s>"]
    np.testing.assert_allclose(shown.row_weights(2), translation.attention[2], atol=6e-4)
    shown.tokens("left").nth(1).click()
    panel = shown.inner_text(PANEL)
    names = "Query", "Key", "Score", "Weight", "Context", "State", "Features"
    assert f"{translation.attention[1, 2]:.4f}" in panel and all(name in panel for name in names)
    assert shown.locator(f"{PANEL} math msub").count() > 5


def test_wrong_addresses_are_explained(path):
  for state, problem in (
    ({"run": "fourth"}, 'run must be one of one, other, third, got "fourth"'),
    (ALONE | {"cell": [99, 99], "hypothesis": 9}, "source token 100, target token 100, hypothesis 10."),
    ({"run": "third", "compare": None, "layer": 8}, "“the red cat sees the dog”, layer 9"),
  ):
    with opened(path, **state) as shown:
      assert problem in shown.inner_text("main") and shown.locator("canvas").count() >= 1
      shown.evaluate(f"location.hash = '{address_of(run='other')}'")
      shown.wait_for_function("document.querySelector('h2').textContent.startsWith('other')")
      assert shown.locator(".problems").count() == 0


def test_users_change_a_translation(path):
  with opened(path, **ALONE, cell=[1, 2]) as shown:
    unchanged = shown.tokens("left").all_inner_texts()
    shown.button("uniform").click()
    assert shown.selected().endswith(": 0.143")
    assert "you set uniform weights" in shown.inner_text(PANEL)
    shown.tokens("top").nth(2).click()
    assert shown.tokens("top").nth(2).get_attribute("aria-pressed") == "true"
    assert shown.selected().endswith(": 0.000")
    before = shown.tokens("left").all_inner_texts()
    candidate = shown.locator(".candidates button").nth(3)
    token = candidate.inner_text().split()[0]
    candidate.click()
    assert shown.tokens("left").all_inner_texts()[:2] == [before[0], token]
    facts = "1 source token hidden, but read by the encoder · 1 token forced · weights of 1 step changed"
    assert facts in shown.inner_text(NOTES)
    shown.button("Undo").click()
    assert shown.tokens("left").all_inner_texts() == before
    shown.button("Reset").click()
    assert shown.tokens("left").all_inner_texts() == unchanged
    assert shown.button("Reset").is_disabled()
  with opened(path, **ALONE, hidden=list(range(7))) as shown:
    assert "all source tokens are hidden, so all weights are 0" in shown.inner_text(NOTES)


def test_references_and_hypotheses_are_compared(path, translators):
  beams = translators[0][1].with_decode_options(beam_size=3, n_best=3).n_best([TEXT.split()])[0]
  with opened(path, **ALONE, beamSize=3) as shown:
    texts = shown.locator(".hypotheses li").all_inner_texts()
    for text, beam in zip(texts, beams, strict=False):
      assert text.split()[: len(beam.tokens)] == [*beam.tokens]
    shown.locator(".hypotheses button").nth(1).click()
    assert shown.tokens("left").all_inner_texts() == texts[1].replace("…", "").split()[:-1]
  (scored,) = translators[0][1].score([(TEXT, REFERENCE)])
  rate = alignment_error_rate([AlignedAttention(scored.attention, LINKS)])
  with opened(path, **ALONE) as shown:
    assert f"Reference translation: {REFERENCE}" in shown.inner_text(NOTES)
    shown.button("force this translation").click()
    assert f"Matches the reference translation. Alignment error {rate:.2f}." in shown.inner_text(NOTES)
    shown.select_option("[aria-label=Examples]", "a cat")  # its translation has an unknown token
    shown.button("force this translation").click()
    assert "unknown: zzz" in shown.inner_text(NOTES)
  with opened(path, **ALONE, forced=FORCED, cell=[1, 2]) as shown:
    assert shown.selected().endswith(", true alignment")


def test_two_runs_and_their_checkpoints(path, translators):
  with opened(path, address="#") as shown:
    shown.fill("#text", "a cat")
    texts = [translation_of(item, "a cat").text for _, item in translators]
    assert shown.locator(".text").all_inner_texts() == texts
    shown.locator("[role=grid]").nth(1).click(position={"x": 5, "y": 5})
    titles = shown.locator(f"{PANEL} h3").all_inner_texts()
    assert [title.split(":")[0] for title in titles] == ["one", "other"] and "Step 1" in titles[1]
    shown.focus("input[type=range]")
    shown.press("Home", "ArrowRight")  # to step 5, of which the first run has no checkpoint
    assert [text.split(", step ")[1] for text in shown.locator("h2").all_inner_texts()] == ["3", "5"]
    assert shown.locator(".text").all_inner_texts() != texts
    shown.select_option("label:has-text('Compare') select", "none")
    assert shown.locator("article").count() == 1


def test_recorded_sentences_have_references(path, translators):
  (heads,) = translators[0][1].heads([("</script><b>a cat", "un gatto")])
  with opened(path, run="third", compare=None, text="</script><b>a cat") as shown:
    article = shown.inner_text("article")
    assert "cannot run this model: it is a test" in article and "Reference translation\nun gatto" in article
    assert "".join(shown.tokens("top").all_inner_texts()) == "</script><b>acat</s>"
    np.testing.assert_allclose(shown.row_weights(1), heads.decoder[0, 0, 1], atol=6e-4)
    shown.select_option("label:has-text('Recorded') select", "2. the dog")
    output = translation_of(translators[0][1], "the dog").text
    article = shown.inner_text("article")
    assert f"Translation by the model\n{output}\n" in article and "Reference translation\nun zzz" in article


def test_back_undoes_the_last_change(path):
  with opened(path, **ALONE) as shown:

    def goes(direction, text, results):
      direction()
      shown.wait_for_function("text => document.getElementById('text').value === text", arg=text)
      assert content(shown) == results

    def change(action):
      before = shown.evaluate("location.hash")
      action()
      shown.wait_for_function("before => location.hash !== before", arg=before)
      return content(shown)

    first = content(shown)
    hidden = change(lambda: shown.tokens("top").nth(2).click())
    shown.click("#text")
    shown.press("Control+A")
    typed = change(lambda: shown.keyboard.type("a big dog", delay=20))
    change(lambda: shown.button("Arcs").click())
    goes(shown.go_back, "a big dog", typed)
    goes(shown.go_back, TEXT, hidden)  # typing is one change, and no token of the new sentence was hidden
    goes(shown.go_back, TEXT, first)
    goes(shown.go_forward, TEXT, hidden)


def test_keys_do_what_help_says(path):
  with opened(path, **ALONE, forced=FORCED) as shown:

    def focused():
      return shown.evaluate("document.activeElement.textContent || document.activeElement.role")

    shown.button("Reset").focus()
    shown.press("Tab", "ArrowRight", "ArrowRight")
    assert focused() == "cat"  # in the source
    shown.press("Enter")
    assert shown.tokens("top").nth(2).get_attribute("aria-pressed") == "true" and focused() == "cat"
    shown.press("Enter", "End")
    assert focused() == "</s>"
    shown.press("Tab", "ArrowDown")
    rows = shown.tokens("left").all_inner_texts()
    assert focused() == rows[1]  # in the translation
    shown.press("Enter")
    assert f"Step 2: “{rows[1]}”" in shown.inner_text(PANEL)
    shown.press("Escape")
    assert shown.locator("[role=gridcell]").count() == 0 and focused() == rows[1]
    shown.press("Tab", "ArrowDown")  # the heatmap
    assert shown.selected().startswith(f"from “{rows[0]}” (1) to “the” (1): ")
    shown.press("ArrowDown", "End", "ArrowLeft", "ArrowLeft")
    assert shown.selected().startswith(f"from “{rows[1]}” (2) to “the” (5): ")
    cell = shown.get_attribute("[role=grid]", "aria-activedescendant")
    assert shown.locator(f"#{cell}").get_attribute("role") == "gridcell"


def test_arcs_are_weights(path, translators):
  (scored,) = translators[0][1].score([(TEXT, REFERENCE)])
  with opened(path, **ALONE, view="arcs", forced=FORCED) as shown:
    arcs = shown.locator("path.arc").evaluate_all(
      "all => all.map((e) => [...e.dataset.cell.split(','), e.getAttribute('stroke-width')].map(Number))"
    )
    cells = {(t, s): width for t, s, width in arcs}
    assert {*cells} == {*map(tuple, np.argwhere(scored.attention >= 0.03).tolist())} | LINKS
    for cell, width in cells.items():
      assert width == pytest.approx(0.5 + 9 * scored.attention[cell], abs=0.01)
    assert shown.locator("path.true-line").count() == len(LINKS)
    shown.tokens("bottom").nth(1).click()
    assert "Step 2" in shown.inner_text(PANEL)


def test_the_newest_text_is_shown(path, translators):
  program = """() => {
    window.texts = new Set();
    const observer = new MutationObserver(() => texts.add(document.querySelector(".text").textContent));
    const options = { childList: true, characterData: true, subtree: true };
    observer.observe(document.querySelector(".notes"), options);
    const input = document.getElementById("text");
    for (const text of ["a", "a big", "a big red", "a big red dog"]) {
      input.value = text;
      input.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }"""
  with opened(path, **ALONE, beamSize=10) as shown:
    shown.evaluate(program)
    expected = translation_of(translators[0][1], "a big red dog", beam_size=10).text
    assert shown.inner_text(".text") == expected
    assert shown.evaluate("[...texts]") == [expected]


def test_damaged_files_show_an_error(path, tmp_path):
  html, file = path.read_text("utf-8"), tmp_path / "damaged.html"
  array, data = html.index('"arrays":"') + 2000, html.index('"arrays":') + 400
  file.write_text(html[:array] + ("A" if html[array] != "A" else "B") + html[array + 1 :], "utf-8")
  with opened(file, **ALONE, checkpoint=3) as shown:
    assert "The translation failed: its arrays are damaged." in shown.inner_text("article")
  for text, error in {
    html[:data] + html[data + 5 :].replace("}", "", 1): "This page is damaged: ",
    html[:data]: "Starting. If nothing appears",
  }.items():
    file.write_text(text, "utf-8")
    shown = browser.start().new_page()
    shown.goto(file.as_uri())
    assert error in shown.inner_text("body")
    shown.close()
