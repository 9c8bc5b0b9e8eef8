// The arguments of the functions that draw a run.

import { argmax } from "./linalg.mjs";
import { detokenize } from "./tokenizer.mjs";

/**
 * @import { Cell, LiveRun, RecordedRun } from "./data"
 * @import { Vector } from "./linalg.mjs"
 * @import { TextState, Translation } from "./translation.mjs"
 * @import { State } from "./url_state.mjs"
 *
 * @callback Change changes the state of the page.
 * @param {Partial<State>} changes
 * @param {string} [group] see `HistoryEntries`.
 * @returns {void}
 */

/**
 * A run with the state of the page. The `data-key` of its elements starts with `id`.
 *
 * @template {LiveRun | RecordedRun} Run
 * @typedef {Readonly<{run: Run, state: TextState, id: string, change: Change}>} Display
 */

/**
 * The whole translation, its first steps that are shown, and the selected cell if it is one of them.
 *
 * @typedef {Readonly<{whole: Translation, translation: Translation, cell: Cell | null}>} Translated
 * @typedef {Display<LiveRun> & Translated} TranslationDisplay
 */

/**
 * @typedef {object} Grid the contents of a heatmap, or of arcs.
 * @property {Vector[]} weights a row for each target word.
 * @property {string[]} rows
 * @property {string[]} columns
 * @property {string[]} [hiddenRows] target words that are not shown, but for which space is reserved.
 * @property {Cell[]} links the true alignment, where it is available.
 * @property {Cell | null} cell the selected one.
 * @property {string} [found] a text; the words that contain it are marked.
 * @property {WordActions} [actions] of the words; without them, words are not buttons.
 *
 * @typedef {object} WordActions
 * @property {(s: number) => void} hide hides a source word, or shows it again.
 * @property {(t: number) => void} open shows the details of a step.
 * @property {number[]} masked the hidden source words.
 *
 * @typedef {object} View
 * @property {Element} article
 * @property {Element | null} panel the explanation of a step.
 * @property {string} spoken text for screen readers.
 */

/**
 * @param {Display<LiveRun>} display
 * @param {Translation} whole
 * @returns {TranslationDisplay}
 */
export function withTranslation(display, whole) {
  const translation = firstSteps(display.run, whole, display.state.numShown ?? Infinity);
  const cell = cellWithin(display.state.cell, translation.rows.length, translation.columns.length);
  return Object.freeze({ ...display, whole, translation, cell });
}

/**
 * Returns the first steps of a translation.
 *
 * @param {LiveRun} run
 * @param {Translation} translation
 * @param {number} count
 * @returns {Translation}
 */
function firstSteps(run, translation, count) {
  if (count >= translation.rows.length) return translation;
  const words = translation.words.slice(0, count);
  return {
    ...translation,
    isComplete: false,
    isTruncated: false,
    steps: translation.steps.slice(0, count),
    words,
    ids: translation.ids.slice(0, count),
    rows: translation.rows.slice(0, count),
    text: detokenize(run.target, words),
    weights: translation.weights?.slice(0, count) ?? null,
    levels: translation.levels.slice(0, count),
  };
}

/**
 * Returns a cell, or null if it is outside the grid.
 *
 * @param {Cell | null} cell
 * @param {number} numRows
 * @param {number} numColumns
 */
export function cellWithin(cell, numRows, numColumns) {
  return cell && cell[0] < numRows && cell[1] < numColumns ? cell : null;
}

/**
 * Returns the cell of a step and the source word with the largest weight.
 *
 * @param {Translation} translation
 * @param {number} t the target position.
 * @returns {Cell}
 */
export function strongestCell({ weights }, t) {
  return [t, weights ? argmax(weights[t]) : 0];
}
