// The part of the page that shows attention which was recorded, of any model.

import { arcs } from "./arcs.mjs";
import { unpackWeights } from "./decode_arrays.mjs";
import { cellWithin } from "./display.mjs";
import { html } from "./dom.mjs";
import { heatmap, LARGEST_TABLE } from "./heatmap.mjs";
import { addHighlight } from "./highlight.mjs";
import { alignmentErrorRate } from "./metrics.mjs";
import { strengthsOf, toldRange } from "./strengths.mjs";

/**
 * @import { Cell, RecordedRun, Sentence, Side, WeightsShape } from "./data"
 * @import { Display, Grid, View } from "./display.mjs"
 * @import { Vector } from "./linalg.mjs"
 * @import { TextState } from "./translation.mjs"
 * @import { State } from "./url_state.mjs"
 *
 * @typedef {object} Recorded weights.
 * @property {WeightsShape} shape
 * @property {Float32Array} numbers
 *
 * @typedef {Partial<Record<Side, Recorded>>} RecordedSides
 */

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
    if (packed) unpacked[side] = { shape: packed.shape, numbers: await unpackWeights(packed) };
  }
  return unpacked;
}

/**
 * Returns the recorded sentence that is a state's text, or the first one.
 *
 * @param {RecordedRun} run
 * @param {TextState} state
 */
export function sentenceOf(run, state) {
  return run.sentences.find(({ source_text: text }) => text.trim() === state.text.trim()) ?? run.sentences[0];
}

/**
 * Returns which side of a sentence a state shows; null if there is none.
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
 * Draws the recorded attention of a sentence: of the state's side, layer and head.
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
  const head = [
    html("h2", {}, run.name, html("small", {}, ` ${run.summary}`)),
    html("p", { class: "facts" }, `Recorded, for the page cannot run this model: ${run.why}.`),
    html("p", { class: "text" }, shortened(sentence.source_text)),
    html("p", { class: "text" }, shortened(sentence.target_text)),
  ];
  const article = html("article", {}, head);
  if (weights) addAttention(article, display, gridOf(sentence, side, weights, state), side);
  else article.append(html("p", {}, "This model has no attention."));
  return { article, panel: null, spoken: shortened(sentence.source_text) };
}

/**
 * @param {Sentence} sentence
 * @param {Side} side
 * @param {Recorded} recorded
 * @param {State} state
 * @returns {Grid}
 */
function gridOf(sentence, side, recorded, { layer, head, cell }) {
  const { columns } = sentence;
  const rows = side === "decoder" ? sentence.rows : columns;
  const links = (side === "decoder" && sentence.links) || [];
  const weights = meanOf(recorded, layer, head);
  return { weights, rows, columns, links, cell: cellWithin(cell, rows.length, columns.length) };
}

/**
 * @param {Element} article
 * @param {Display<RecordedRun>} display
 * @param {Grid} grid
 * @param {Side} side
 */
function addAttention(article, display, grid, side) {
  const { weights, rows, columns, links, cell } = grid;
  const isSmall = rows.length * columns.length <= LARGEST_TABLE;
  article.append(
    html("p", { class: "truth" }, truth(weights, links, side)),
    html("p", { class: "facts" }, toldRange(weights)),
    display.state.view === "arcs" && isSmall ? arcs(display, grid) : heatmap(display, grid),
  );
  if (isSmall) addHighlight(article, strengthsOf(weights), cell);
}

/**
 * @param {Vector[]} weights
 * @param {Cell[]} links
 * @param {Side} side
 */
function truth(weights, links, side) {
  if (side === "encoder")
    return "Rows and columns are both words of the source: each row looks at the columns.";
  const rate = links.length ? alignmentErrorRate(weights, links) : null;
  if (rate === null) return null;
  return `Along the true translation. Alignment error ${rate.toFixed(2)}; outlined are true links.`;
}

/**
 * Returns the rows of one layer and head, or the mean over those that are null.
 *
 * @param {Recorded} recorded
 * @param {number | null} layer
 * @param {number | null} head
 */
function meanOf({ shape: [L, N, T, S], numbers }, layer, head) {
  const layers = layer === null || layer >= L ? [...Array(L).keys()] : [layer];
  const heads = head === null || head >= N ? [...Array(N).keys()] : [head];
  const sums = new Float64Array(T * S);
  for (const l of layers) {
    for (const n of heads) {
      const first = (l * N + n) * T * S;
      for (let i = 0; i < sums.length; i++) sums[i] += numbers[first + i];
    }
  }
  const count = layers.length * heads.length;
  return Array.from({ length: T }, (_, t) => sums.subarray(t * S, (t + 1) * S).map((sum) => sum / count));
}

/** @param {string} text */
function shortened(text) {
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}
