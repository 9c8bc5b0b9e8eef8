// The view of a run whose attention was recorded.

import { arcs } from "./arcs.mjs";
import { unpackWeights } from "./decode_arrays.mjs";
import { cellWithin } from "./display.mjs";
import { html } from "./dom.mjs";
import { describeFound } from "./find.mjs";
import { heatmap, isTable } from "./heatmap.mjs";
import { addHighlight } from "./highlight.mjs";
import { alignmentErrorRate } from "./metrics.mjs";
import { overview } from "./overview.mjs";
import { strengthsOf } from "./weight_range.mjs";

/**
 * @import { RecordedRun, Sentence, Side, WeightsShape } from "./data"
 * @import { Display, Grid, View } from "./display.mjs"
 * @import { TextState } from "./translation.mjs"
 * @import { State } from "./url_state.mjs"
 *
 * @typedef {{shape: WeightsShape, values: Float32Array}} RecordedWeights
 *
 * @typedef {Partial<Record<Side, RecordedWeights>>} RecordedSides
 */

const MAX_TEXT_LENGTH = 300;

/**
 * Returns the weights of a sentence.
 *
 * @param {Sentence} sentence
 * @returns {Promise<RecordedSides>}
 */
export async function unpackSentence({ sides }) {
  /** @type {RecordedSides} */
  const unpacked = {};
  for (const side of /** @type {const} */ (["decoder", "encoder"])) {
    const packed = sides[side];
    if (packed) unpacked[side] = { shape: packed.shape, values: await unpackWeights(packed) };
  }
  return unpacked;
}

/**
 * Returns the recorded sentence with the text of a state, or the first sentence.
 *
 * @param {RecordedRun} run
 * @param {TextState} state
 */
export function sentenceOf({ sentences }, { text }) {
  return sentences.find(({ source_text }) => source_text.trim() === text.trim()) ?? sentences[0];
}

/**
 * Returns the side of a sentence that a state shows; null without attention.
 *
 * @param {Sentence} sentence
 * @param {State} state
 * @returns {Side | null}
 */
export function sideOf({ sides }, state) {
  if (sides[state.side]) return state.side;
  return sides.decoder ? "decoder" : sides.encoder ? "encoder" : null;
}

/**
 * Draws the recorded attention of a sentence.
 *
 * @param {Display<RecordedRun>} display
 * @param {RecordedSides} sides of the sentence.
 * @returns {View}
 */
export function recordedView(display, sides) {
  const { run, state } = display;
  const sentence = sentenceOf(run, state);
  const side = sideOf(sentence, state);
  const weights = side && sides[side];
  const isSelected = sentence.source_text.trim() === state.text.trim();
  const grid = weights ? gridOf(sentence, side, weights, state) : null;
  const article = html(
    "article",
    {},
    html("h2", {}, run.name, html("small", {}, ` ${run.summary}`)),
    isSelected ? null : html("p", { class: "source-text" }, shorten(sentence.source_text)),
    html("p", { class: "text" }, shorten(sentence.target_text)),
    html(
      "div",
      { class: "notes" },
      run.why && html("p", {}, `Recorded, because the page cannot run this model: ${run.why}.`),
      html("p", {}, grid && side ? describeSide(run, grid, side) : "This model has no attention."),
      grid && html("p", {}, describeFound(state.find, grid.rows, grid.columns)),
    ),
    weights && overview(display, weights),
    grid && (state.view === "arcs" && isTable(grid) ? arcs(display, grid) : heatmap(display, grid)),
  );
  if (grid && isTable(grid)) addHighlight(article, strengthsOf(grid.weights), grid.cell);
  return { article, panel: null, spoken: shorten(sentence.source_text) };
}

/**
 * @param {Sentence} sentence
 * @param {Side} side
 * @param {RecordedWeights} recorded
 * @param {State} state
 * @returns {Grid}
 */
function gridOf(sentence, side, recorded, { layer, head, cell, find }) {
  const { columns } = sentence;
  const rows = side === "decoder" ? sentence.rows : columns;
  const links = (side === "decoder" && sentence.links) || [];
  const weights = meanWeights(recorded, layer, head);
  return { weights, rows, columns, links, found: find, cell: cellWithin(cell, rows.length, columns.length) };
}

/**
 * @param {RecordedRun} run
 * @param {Grid} grid
 * @param {Side} side
 */
function describeSide({ why }, { weights, links }, side) {
  if (side === "encoder") {
    return why ? "Self-attention of the encoder, among the source words." : "Self-attention.";
  }
  const rate = links.length ? alignmentErrorRate(weights, links) : null;
  if (rate === null) return null;
  return `Weights for the reference translation. Alignment error ${rate.toFixed(2)}.`;
}

/**
 * Returns the weights of a layer and a head. Null selects the mean of all.
 *
 * @param {RecordedWeights} recorded
 * @param {number | null} layer
 * @param {number | null} head
 */
function meanWeights({ shape: [L, N, T, S], values }, layer, head) {
  const layers = layer === null || layer >= L ? [...Array(L).keys()] : [layer];
  const heads = head === null || head >= N ? [...Array(N).keys()] : [head];
  const sums = new Float64Array(T * S);
  for (const l of layers) {
    for (const n of heads) {
      const offset = (l * N + n) * T * S;
      for (let i = 0; i < sums.length; i++) sums[i] += values[offset + i];
    }
  }
  const count = layers.length * heads.length;
  return Array.from({ length: T }, (_, t) => sums.subarray(t * S, (t + 1) * S).map((sum) => sum / count));
}

/** @param {string} text */
function shorten(text) {
  return text.length > MAX_TEXT_LENGTH ? `${text.slice(0, MAX_TEXT_LENGTH)}…` : text;
}
