// What a step computes, in the order of the paper: Bahdanau et al. 2015, A.1.2 and A.2.2. No elements, only values.

import { dot, largest } from "./linalg.mjs";

/**
 * @import { Attention } from "./data"
 * @import { Vector } from "./linalg.mjs"
 * @import { Model, Source, Step } from "./model.mjs"
 * @import { Row } from "./url_state.mjs"
 *
 * @typedef {object} Stage of a step.
 * @property {string} title
 * @property {string} formula
 * @property {Vector} [vector]
 * @property {number} [number]
 * @property {Term[]} [terms]
 *
 * @typedef {{unit: number, query: number, key: number, factor: number, term: number}} Term of a score.
 *
 * @typedef {{masked: number[], row: Row | undefined}} Changes of a step's attention by the user.
 */

/** @type {Record<Attention, {query: string, key: string, score: string}>} */
const KINDS = {
  additive: { query: "W s", key: "U h", score: "e = v · tanh(W s + U h)" },
  dot_product: { query: "W s", key: "U h", score: "e = W s · U h" },
  scaled_dot_product: { query: "W s", key: "U h", score: "e = W s · U h / √width" },
  cosine: { query: "W s", key: "U h", score: "e = scale × cosine of the angle between W s and U h" },
  bilinear: { query: "s", key: "h", score: "e = s · W h" },
};
const SHOWN = 5;

/**
 * Returns the stages of one step and one source word.
 *
 * @param {Model} model
 * @param {Step} step
 * @param {Source} source what is attended to.
 * @param {number} s the source position.
 * @param {Changes} changes
 * @returns {Stage[]}
 */
export function explain(model, step, source, s, changes) {
  const { attend_order } = model.shape;
  const read = attend_order === "before" ? "the word before and the context" : "the word before";
  const next = { title: "State", formula: `s' = GRU(s, ${read})`, vector: step.state.layers.at(-1) };
  const readout = { title: "Read-out", formula: "tanh(W [s'; c; the word before])", vector: step.features };
  const attending = attentionStages(model, step, source.keys[s], s, changes);
  return attend_order === "before" ? [...attending, next, readout] : [next, ...attending, readout];
}

/**
 * @param {Model} model
 * @param {Step} step
 * @param {Vector} key
 * @param {number} s the source position.
 * @param {Changes} changes
 * @returns {Stage[]}
 */
function attentionStages(model, step, key, s, changes) {
  const { attention, attend_order } = model.shape;
  const { query, context } = step;
  if (attention === "none" || !query) {
    return [{ title: "Context", formula: "c, the encoder's summary, at every step", vector: context }];
  }
  const formulas = KINDS[attention];
  const state =
    attend_order === "before" ? "the decoder's state before this word" : "the state after the word before";
  const terms = termsOf(model, attention, query, key);
  return [
    { title: "Query", formula: `${formulas.query}, of s, ${state}`, vector: query },
    { title: "Key", formula: `${formulas.key}, of h, the source word in its sentence`, vector: key },
    { title: "Score", formula: formulas.score, number: step.scores[s], terms },
    { title: "Weight", formula: weightOf(s, changes), number: step.weights[s] },
    { title: "Context", formula: "c = sum of a h of all source words", vector: context },
  ];
}

/**
 * Returns how a weight was computed, in words.
 *
 * @param {number} s the source position.
 * @param {Changes} changes
 */
function weightOf(s, { masked, row }) {
  if (row === "flat") return "equal on all that may be looked at: you chose so";
  if (row !== undefined) return "all on one word: you chose so";
  if (masked.includes(s)) return "none, for you hid this word from the looking; the encoder has read it";
  const which = masked.length ? "that are not hidden" : "and the end";
  return `a = exp(e) / sum of exp(e) of all source words ${which}`;
}

/**
 * Returns the units that weigh most in a score, the heaviest first; none if it is not a sum over them.
 *
 * @param {Model} model
 * @param {Attention} attention
 * @param {Vector} query
 * @param {Vector} key
 * @returns {Term[]}
 */
function termsOf({ arrays: { vectors } }, attention, query, key) {
  if (attention === "bilinear") return [];
  /** @type {Record<Exclude<Attention, "bilinear">, (i: number) => number>} */
  const factors = {
    additive: (i) => vectors["decoder/attention_layer/score_vector"][i],
    dot_product: () => 1,
    scaled_dot_product: () => 1 / Math.sqrt(query.length),
    cosine: () => vectors["decoder/attention_layer/scale"][0] / Math.sqrt(dot(query, query) * dot(key, key)),
  };
  const factor = factors[attention];
  const terms = Array.from(query, (number, i) =>
    attention === "additive" ? factor(i) * Math.tanh(number + key[i]) : factor(i) * number * key[i],
  );
  return largest(terms.map(Math.abs), SHOWN).map((unit) => ({
    unit,
    query: query[unit],
    key: key[unit],
    factor: factor(unit),
    term: terms[unit],
  }));
}
