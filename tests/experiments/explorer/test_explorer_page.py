"""The page in headless Chromium."""

import pathlib
import re

import jax
import numpy as np
import pytest
from explorer_page import opened
from helpers import browser
from test_explorer_live import TEXT, TWO_LAYERS, assert_same, make, texts_of

from experiments.data.parallel_corpus import SentencePair
from experiments.data.task import Example
from experiments.evaluation.metrics import AlignedAttention, alignment_error_rate
from experiments.explorer.bundle import page
from experiments.explorer.live import live_model
from experiments.explorer.recorded import recorded_model
from experiments.runs.restore import KeptCheckpoints

pytestmark = browser.needs_chromium

ALONE = "#run=0"


@pytest.fixture(scope="module")
def translators():
  return make("additive"), make("bilinear", **TWO_LAYERS)


@pytest.fixture(scope="module")
def path(translators, tmp_path_factory):
  """Returns the file of a page with two live runs and a recorded one."""
  translator = translators[0][1]
  known = translator.task.examples("test", 1)[0]
  mine = Example((), (), frozenset({(0, 0), (3, 3)}), TEXT, "il gatto rosso vede il cane")
  examples = {
    "mine": [mine],
    "test": [known],
    "odd": [known._replace(source_text="a cat", target_text="un zzz")],
  }
  runs = []
  for name, (config, item) in zip(("one", "other"), translators, strict=True):
    # The parameters of the first checkpoint are half those of the second.
    kept = KeptCheckpoints({3: jax.tree.map(lambda leaf: leaf / 2, item.params), 7: item.params}, 7)
    runs.append({"name": name, "summary": "/* program */", **live_model(config, item, kept, examples)})
  runs[1]["checkpoints"][0]["step"] = 5
  rare = SentencePair("</script><b>a cat", "un gatto", frozenset({(0, 1)}))
  long = SentencePair("the cat " * 30, "il gatto " * 20, frozenset({(2, 2)}))
  others = recorded_model(translator, "it is a test", [rare, long])
  runs.append({"name": "third", "summary": "was recorded", **others})
  path = tmp_path_factory.mktemp("page") / "explore.html"
  path.write_text(page({"runs": runs}), "utf-8")
  return path


def translation_of(translator, text, **decode_options):
  return translator.with_decode_options(**decode_options).translate([text])[0]


@pytest.fixture(scope="module")
def computed(path, translators):
  """Returns what the program of the page computes: translations of some texts, and the stages of a step."""
  program = """async ([texts]) => {
    const data = JSON.parse(document.getElementById("data").textContent);
    const translate = async (run, text) => {
      const arrays = await modules["decode_arrays.mjs"].unpackArrays(run.checkpoints[1].arrays, run.layout);
      const state = { ...modules["url_state.mjs"].DEFAULTS, text };
      return modules["translation.mjs"].translate(run, arrays, state);
    };
    const [run] = data.runs;
    const stages = modules["explain.mjs"].explain(run.shape, await translate(run, "a big dog"), 1, 2);
    const formulas = modules["formulas.mjs"].formulasOf(run.shape).map(({ name }) => name);
    const translations = await Promise.all(texts.map((text) => translate(data.runs[1], text)));
    return {
      formulas,
      stages: Object.entries(stages).map(([name, stage]) =>
        [name, { ...stage, vector: stage.vector && [...stage.vector] }]),
      translations: translations.map(({ words, text, score, isTruncated, weights }) =>
        ({ words, text, score, isTruncated, weights: weights.map((row) => [...row]) })),
    };
  }"""
  texts = texts_of(translators[1][1])[::6]
  with opened(path, ALONE) as shown:
    return {"texts": texts, **shown.evaluate(program, [texts])}


def test_translations_are_those_of_jax(computed, translators):
  translations = translators[1][1].translate(computed["texts"])
  for result, translation in zip(computed["translations"], translations, strict=True):
    assert_same(result, translation)


