// The controls of the page: what they offer, what they change, what they show.

import { find, html, show } from "./dom.mjs";
import { sentenceOf, sideOf } from "./recorded_view.mjs";
import { withText } from "./url_state.mjs";

/**
 * @import { LiveRun, PageData, RecordedRun, Run } from "./data"
 * @import { Page } from "./explore.mjs"
 * @import { Changes, TextState, Translation } from "./translation.mjs"
 * @import { State } from "./url_state.mjs"
 */

const MOST_BEAMS = 10;
const ALL_RECORDED =
  "What trained translators looked at, recorded along some sentences. Point at a word, or walk a map.";

const element = (/** @type {string} */ id) => find(id, HTMLElement);
const button = (/** @type {string} */ id) => find(id, HTMLButtonElement);
const input = (/** @type {string} */ id) => find(id, HTMLInputElement);
const select = (/** @type {string} */ id) => find(id, HTMLSelectElement);
const textArea = () => find("text", HTMLTextAreaElement);
const radios = () => [...document.querySelectorAll("input")].filter(({ name }) => name === "view");

/**
 * Fills the controls with what there is to choose from.
 *
 * @param {PageData} data
 */
export function fillControls({ runs }) {
  const names = runs.map(({ name }) => name);
  const title = `attention: ${names.join(", ")}`;
  document.title = title;
  element("title").textContent = title;
  if (!runs.some(({ checkpoints }) => checkpoints)) element("about").textContent = ALL_RECORDED;
  show(select("run"), options(names));
  show(select("beside"), html("option", { value: "" }, "none"), options(names));
  element("runs").hidden = runs.length < 2;
  const steps = stepsOf(runs);
  input("step").max = String(steps.length - 1);
  element("time").hidden = steps.length < 2;
}

/**
 * Calls the page's `change` with what the user changes.
 *
 * @param {Page} page
 */
export function listen(page) {
  /**
   * @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} control
   * @param {"input" | "change"} event
   * @param {(value: string, state: State) => Partial<State>} changesOf
   */
  const on = (control, event, changesOf) =>
    control.addEventListener(event, () =>
      page.change(changesOf(control.value, page.state), event === "input" ? control.id : ""),
    );
  /**
   * @param {string} id
   * @param {(state: State) => Partial<State>} changesOf
   */
  const onClick = (id, changesOf) =>
    button(id).addEventListener("click", () => page.change(changesOf(page.state)));
  element("controls").addEventListener("submit", (event) => event.preventDefault());
  on(textArea(), "input", (value, state) => withText(state, value));
  on(select("example"), "change", (value, state) => (value ? withText(state, value) : {}));
  on(select("run"), "change", (value, state) => ({ ...withText(state, state.text), run: Number(value) }));
  on(select("beside"), "change", (value) => ({ beside: numberOf(value) }));
  on(input("step"), "input", (value) => ({ step: stepsOf(page.data.runs)[Number(value)] }));
  on(input("beam"), "change", (value) => ({ beam: beamsOf(value), hypothesis: 0, cell: null }));
  on(input("temperature"), "input", (value) => ({ temperature: Number(value), beam: 1, hypothesis: 0 }));
  onClick("draw", ({ seed }) => ({ seed: (seed + 1) % 1e9 }));
  onClick("more", ({ shown }) => ({ shown: (shown ?? 0) + 1, cell: null }));
  onClick("fewer", ({ shown }) => {
    const numWords = page.translationAt("run0")?.rows.length ?? 0;
    return { shown: Math.max(Math.min(shown ?? 1e9, numWords) - 1, 0), cell: null };
  });
  onClick("all", () => ({ shown: null }));
  onClick("undo", () => ({ masked: [], words: {}, rows: {} }));
  on(select("sentence"), "change", (value, state) => {
    const recorded = shownOf(page.data, state).find((run) => run.checkpoints === undefined);
    return recorded ? withText(state, recorded.sentences[Number(value)].source_text) : {};
  });
  on(select("side"), "change", (value) => ({
    side: value === "encoder" ? "encoder" : "decoder",
    cell: null,
  }));
  on(select("layer"), "change", (value) => ({ layer: numberOf(value) }));
  on(select("head"), "change", (value) => ({ head: numberOf(value) }));
  for (const radio of radios()) on(radio, "change", (value) => ({ view: value === "arcs" ? "arcs" : "map" }));
  element("results").addEventListener("keydown", ({ key }) => {
    if (key === "Escape" && page.state.cell) page.change({ cell: null });
  });
}

/** @param {string} value of an option; "" for none. */
function numberOf(value) {
  return value === "" ? null : Number(value);
}

/** @param {string} value */
function beamsOf(value) {
  return Math.min(Math.max(Math.round(Number(value)) || 1, 1), MOST_BEAMS);
}

/**
 * Shows a state in the controls.
 *
 * @param {PageData} data
 * @param {TextState} state
 * @param {Translation | null} translation the first run's, if it has one.
 */
