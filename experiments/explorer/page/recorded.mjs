// The part of the page that shows attention which was recorded, of any model.

import { addLights } from "./lights.mjs";
import { alignmentErrorRate } from "./alignment.mjs";
import { unpackWeights } from "./arrays.mjs";
import { arcs } from "./arcs.mjs";
import { html } from "./dom.mjs";
import { LARGEST_TABLE, map } from "./map.mjs";
import { strengthsOf, toldRange } from "./strengths.mjs";

/** Returns the weights of a sentence, for each of its sides the numbers and their shape [L, N, T, S]. */
export async function unpackSentence(sentence) {
  const sides = Object.entries(sentence.sides).map(async ([side, { shape, weights, low, high }]) => [
    side,
    { shape, numbers: await unpackWeights(weights, shape, [low, high]) },
  ]);
  return Object.fromEntries(await Promise.all(sides));
}

/** Returns the recorded sentence that is a state's text, or the first one. */
export function sentenceOf(run, state) {
  return run.sentences.find(({ source_text: text }) => text.trim() === state.text.trim()) ?? run.sentences[0];
}

/** Returns which side of a sentence a state shows: of the decoder or the encoder; undefined if there is none. */
export function sideOf(sentence, state) {
  return sentence.sides[state.side] ? state.side : Object.keys(sentence.sides)[0];
}

/** Returns the recorded attention of a sentence, as `live` does: of the state's side, layer and head. */
export function recorded(run, sentence, sides, state, place, change) {
  const side = sideOf(sentence, state);
  const head = [
    html("h2", {}, run.name, html("small", {}, ` ${run.summary}`)),
    html("p", { class: "facts" }, `Recorded, for the page cannot run this model: ${run.why}.`),
    html("p", { class: "text" }, shortened(sentence.source_text)),
    html("p", { class: "text" }, shortened(sentence.target_text)),
  ];
  if (!side) return { article: html("article", {}, head, html("p", {}, "This model has no attention.")), panel: null };
  const { shape, numbers } = sides[side];
  const isDecoder = side === "decoder";
  const rows = isDecoder ? sentence.rows : sentence.columns;
  const weights = chosen(numbers, shape, state.layer, state.head);
  const isThere = state.cell && state.cell[0] < rows.length && state.cell[1] < sentence.columns.length;
  const cell = isThere ? state.cell : null;
  const links = (isDecoder && sentence.links) || [];
  const choose = (next, burst) => change({ cell: next }, burst);
  const given = { weights, rows, columns: sentence.columns, links, cell, choose, place };
  const isSmall = rows.length * sentence.columns.length <= LARGEST_TABLE;
  const article = html(
    "article",
    {},
    head,
    html("p", { class: "truth" }, truth(weights, links, isDecoder)),
    html("p", { class: "facts" }, toldRange(weights)),
    state.view === "arcs" && isSmall ? arcs(given) : map(given),
  );
  if (isSmall) addLights(article, strengthsOf(weights), cell);
  return { article, panel: null };
}

function truth(weights, links, isDecoder) {
  if (!isDecoder) return "Rows and columns are both words of the source: each row looks at the columns.";
  if (!links.length) return null;
  const rate = alignmentErrorRate(weights, links);
  return `Along the true translation. Alignment error ${rate.toFixed(2)}; outlined are true links.`;
}

/** Returns the rows of one layer and head, or the mean over those for which null stands. */
function chosen(numbers, [L, N, T, S], layer, head) {
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

function shortened(text) {
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}