def test_steps_are_explained(computed, translators):
  _, translator = translators[0]
  stages = dict(computed["stages"])
  assert [*stages] == computed["formulas"]
  assert [*stages] == ["Query", "Key", "Score", "Weight", "Context", "State", "Features"]
  query, key = (np.array(stages[name]["vector"]) for name in ("Query", "Key"))
  factors = np.asarray(translator.params["decoder"]["attention_layer"]["score_vector"])
  adds = factors * np.tanh(query + key)
  np.testing.assert_allclose(stages["Score"]["number"], adds.sum(), atol=1e-6)
  heaviest = np.argsort(-np.abs(adds))[:5]
  terms = stages["Score"]["terms"]
  assert [item["unit"] for item in terms] == heaviest.tolist()
  np.testing.assert_allclose([item["term"] for item in terms], adds[heaviest], atol=1e-6)
  weights = translation_of(translator, "a big dog").attention
  np.testing.assert_allclose(stages["Weight"]["number"], weights[1, 2], atol=1e-5)
  assert len(stages["Context"]["vector"]) == 34 and len(stages["State"]["vector"]) == 17


def test_links_show_the_same(path, translators):
  translation = translation_of(translators[0][1], "a big dog")
  with opened(path, ALONE) as shown:
    assert shown.input_value("#text") == TEXT  # the first example
    shown.fill("#text", "a big dog")
    assert shown.inner_text("article .text") == translation.text
    cells = shown.locator("td[data-cell]")
    assert cells.count() == len(translation.attention) * 4
    drawn = cells.nth(5).get_attribute("style")
    assert drawn == f"--weight: {translation.attention[1, 1]:.3f}"
    shown.click("td[data-cell='2,1']")
    shown.wait_for_function("location.hash.includes('cell')")
    address = shown.evaluate("location.hash")
    results = shown.inner_text("#results")
    assert "Step 3" in results and "Query" in results and "Context" in results
  with opened(path, address) as shown:
    assert shown.input_value("#text") == "a big dog"
    assert shown.inner_text("#results") == results


def test_hovered_words_are_highlighted(path, translators):
  weights = translation_of(translators[0][1], TEXT).attention
  with opened(path, ALONE) as shown:

    def highlighted(side):
      elements = shown.locator(f"article .heatmap [data-{side}], article .arcs [data-{side}]").all()
      return [i for i, item in enumerate(elements) if "highlighted" in (item.get_attribute("class") or "")]

    shown.hover("article [data-target='1']")
    assert highlighted("source") == [s for s in range(7) if weights[1, s] >= 0.1]
    assert highlighted("target") == [1]
    shown.focus("article [data-source='2'] button")
    assert highlighted("target") == [t for t in range(len(weights)) if weights[t, 2] >= 0.1]
    shown.check("input[value=arcs]")
    shown.hover("svg [data-source='2']")
    assert highlighted("target") == [t for t in range(len(weights)) if weights[t, 2] >= 0.1]


def test_users_change_a_translation(path):
  with opened(path, "#cell=1,2") as shown:

    def words():
      return shown.locator("tbody th[data-target]").all_inner_texts()

    def take(i):
      candidate = shown.locator(".candidates button").nth(i)
      word = candidate.inner_text().split()[0]
      candidate.click()
      return word

    unchanged = words()
    shown.get_by_role("button", name="uniform").click()
    weights = [cell.get_attribute("style") for cell in shown.locator("tbody tr:nth-child(2) td").all()]
    assert weights == ["--weight: 0.143"] * 7
    assert "you set uniform weights" in shown.inner_text(".step")
    shown.click("article [data-source='2'] button")
    assert shown.get_attribute("thead [data-source='2'] button", "aria-pressed") == "true"
    before = words()
    first = take(3)
    assert words()[:2] == [before[0], first]
    assert shown.inner_text("#changes") == "1 source word hidden, 1 word forced, 1 row of weights changed"
    shown.click("article [data-target='2'] button")
    second = take(2)
    assert words()[:3] == [before[0], first, second]
    shown.click("#reset")
    assert shown.inner_text("#changes") == ""
    assert words() == unchanged


@pytest.mark.exhaustive
def test_beams_keep_the_words_before(path, translators):
  texts = texts_of(translators[0][1])[:8]
  with opened(path, ALONE) as shown:

    def words():
      return shown.locator("tbody th[data-target]").all_inner_texts()

    for text in texts:
      shown.evaluate("address => { location.hash = address; }", f"beamSize=3&cell=3,1&text={text}")
      shown.wait_for_function("text => document.getElementById('text').value === text", arg=text)
      before = words()
      for i in (1, 2, 3):
        taken = shown.locator(".candidates button").nth(i)
        word = taken.inner_text().split()[0]
        taken.click()
        assert words()[:4] == [*before[:3], word]


