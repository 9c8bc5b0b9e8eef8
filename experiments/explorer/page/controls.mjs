// The controls of the page: what they offer, what they change, what they show.

import { withText } from "./address.mjs";
import { html, show } from "./dom.mjs";
import { sentenceOf, sideOf } from "./recorded.mjs";

const find = (id) => document.getElementById(id);
const MOST_BEAMS = 10;
const ALL_RECORDED =
  "What trained translators looked at, recorded along some sentences. Point at a word, or walk a map.";

/** Puts into the controls what there is to choose from. */
export function fillControls({ runs }) {
  const title = `attention: ${runs.map(({ name }) => name).join(", ")}`;
  document.title = title;
  find("title").textContent = title;
  if (!runs.some(({ checkpoints }) => checkpoints)) find("about").textContent = ALL_RECORDED;
  const names = runs.map(({ name }) => name);
  show(find("run"), options(names));
  show(find("beside"), html("option", { value: "" }, "none"), options(names));
  find("runs").hidden = runs.length < 2;
  const steps = stepsOf(runs);
  find("step").max = steps.length - 1;
  find("time").hidden = steps.length < 2;
}

/** Calls the page's `change` with what a person changes. */
export function listen(page) {
  const on = (id, event, changed) =>
    find(id).addEventListener(event, () =>
      page.change(changed(find(id).value, page.state), event === "input" ? id : ""),
    );
  find("controls").addEventListener("submit", (event) => event.preventDefault());
  on("text", "input", (value, state) => withText(state, value));
  on("example", "change", (value, state) => (value ? withText(state, value) : {}));
  on("run", "change", (value, state) => ({ ...withText(state, state.text), run: Number(value) }));
  on("beside", "change", (value) => ({ beside: value === "" ? null : Number(value) }));
  on("step", "input", (value) => ({ step: stepsOf(page.data.runs)[value] }));
  on("beam", "change", (value) => ({ beam: beamsOf(value), hypothesis: 0, cell: null }));
  on("temperature", "input", (value) => ({ temperature: Number(value), beam: 1, hypothesis: 0 }));
  on("draw", "click", (_, { seed }) => ({ seed: (seed + 1) % 1e9 }));
  on("more", "click", (_, { shown }) => ({ shown: (shown ?? 0) + 1, cell: null }));
  on("fewer", "click", (_, { shown }) => ({
    shown: Math.max(Math.min(shown ?? 1e9, numWords()) - 1, 0),
    cell: null,
  }));
  on("all", "click", () => ({ shown: null }));
  on("undo", "click", () => ({ masked: [], words: {}, rows: {} }));
  on("sentence", "change", (value, state) => {
    const recorded = shownOf(page.data, state).find((run) => !run.checkpoints);
    return withText(state, recorded.sentences[value].source_text);
  });
  on("side", "change", (value) => ({ side: value, cell: null }));
  on("layer", "change", (value) => ({ layer: value === "" ? null : Number(value) }));
  on("head", "change", (value) => ({ head: value === "" ? null : Number(value) }));
  find("results").addEventListener("keydown", ({ key }) => {
    if (key === "Escape" && page.state.cell) page.change({ cell: null });
  });
  for (const radio of document.querySelectorAll('[name="view"]')) {
    radio.addEventListener("change", () => page.change({ view: radio.value }));
  }

  /** Returns how many words the first translation has. */
  function numWords() {
    return page.found.get("run0")?.found?.rows.length ?? 0;
  }
}

function beamsOf(value) {
  return Math.min(Math.max(Math.round(Number(value)) || 1, 1), MOST_BEAMS);
}

/** Puts a state into the controls; `found` is the first run's translation, if it has one. */
export function showControls({ runs }, state, found) {
  const shown = shownOf({ runs }, state);
  const live = shown.find((run) => run.checkpoints);
  const recorded = shown.find((run) => !run.checkpoints);
  find("live").hidden = !live;
  find("recorded").hidden = !recorded;
  find("run").value = state.run;
  find("beside").value = state.beside ?? "";
  for (const radio of document.querySelectorAll('[name="view"]')) radio.checked = radio.value === state.view;
  if (live) showLive(live, stepsOf(runs), state, found?.applied);
  if (recorded) showRecorded(recorded, state);
}

function showLive(run, steps, state, applied = { masked: [], words: {}, rows: {} }) {
  if (find("text").value !== state.text) find("text").value = state.text;
  showExamples(run, state.text);
  const step = state.step ?? run.step;
  const passed = steps.filter((each) => each <= step).length;
  find("step").value = Math.max(passed - 1, 0);
  find("step-told").textContent = steps[Math.max(passed - 1, 0)].toLocaleString("en");
  const beam = state.beam ?? run.beam_size;
  find("beam").value = beam;
  find("temperature").value = beam > 1 ? 0 : state.temperature;
  find("temperature-told").textContent =
    beam === 1 && state.temperature ? state.temperature.toFixed(1) : "0: the likeliest words";
  find("draw").hidden = !state.temperature || beam > 1;
  const changes = [
    [applied.masked.length, "source word hidden", "source words hidden"],
    [Object.keys(applied.words).length, "word chosen", "words chosen"],
    [Object.keys(applied.rows).length, "row of weights changed", "rows of weights changed"],
  ].filter(([count]) => count);
  const told = changes.map(([count, one, many]) => `${count} ${count === 1 ? one : many}`);
  find("changes").textContent = told.join(", ");
  find("undo").hidden = !changes.length;
  find("all").disabled = state.shown === null;
}

function showExamples(run, text) {
  const select = find("example");
  if (select.dataset.run !== run.name) {
    const splits = [...new Set(run.examples.map(({ split }) => split))];
    const groups = splits.map((split) => {
      const sources = run.examples.filter((each) => each.split === split).map(({ source }) => source);
      return html(
        "optgroup",
        { label: split },
        sources.map((each) => html("option", { value: each }, each)),
      );
    });
    show(select, html("option", { value: "" }, "of your own"), groups);
    select.dataset.run = run.name;
  }
  select.value = run.examples.some(({ source }) => source === text) ? text : "";
}

/** Returns the runs that a state shows. */
function shownOf({ runs }, state) {
  return [state.run, state.beside].filter((i) => i !== null).map((i) => runs[i]);
}

function showRecorded(run, state) {
  const sentence = sentenceOf(run, state);
  const side = sideOf(sentence, state);
  const [L, N] = sentence.sides[side]?.shape ?? [1, 1];
  const numbered = (count) => [
    html("option", { value: "" }, "mean"),
    options(Array.from({ length: count }, (_, i) => String(i + 1))),
  ];
  const names = run.sentences.map(
    (each) => `${each.columns.length} tokens: ${each.source_text.slice(0, 60)}`,
  );
  show(find("sentence"), options(names));
  show(
    find("side"),
    Object.keys(sentence.sides).map((each) => html("option", { value: each }, each)),
  );
  show(find("layer"), numbered(L));
  show(find("head"), numbered(N));
  find("sentence").value = run.sentences.indexOf(sentence);
  find("side").value = side ?? "";
  find("layer").value = state.layer !== null && state.layer < L ? state.layer : "";
  find("head").value = state.head !== null && state.head < N ? state.head : "";
}

/** Returns the steps of all checkpoints, in order. */
function stepsOf(runs) {
  const steps = runs.flatMap((run) => (run.checkpoints ?? []).map(({ step }) => step));
  return [...new Set(steps)].sort((one, other) => one - other);
}

/** Returns options of which each has its number as value. */
function options(names) {
  return names.map((name, i) => html("option", { value: i }, name));
}
