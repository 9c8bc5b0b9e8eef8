// What the functions that draw a run are given: one object, which does not change.

import { firstSteps } from "./translation.mjs";

/**
 * @import { Cell, LiveRun, RecordedRun } from "./data"
 * @import { Vector } from "./linalg.mjs"
 * @import { TextState, Translation } from "./translation.mjs"
 * @import { State } from "./url_state.mjs"
 *
 * @callback Change changes what the page shows.
 * @param {Partial<State>} changes
 * @param {string} [burst] names changes that follow each other quickly; see `HistoryEntries`.
 * @returns {void}
 */

/**
 * A run as the page displays it. The keys of its elements begin with `id`, which stands for its place on the page.
 *
 * @template {LiveRun | RecordedRun} Run
 * @typedef {Readonly<{run: Run, state: TextState, id: string, change: Change}>} Display
 */

/**
 * A run and the translation of its text: the `whole`, and as many of its first steps as are shown. `cell` is the
 * selected one, if these steps have it.
 *
 * @typedef {Readonly<{whole: Translation, translation: Translation, cell: Cell | null}>} Translated
 * @typedef {Display<LiveRun> & Translated} TranslationDisplay
 */

/**
 * @typedef {object} Grid weights, as a heatmap or arcs draw them.
 * @property {Vector[]} weights one row for each target word.
 * @property {string[]} rows what stands beside them; of the decoder, the words of the translation.
 * @property {string[]} columns what stands above; the words of the source.
 * @property {Cell[]} links true ones, where they are known.
 * @property {Cell | null} cell the selected one.
 * @property {number} [room] for how many rows there is room: those of the whole translation.
 *
 * @typedef {object} View what is drawn of a run.
 * @property {Element} article
 * @property {Element | null} panel of the open step.
 * @property {string} spoken what a screen reader says of it.
 */

/**
 * Returns the display of a run with a translation of its text.
 *
 * @param {Display<LiveRun>} display
 * @param {Translation} whole
 * @returns {TranslationDisplay}
 */
export function withTranslation(display, whole) {
  const translation = firstSteps(display.run, whole, display.state.shown ?? Infinity);
  const cell = cellWithin(display.state.cell, translation.rows.length, translation.columns.length);
  return Object.freeze({ ...display, whole, translation, cell });
}

/**
 * Returns the cell of a state, null if there are no such row and column.
 *
 * @param {Cell | null} cell
 * @param {number} numRows
 * @param {number} numColumns
 */
export function cellWithin(cell, numRows, numColumns) {
  return cell && cell[0] < numRows && cell[1] < numColumns ? cell : null;
}