def test_true_translations_are_compared(path, translators):
  (scored,) = translators[0][1].score([(TEXT, "il gatto rosso vede il cane")])
  rate = alignment_error_rate([AlignedAttention(scored.attention, {(0, 0), (3, 3)})])
  with opened(path, ALONE) as shown:
    assert "Reference translation: il gatto rosso vede il cane" in shown.inner_text("article .reference")
    shown.get_by_role("button", name="force this translation").click()
    assert shown.inner_text("article .text") == "il gatto rosso vede il cane"
    assert f"Alignment error {rate:.2f}" in shown.inner_text("article .reference")
    assert [cell.get_attribute("data-cell") for cell in shown.locator("td.true").all()] == ["0,0", "3,3"]
    shown.fill("#text", "a dog")
    assert "No reference translation" in shown.inner_text("article .reference")
    shown.select_option("#example", "a cat")  # whose translation has a word that the model does not know
    shown.get_by_role("button", name="force this translation").click()
    assert "Matches the reference translation" in shown.inner_text("article .reference")
    assert "not in the vocabulary: zzz" in shown.inner_text("article .facts")


def test_beams_are_listed_and_drawn(path, translators):
  _, translator = translators[0]
  best, second, *_ = translator.with_decode_options(beam_size=3, n_best=3).n_best([TEXT.split()])[0]
  with opened(path, "#beamSize=3") as shown:
    assert shown.inner_text("article .text") == best.text
    items = shown.locator(".beams li button")
    texts = items.all_inner_texts()
    if second.is_truncated is best.is_truncated:
      assert texts[1].split()[: len(second.tokens)] == [*second.tokens]
    items.nth(1).click()
    assert shown.locator("tbody th[data-target]").all_inner_texts() == texts[1].replace("…", "").split()[:-1]
    drawn = [
      float(item.get_attribute("style").split()[1])
      for item in shown.locator("tbody tr").nth(1).locator("td").all()
    ]
    tokens = texts[1].replace("…", "").split()[:-1]
    (scored,) = translator.score_tokens([(TEXT.split(), [item for item in tokens if item != "</s>"])])
    np.testing.assert_allclose(drawn, scored.attention[1], atol=6e-4)
    assert shown.locator(".beams svg text").count() > 3
    shown.locator(".beams summary").click()
    shown.click("td[data-cell='1,1']")
    assert shown.locator("details[open]").count() == 0  # it stays closed
    # Without the last steps, only the tree is shown.
    shown.evaluate("location.hash = 'beamSize=3&numShown=2'")
    shown.wait_for_function("document.querySelectorAll('[data-target]').length === 2")
    assert shown.locator(".beams li").count() == 0
    assert 2 <= shown.locator(".beams svg text").count() <= 6
    assert "of the 2 steps shown" in shown.inner_text(".facts")
    shown.click("#all")
    assert shown.locator(".beams li").count() == len(texts)


