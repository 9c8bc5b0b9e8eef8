// The numbers of a decoder step.

import { norm, topK } from "./linalg.mjs";

/**
 * @import { Attention, Shape } from "./data"
 * @import { StageName } from "./formulas.mjs"
 * @import { Vector } from "./linalg.mjs"
 * @import { Translation } from "./translation.mjs"
 *
 * @typedef {object} Stage
 * @property {Vector} [vector]
 * @property {number} [number]
 * @property {Term[]} [terms] the largest terms of a score.
 * @property {string} [note] how the user has changed the number.
 *
 * @typedef {{unit: number, query: number, key: number, factor: number, term: number}} Term
 */

const NUM_TERMS = 5;

/**
 * Returns the numbers of a step and a source word.
 *
 * @param {Shape} shape
 * @param {Translation} translation
 * @param {number} t the target position.
 * @param {number} s the source position.
 * @returns {Partial<Record<StageName, Stage>>}
 */
export function explain(shape, translation, t, s) {
  const { query, scores, weights, context, state, features } = translation.steps[t];
  const stages = { Context: { vector: context }, State: { vector: state }, Features: { vector: features } };
  if (shape.attention === "none" || !query || !scores || !weights) return stages;
  const key = translation.keys[s];
  return {
    Query: { vector: query },
    Key: { vector: key },
    Score: { number: scores[s], terms: largestTerms(translation, shape.attention, query, key) },
    Weight: { number: weights[s], note: describeOverride(translation, t, s) },
    ...stages,
  };
}

/**
 * Returns why a weight is not the softmax of the scores; undefined if it is.
 *
 * @param {Translation} translation
 * @param {number} t the target position.
 * @param {number} s the source position.
 */
function describeOverride({ changes }, t, s) {
  const override = changes.weightOverrides[t];
  if (override === "uniform") return "you set uniform weights";
  if (override !== undefined) return "you set weight 1 on one word";
  return changes.masked.includes(s) ? "0, because you hid this word" : undefined;
}

/**
 * Returns the terms of a score that contribute most. A bilinear score is not a sum over units.
 *
 * @param {Translation} translation
 * @param {Attention} attention
 * @param {Vector} query
 * @param {Vector} key
 * @returns {Term[]}
 */
function largestTerms({ scoreVector, scale = 1 }, attention, query, key) {
  if (attention === "bilinear") return [];
  /** @type {Record<Exclude<Attention, "bilinear">, (i: number) => number>} */
  const factors = {
    additive: (i) => scoreVector?.[i] ?? 0,
    dot_product: () => 1,
    scaled_dot_product: () => 1 / Math.sqrt(query.length),
    cosine: () => scale / (norm(query) * norm(key)),
  };
  const factor = factors[attention];
  const terms = Array.from(query, (value, i) =>
    attention === "additive" ? factor(i) * Math.tanh(value + key[i]) : factor(i) * value * key[i],
  );
  return topK(terms.map(Math.abs), NUM_TERMS).map((unit) => ({
    unit,
    query: query[unit],
    key: key[unit],
    factor: factor(unit),
    term: terms[unit],
  }));
}