export function showControls(data, state, translation) {
  const shown = shownOf(data, state);
  const live = shown.find((run) => run.checkpoints !== undefined);
  const recorded = shown.find((run) => run.checkpoints === undefined);
  element("live").hidden = !live;
  element("recorded").hidden = !recorded;
  select("run").value = String(state.run);
  select("beside").value = String(state.beside ?? "");
  for (const radio of radios()) radio.checked = radio.value === state.view;
  if (live) {
    showLive(live, state, stepsOf(data.runs));
    showChanges(translation?.applied ?? { masked: [], words: {}, rows: {} });
  }
  if (recorded) showRecorded(recorded, state);
}

/**
 * @param {LiveRun} run
 * @param {TextState} state
 * @param {number[]} steps of all checkpoints.
 */
function showLive(run, state, steps) {
  if (textArea().value !== state.text) textArea().value = state.text;
  showExamples(run, state.text);
  const step = state.step ?? run.step;
  const passed = Math.max(steps.filter((each) => each <= step).length - 1, 0);
  input("step").value = String(passed);
  element("step-told").textContent = steps[passed].toLocaleString("en");
  const beam = state.beam ?? run.beam_size;
  const samples = beam === 1 && state.temperature > 0;
  input("beam").value = String(beam);
  input("temperature").value = String(beam > 1 ? 0 : state.temperature);
  element("temperature-told").textContent = samples ? state.temperature.toFixed(1) : "0: the likeliest words";
  element("draw").hidden = !samples;
  button("all").disabled = state.shown === null;
}

/**
 * Tells what the user has changed.
 *
 * @param {Changes} applied
 */
function showChanges({ masked, words, rows }) {
  const changes = [
    counted(masked.length, "source word hidden", "source words hidden"),
    counted(Object.keys(words).length, "word chosen", "words chosen"),
    counted(Object.keys(rows).length, "row of weights changed", "rows of weights changed"),
  ].filter(Boolean);
  element("changes").textContent = changes.join(", ");
  element("undo").hidden = !changes.length;
}

/**
 * @param {number} count
 * @param {string} one
 * @param {string} many
 */
function counted(count, one, many) {
  return count ? `${count} ${count === 1 ? one : many}` : "";
}

/**
 * @param {LiveRun} run
 * @param {string} text
 */
function showExamples(run, text) {
  const list = select("example");
  if (list.dataset.run !== run.name) {
    const splits = [...new Set(run.examples.map(({ split }) => split))];
    const groups = splits.map((split) => {
      const sources = run.examples.filter((example) => example.split === split).map(({ source }) => source);
      return html("optgroup", { label: split }, sources.map(option));
    });
    show(list, html("option", { value: "" }, "of your own"), groups);
    list.dataset.run = run.name;
  }
  list.value = run.examples.some(({ source }) => source === text) ? text : "";
}

/**
 * Returns the runs that a state shows.
 *
 * @param {PageData} data
 * @param {State} state
 * @returns {Run[]}
 */
function shownOf({ runs }, state) {
  return [state.run, state.beside].filter((i) => i !== null).map((i) => runs[i]);
}

/**
 * @param {RecordedRun} run
 * @param {TextState} state
 */
function showRecorded(run, state) {
  const sentence = sentenceOf(run, state);
  const side = sideOf(sentence, state);
  const [L, N] = (side && sentence.sides[side]?.shape) ?? [1, 1];
  const names = run.sentences.map(
    (each) => `${each.columns.length} tokens: ${each.source_text.slice(0, 60)}`,
  );
  show(select("sentence"), options(names));
  show(select("side"), Object.keys(sentence.sides).map(option));
  select("sentence").value = String(run.sentences.indexOf(sentence));
  select("side").value = side ?? "";
  showNumbers(select("layer"), L, state.layer);
  showNumbers(select("head"), N, state.head);
}

/**
 * Offers the mean, and numbers from 1 on.
 *
 * @param {HTMLSelectElement} list
 * @param {number} count
 * @param {number | null} selected from 0 on.
 */
function showNumbers(list, count, selected) {
  const numbers = options(Array.from({ length: count }, (_, i) => String(i + 1)));
  show(list, html("option", { value: "" }, "mean"), numbers);
  list.value = selected !== null && selected < count ? String(selected) : "";
}

/**
 * Returns the steps of all checkpoints, in order.
 *
 * @param {Run[]} runs
 */
function stepsOf(runs) {
  const steps = runs.flatMap((run) => (run.checkpoints ?? []).map(({ step }) => step));
  return [...new Set(steps)].sort((one, other) => one - other);
}

/** @param {string} value */
function option(value) {
  return html("option", { value }, value);
}

/**
 * Returns options of which each has its number as value.
 *
 * @param {string[]} names
 */
function options(names) {
  return names.map((name, i) => html("option", { value: i }, name));
}