@pytest.mark.exhaustive
def test_steps_checkpoints_and_two_runs(path, translators):
  with opened(path, ALONE) as shown:
    count = shown.locator("[data-target]").count()
    shown.click("#next")
    assert shown.locator("[data-target]").count() == 1
    shown.click("#next")
    shown.click("#previous")
    assert shown.locator("[data-target]").count() == 1
    assert shown.inner_text("article .text").endswith(" …")
    for _ in range(count + 3):
      shown.click("#next")
    shown.click("#previous")
    assert shown.locator("[data-target]").count() == count - 1
    shown.click("#all")
    weights = shown.locator("td").first.locator("xpath=../../..").inner_text()
    assert "step 7" in shown.inner_text("article h2")
    shown.focus("#checkpoint")
    shown.keyboard.press("Home")
    shown.wait_for_function("document.querySelector('article h2').textContent.includes('step 3')")
    assert shown.locator("td").first.locator("xpath=../../..").inner_text() != weights
    shown.keyboard.press("ArrowRight")  # to step 5, of which the first run has no checkpoint
    shown.keyboard.press("ArrowRight")
    shown.wait_for_function("document.querySelector('article h2').textContent.includes('step 7')")
    shown.select_option("#compare", "1")
    shown.locator("article").nth(1).wait_for()
    shown.fill("#text", "a cat")
    names = [item.split()[0] for item in shown.locator("article h2").all_inner_texts()]
    assert names == ["one", "other"]
    texts = [translation_of(item, "a cat").text for _, item in translators]
    assert shown.locator("article .text").all_inner_texts() == texts
    shown.locator("article").nth(1).locator("td[data-cell='1,1']").click()
    panels = shown.locator(".panel")
    assert [item.split(":")[0] for item in panels.locator("h3").all_inner_texts()] == ["one", "other"]
    panels.nth(1).get_by_role("button", name="uniform").press("Enter")
    program = "[...document.querySelectorAll('.panel')].findIndex((each) => each.matches(':focus-within'))"
    assert shown.evaluate(program) == 1
    shown.select_option("#compare", "2")
    shown.locator("#sentence").wait_for()
    assert shown.locator("#text").is_visible()


def test_the_last_change_is_shown(path):
  # The first checkpoint must be unpacked, while the last one is available.
  program = """async () => {
    const step = document.getElementById("checkpoint");
    for (const value of [0, 2]) {
      step.value = value;
      step.dispatchEvent(new Event("input"));
    }
    const [run] = JSON.parse(document.getElementById("data").textContent).runs;
    await modules["decode_arrays.mjs"].unpackArrays(run.checkpoints[0].arrays, run.layout);
  }"""
  with opened(path, ALONE) as shown:
    shown.evaluate(program)
    assert "step 7" in shown.inner_text("article h2")


def test_stale_searches_are_dropped(path, translators):
  program = """() => {
    window.texts = [];
    const results = document.getElementById("results");
    const observer = new MutationObserver(() => texts.push(results.querySelector(".text")?.textContent));
    observer.observe(results, { childList: true });
    const input = document.getElementById("text");
    for (const text of ["a", "a big", "a big red", "a big red dog"]) {
      input.value = text;
      input.dispatchEvent(new Event("input"));
    }
    return results.ariaBusy;
  }"""
  with opened(path, "#beamSize=10") as shown:
    assert shown.evaluate(program) == "true"  # the search has not blocked the page
    expected = translation_of(translators[0][1], "a big red dog", beam_size=10).text
    assert shown.inner_text("article .text") == expected
    assert shown.evaluate("texts") == [expected]
    assert shown.input_value("#text") == "a big red dog"


def test_recorded_runs_follow_the_sentence(path):
  with opened(path) as shown:
    shown.locator("article").nth(1).wait_for()
    shown.select_option("#compare", "2")
    shown.locator("#sentence").wait_for()
    shown.select_option("#sentence", "1")
    shown.wait_for_function("document.getElementById('text').value.startsWith('the cat the cat')")
    shown.locator("canvas").wait_for()
    shown.fill("#text", "</script><b>a cat")
    columns = shown.locator("article").nth(1).locator("thead th").all_inner_texts()
    assert columns == ["<", "/", "script", ">", "<", "b", ">", "a", "cat", "</s>"]
    assert shown.locator(".source-text").count() == 0
    shown.fill("#text", "a dog")  # it is not recorded, so the first sentence is shown
    assert shown.inner_text(".source-text") == "</script><b>a cat"


def test_recorded_attention_is_shown(path, translators):
  _, translator = translators[0]
  (heads,) = translator.heads([("</script><b>a cat", "un gatto")])
  with opened(path, "#run=2") as shown:
    assert "cannot run this model: it is a test" in shown.inner_text("article")
    cells = shown.locator("td[data-cell]")
    drawn = [float(cell.get_attribute("style").split()[1]) for cell in cells.all()]
    np.testing.assert_allclose(drawn, np.ravel(heads.decoder[0, 0]), atol=6e-4)
    assert shown.locator("td.true").get_attribute("data-cell") == "0,1"
    shown.select_option("#sentence", "1")
    shown.focus("canvas")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
      shown.keyboard.press(key)
    assert shown.inner_text(".description").startswith("3. il attends to 3. the: ")
    assert shown.inner_text(".description").endswith(", true alignment")
    shown.keyboard.press("Enter")
    shown.wait_for_function("location.hash.includes('cell=2%2C2')")


