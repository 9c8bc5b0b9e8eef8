// The attention of the decoder: scores, weights and context, as in attention/scores.

import { add, dot, norm, softmax, tanh, vecMat, weightedSum } from "./linalg.mjs";

/**
 * @import { Attention } from "./data"
 * @import { Arrays } from "./decode_arrays.mjs"
 * @import { Vector } from "./linalg.mjs"
 * @import { Model, Source } from "./model.mjs"
 * @import { WeightOverride } from "./url_state.mjs"
 *
 * @typedef {object} AttentionOutput
 * @property {Vector} query
 * @property {number[]} scores
 * @property {Vector} weights
 * @property {Vector} context
 *
 * @typedef {object} NoAttention the output of a model without attention.
 * @property {null} query
 * @property {null} scores
 * @property {null} weights
 * @property {Vector} context the final state of the encoder.
 *
 * @typedef {object} StepIntervention the user's changes of the attention of one step.
 * @property {Set<number>} masked source positions that cannot be attended to.
 * @property {WeightOverride | null} weightOverride replaces the computed weights.
 */

/** @type {Record<Attention, (arrays: Arrays, query: Vector, keys: Vector[]) => number[]>} */
const SCORES = {
  additive: ({ vectors }, query, keys) =>
    keys.map((key) => dot(vectors["decoder/attention_layer/score_vector"], tanh(add(query, key)))),
  dot_product: (_, query, keys) => keys.map((key) => dot(query, key)),
  scaled_dot_product: (_, query, keys) => keys.map((key) => dot(query, key) / Math.sqrt(query.length)),
  cosine: ({ vectors }, query, keys) => {
    const unitQuery = normalize(query);
    return keys.map((key) => vectors["decoder/attention_layer/scale"][0] * dot(unitQuery, normalize(key)));
  },
  bilinear: ({ matrices }, query, keys) => {
    const projectedQuery = vecMat(query, matrices["decoder/attention_layer/matrix"]);
    return keys.map((key) => dot(projectedQuery, key));
  },
};

/**
 * Attends to the source. The weights are the softmax of the scores, unless the user has changed them.
 *
 * @param {Model} model
 * @param {Vector} state of the decoder.
 * @param {Source} source
 * @param {StepIntervention} intervention
 * @returns {AttentionOutput | NoAttention}
 */
export function attend({ arrays, shape }, state, source, { masked, weightOverride }) {
  if (shape.attention === "none") {
    return { query: null, scores: null, weights: null, context: source.finalState };
  }
  const kernel = arrays.matrices["decoder/attention_layer/query/kernel"];
  const query = kernel ? vecMat(state, kernel) : state;
  const scores = SCORES[shape.attention](arrays, query, source.keys);
  const maskedScores = scores.map((score, s) => (masked.has(s) ? -Infinity : score));
  let weights = softmax(maskedScores);
  if (weightOverride === "uniform") weights = softmax(scores.map((_, s) => (masked.has(s) ? -Infinity : 0)));
  if (typeof weightOverride === "number" && weightOverride < scores.length) {
    weights = weights.map((_, s) => Number(s === weightOverride));
  }
  return { query, scores, weights, context: weightedSum(weights, source.memory) };
}

/** @param {Vector} vector */
function normalize(vector) {
  const length = norm(vector);
  return length ? vector.map((value) => value / length) : vector;
}
