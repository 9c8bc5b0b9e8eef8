// The values of the controls.

import { getElement, html, render } from "./dom.mjs";
import { ellipsize, formatCount } from "./format.mjs";
import { sentenceOf, sideOf } from "./recorded_view.mjs";
import { toAddress, withReset } from "./url_state.mjs";

/**
 * @import { LiveRun, PageData, RecordedRun, Run } from "./data"
 * @import { Changes } from "./interventions.mjs"
 * @import { TextState, Translation } from "./translation.mjs"
 * @import { State } from "./url_state.mjs"
 */

const ABOUT_RECORDED =
  "Recorded attention weights. Hover over a word to see what it attends to; click a picture to see one head.";
const LIVE_CONTROLS = ["sentence-line", "steps", "beam-control", "temperature-control", "reset"];

const element = (/** @type {string} */ id) => getElement(id, HTMLElement);
const input = (/** @type {string} */ id) => getElement(id, HTMLInputElement);
const select = (/** @type {string} */ id) => getElement(id, HTMLSelectElement);

/** Returns the radio buttons of the view. */
export function viewRadios() {
  return [...document.querySelectorAll("input")].filter(({ name }) => name === "view");
}

/**
 * Fills the controls that do not depend on the state.
 *
 * @param {PageData} data
 */
export function fillControls({ runs }) {
  const names = runs.map(({ name }) => name);
  document.title = `Attention explorer: ${names.join(", ")}`;
  if (!runs.some(({ checkpoints }) => checkpoints)) element("about").textContent = ABOUT_RECORDED;
  render(select("run"), options(names));
  render(select("compare"), html("option", { value: "" }, "none"), options(names));
  element("runs").hidden = runs.length < 2;
  input("checkpoint").max = String(stepsOf(runs).length - 1);
}

/**
 * Shows a state in the controls.
 *
 * @param {PageData} data
 * @param {TextState} state
 * @param {Translation | null} translation of the first run.
 */
export function showControls(data, state, translation) {
  const runs = visibleRuns(data, state);
  const live = runs.find((run) => run.checkpoints !== undefined);
  const recorded = runs.find((run) => run.checkpoints === undefined);
  for (const id of LIVE_CONTROLS) element(id).hidden = !live;
  element("recorded").hidden = !recorded;
  select("run").value = String(state.run);
  select("compare").value = String(state.compare ?? "");
  for (const radio of viewRadios()) radio.checked = radio.value === state.view;
  const steps = stepsOf(data.runs);
  element("checkpoint-control").hidden = !live || steps.length < 2;
  element("sample").hidden = !live || !isSampled(live, state);
  element("changes").textContent = live && translation ? describeChanges(translation.changes) : "";
  if (live) showLive(live, state, steps);
  if (recorded) showRecorded(recorded, state);
}

/**
 * @param {LiveRun} run
 * @param {TextState} state
 * @param {number[]} steps of all checkpoints.
 */
function showLive(run, state, steps) {
  const text = getElement("text", HTMLTextAreaElement);
  if (text.value !== state.text) text.value = state.text;
  showExamples(run);
  const selected = state.checkpoint ?? run.step;
  const index = Math.max(steps.filter((step) => step <= selected).length - 1, 0);
  input("checkpoint").value = String(index);
  element("checkpoint-value").textContent = steps[index].toLocaleString("en");
  input("beam").value = String(state.beamSize ?? run.beam_size);
  const temperature = isSampled(run, state) ? state.temperature : 0;
  input("temperature").value = String(temperature);
  element("temperature-value").textContent = temperature ? temperature.toFixed(1) : "0: most likely word";
  getElement("all", HTMLButtonElement).disabled = state.numShown === null;
  getElement("reset", HTMLButtonElement).disabled = toAddress(state) === toAddress(withReset(state));
}

/**
 * @param {LiveRun} run
 * @param {State} state
 */
function isSampled(run, { beamSize, temperature }) {
  return (beamSize ?? run.beam_size) === 1 && temperature > 0;
}

/** @param {Changes} changes */
function describeChanges({ masked, forcedWords, weightOverrides }) {
  const counts = [
    { count: masked.length, singular: "source word hidden", plural: "source words hidden" },
    { count: Object.keys(forcedWords).length, singular: "word forced", plural: "words forced" },
    {
      count: Object.keys(weightOverrides).length,
      singular: "row of weights changed",
      plural: "rows of weights changed",
    },
  ];
  const changes = counts.filter(({ count }) => count);
  return changes.map(({ count, singular, plural }) => formatCount(count, singular, plural)).join(", ");
}

/** @param {LiveRun} run */
function showExamples(run) {
  const list = select("example");
  if (list.dataset.run !== run.name) {
    const splits = [...new Set(run.examples.map(({ split }) => split))];
    const groups = splits.map((split) => {
      const sources = run.examples.filter((example) => example.split === split).map(({ source }) => source);
      return html("optgroup", { label: split }, sources.map(textOption));
    });
    render(list, html("option", { value: "" }, "Examples"), groups);
    list.dataset.run = run.name;
  }
  list.value = "";
}

/**
 * Returns the runs that a state shows.
 *
 * @param {PageData} data
 * @param {State} state
 * @returns {Run[]}
 */
export function visibleRuns({ runs }, state) {
  return [state.run, state.compare].filter((index) => index !== null).map((index) => runs[index]);
}

/**
 * @param {RecordedRun} run
 * @param {TextState} state
 */
function showRecorded(run, state) {
  const sentence = sentenceOf(run, state);
  const side = sideOf(sentence, state);
  const [L, N] = (side && sentence.sides[side]?.shape) ?? [1, 1];
  const names = run.sentences.map(({ source_text: text }, i) => `${i + 1}. ${ellipsize(text, 100)}`);
  render(select("sentence"), options(names));
  render(select("side"), Object.keys(sentence.sides).map(textOption));
  select("sentence").value = String(run.sentences.indexOf(sentence));
  select("side").value = side ?? "";
  element("sentence-choice").hidden = run.sentences.length < 2;
  element("side-choice").hidden = Object.keys(sentence.sides).length < 2;
  if (input("find").value !== state.find) input("find").value = state.find;
  showIndices(select("layer"), L, state.layer);
  showIndices(select("head"), N, state.head);
}

/**
 * Fills a list with the mean and with numbers from 1.
 *
 * @param {HTMLSelectElement} list
 * @param {number} count
 * @param {number | null} selected index, from 0.
 */
function showIndices(list, count, selected) {
  const numbers = options(Array.from({ length: count }, (_, i) => String(i + 1)));
  render(list, html("option", { value: "" }, "mean"), numbers);
  list.value = selected !== null && selected < count ? String(selected) : "";
}

/**
 * Returns the training steps of all checkpoints, in ascending order.
 *
 * @param {Run[]} runs
 */
export function stepsOf(runs) {
  const steps = runs.flatMap((run) => (run.checkpoints ?? []).map(({ step }) => step));
  return [...new Set(steps)].sort((a, b) => a - b);
}

/** @param {string} value */
function textOption(value) {
  return html("option", { value }, value);
}

/**
 * Returns options whose values are their indices.
 *
 * @param {string[]} names
 */
function options(names) {
  return names.map((name, i) => html("option", { value: i }, name));
}