def test_formulas_name_a_section_of_the_tutorial(path):
  with opened(path, "#run=0&cell=1,1") as shown:
    name, number = re.search(r"(docs/\S+), section (\d)", shown.inner_text(".step .sources-line")).groups()
  assert f"\n## {number}. " in (pathlib.Path(__file__).parents[3] / name).read_text("utf-8")


def test_odd_sentences_are_explained(path):
  texts = {
    "": "Nothing to translate",
    "the " * 200: "truncated",
    "🦓 👩‍🚀": "unknown words: 🦓",
    "qwe rty": "unknown words: qwe rty",
  }
  with opened(path, ALONE) as shown:
    for text, expected in texts.items():
      shown.fill("#text", text)
      assert expected in shown.inner_text("#results")
      assert shown.locator("#failure").is_hidden()


def test_invalid_positions_are_ignored(path, translators):
  with opened(path, "#masked=0,0,99&weightOverrides=0:999,99:uniform&forcedWords=50:gatto") as shown:
    assert shown.inner_text("#changes") == "1 source word hidden"
    address = "temperature=1e-310&cell=99,99&hypothesis=99&run=99&numShown=999"
    shown.evaluate("address => { location.hash = address; }", address)
    shown.locator("#sentence").wait_for()  # the last run was recorded
    shown.select_option("#run", "0")
    shown.locator("article .text").wait_for()
    text = shown.input_value("#text")
    assert shown.inner_text("article .text") == translation_of(translators[0][1], text).text


def test_damaged_files_show_an_error(path, tmp_path):
  html = path.read_text("utf-8")
  not_started = "Starting. If nothing appears"
  damaged = {
    html.replace('"arrays":"A', '"arrays":"B', 2): "the checksum of its data does not match",
    html[: html.index('<script id="program">') + 400]: not_started,
    html[: html.index('"arrays":') + 400]: not_started,
  }
  for i, (text, error) in enumerate(damaged.items()):
    assert text != html
    file = tmp_path / f"{i}.html"
    file.write_text(text, "utf-8")
    assert error in browser.shown_text(file)


@pytest.mark.parametrize("width", [360, 390, 800, 1280])
def test_windows_do_not_scroll_sideways(path, width):
  text = "text=" + "+".join(["the", "big", "psychologist"] * 9)
  addresses = [
    "#cell=1,1&beamSize=3&compare=1&temperature=1",
    f"#run=0&masked=1,2&cell=1,2&{text}",
    f"#view=arcs&{text}",
    "#run=2",
    "#run=0&compare=2&view=arcs",
  ]
  for address in addresses:
    with opened(path, address, width=width) as shown:
      assert shown.evaluate("document.documentElement.scrollWidth") <= width, address
      shown.click(".help summary")
      assert shown.evaluate("document.documentElement.scrollWidth") <= width, address


def test_phones_have_large_buttons(path):
  program = """() => [...document.querySelectorAll("button, select, summary, input, .segments label")]
    .map((each) => [each.outerHTML, each.getBoundingClientRect()])
    .filter(([html, { width, height }]) => width && height < 40 && !html.includes('"radio"'))
    .map(([html]) => html)"""
  with opened(path, "#cell=1,1&beamSize=3&masked=2", width=390, height=844) as shown:
    assert shown.evaluate(program) == []


def test_controls_have_names_and_colors(path):
  unnamed = """() => [...document.querySelectorAll("button, input, select, textarea")]
    .filter((each) => !each.labels?.length && !each.textContent.trim() && !each.getAttribute("aria-label"))
    .map((each) => each.id)"""
  with opened(path, "#cell=1,1&beamSize=3&compare=1&temperature=1") as shown:
    assert shown.evaluate(unnamed) == []
    for scheme in ("light", "dark"):
      shown.emulate_media(color_scheme=scheme)
      colours = [
        shown.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
      ]
      light, dark = colours if scheme == "light" else colours[::-1]
      assert sum(map(int, light[4:-1].split(","))) > 600 > 200 > sum(map(int, dark[4:-1].split(",")))
