// The events of the controls.

import { stepsOf, viewRadios, visibleRuns } from "./control_values.mjs";
import { getElement } from "./dom.mjs";
import { numWords, stepChanges } from "./player.mjs";
import { withReset, withText } from "./url_state.mjs";

/**
 * @import { Page } from "./page.mjs"
 * @import { State } from "./url_state.mjs"
 */

const MAX_BEAM_SIZE = 10;

const button = (/** @type {string} */ id) => getElement(id, HTMLButtonElement);
const input = (/** @type {string} */ id) => getElement(id, HTMLInputElement);
const select = (/** @type {string} */ id) => getElement(id, HTMLSelectElement);

/**
 * Changes the state of a page when the user changes a control.
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

  getElement("controls", HTMLElement).addEventListener("submit", (event) => event.preventDefault());
  on(getElement("text", HTMLTextAreaElement), "input", (value, state) => withText(state, value));
  on(select("example"), "change", (value, state) => (value ? withText(state, value) : {}));
  on(select("run"), "change", (value, state) => ({ ...withText(state, state.text), run: Number(value) }));
  on(select("compare"), "change", (value) => ({ compare: optionIndex(value) }));
  on(input("checkpoint"), "input", (value) => ({ checkpoint: stepsOf(page.data.runs)[Number(value)] }));
  on(input("beam"), "change", (value) => ({ beamSize: parseBeamSize(value), hypothesis: 0, cell: null }));
  on(input("temperature"), "input", (value) => ({
    temperature: Number(value),
    beamSize: 1,
    hypothesis: 0,
  }));
  onClick("sample", ({ seed }) => ({ seed: (seed + 1) % 1e9 }));
  onClick("next", ({ numShown }) => stepChanges(page, (numShown ?? 0) + 1));
  onClick("previous", ({ numShown }) =>
    stepChanges(page, Math.min(numShown ?? Infinity, numWords(page)) - 1),
  );
  onClick("all", () => ({ numShown: null }));
  onClick("reset", withReset);
  button("play").addEventListener("click", () => page.player.toggle());
  on(select("sentence"), "change", (value, state) => {
    const run = visibleRuns(page.data, state).find(({ sentences }) => sentences);
    return run?.sentences ? withText(state, run.sentences[Number(value)].source_text) : {};
  });
  on(select("side"), "change", (value) => ({
    side: value === "encoder" ? "encoder" : "decoder",
    cell: null,
  }));
  on(input("find"), "input", (value) => ({ find: value }));
  on(select("layer"), "change", (value) => ({ layer: optionIndex(value) }));
  on(select("head"), "change", (value) => ({ head: optionIndex(value) }));
  for (const radio of viewRadios()) {
    on(radio, "change", (value) => ({ view: value === "arcs" ? "arcs" : "heatmap" }));
  }
  getElement("results", HTMLElement).addEventListener("keydown", ({ key }) => {
    if (key === "Escape" && page.state.cell) page.change({ cell: null });
  });
}

/** @param {string} value an index, or "" for none. */
function optionIndex(value) {
  return value === "" ? null : Number(value);
}

/** @param {string} value */
function parseBeamSize(value) {
  return Math.min(Math.max(Math.round(Number(value)) || 1, 1), MAX_BEAM_SIZE);
}
