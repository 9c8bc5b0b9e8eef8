// The recurrent translator: what attention/models computes, for one sentence, one step at a time.

import {
  concatenate,
  dot,
  mean,
  plus,
  rowOf,
  sigmoid,
  softmax,
  tanh,
  times,
  timesRows,
  weightedSum,
} from "./linalg.mjs";

/**
 * @import { Attention, Shape } from "./data"
 * @import { Arrays } from "./decode_arrays.mjs"
 * @import { Vector } from "./linalg.mjs"
 * @import { Row } from "./url_state.mjs"
 *
 * @typedef {{shape: Shape, arrays: Arrays}} Model
 *
 * @typedef {object} Source what the decoder attends to.
 * @property {Vector[]} memory the encoder's output of each token.
 * @property {Vector[]} keys one for each token.
 * @property {Vector} summary the encoder's final state.
 *
 * @typedef {object} DecoderState
 * @property {Vector[]} layers
 * @property {Vector | null} fed the last features, with input feeding.
 *
 * @typedef {object} AttentionOutput
 * @property {Vector} query
 * @property {number[]} scores
 * @property {Vector} weights
 * @property {Vector} context
 *
 * @typedef {object} Unattended of a model without attention.
 * @property {null} query
 * @property {null} scores
 * @property {null} weights
 * @property {Vector} context
 *
 * @typedef {object} Readout
 * @property {DecoderState} state the next one.
 * @property {Vector} features
 * @property {Vector} logits
 *
 * @typedef {Readout & (AttentionOutput | Unattended)} Step what a step of the decoder computes.
 *
 * @typedef {object} Intervention the user's change of one step's attention.
 * @property {Set<number>} masked source positions that may not be attended to.
 * @property {Row | null} row the weights.
 */

/** @type {Record<Attention, (arrays: Arrays, query: Vector, keys: Vector[]) => number[]>} as attention/scores. */
const SCORES = {
  additive: ({ vectors }, query, keys) =>
    keys.map((key) => dot(vectors["decoder/attention_layer/score_vector"], tanh(plus(query, key)))),
  dot_product: (_, query, keys) => keys.map((key) => dot(query, key)),
  scaled_dot_product: (_, query, keys) => keys.map((key) => dot(query, key) / Math.sqrt(query.length)),
  cosine: ({ vectors }, query, keys) => {
    const unit = toUnit(query);
    return keys.map((key) => vectors["decoder/attention_layer/scale"][0] * dot(unit, toUnit(key)));
  },
  bilinear: ({ matrices }, query, keys) => {
    const turned = times(query, matrices["decoder/attention_layer/matrix"]);
    return keys.map((key) => dot(turned, key));
  },
};

/**
 * Encodes tokens with a bidirectional GRU.
 *
 * @param {Model} model
 * @param {number[]} ids
 * @returns {Source}
 */
export function encode(model, ids) {
  const { arrays, shape } = model;
  /** @type {Vector[]} */
  let layer = ids.map((id) => rowOf(arrays.matrices["encoder/embedding/embedding"], id));
  let summary = new Float64Array();
  for (let i = 0; i < shape.num_layers; i++) {
    const ahead = read(arrays, `encoder/forward_${i}`, layer);
    const behind = read(arrays, `encoder/backward_${i}`, [...layer].reverse()).reverse();
    summary = concatenate(ahead[ahead.length - 1], behind[0]);
    let outputs = layer.map((_, s) => concatenate(ahead[s], behind[s]));
    if (shape.residual && i > 0) outputs = outputs.map((output, s) => plus(output, layer[s]));
    layer = shape.layer_norm ? outputs.map((output) => norm(arrays, `encoder/norm_${i}`, output)) : outputs;
  }
  const kernel = arrays.matrices["decoder/attention_layer/key/kernel"];
  return { memory: layer, keys: kernel ? layer.map((vector) => times(vector, kernel)) : layer, summary };
}

/**
 * Returns the decoder's state before its first step.
 *
 * @param {Model} model
 * @param {Source} source
 * @returns {DecoderState}
 */
export function start(model, source) {
  const { arrays, shape } = model;
  const layers = Array.from({ length: shape.num_decoder_layers }, (_, i) =>
    tanh(linear(arrays, i ? `decoder/initial_${i}` : "decoder/initial", source.summary)),
  );
  const fed = shape.input_feeding ? new Float64Array(arrays.vectors["decoder/readout/bias"].length) : null;
  return { layers, fed };
}

/**
 * Reads one token and computes the logits of the next one.
 *
 * @param {Model} model
 * @param {DecoderState} state from `start` or the previous step.
 * @param {number} token the previous one.
 * @param {Source} source from `encode`.
 * @param {Intervention} intervention
 * @returns {Step}
 */
export function step(model, state, token, source, intervention) {
  const { arrays, shape } = model;
  const { matrices, vectors } = arrays;
  const embedded = rowOf(matrices["decoder/embedding/embedding"], token);
  const input = matrices["decoder/cell/input"];
  let pre = plus(times(embedded, input), vectors["decoder/cell/bias"]);
  let row = embedded.length;
  const before =
    shape.attend_order === "before" ? attend(model, state.layers[0], source, intervention) : null;
  if (before) {
    pre = plus(pre, times(before.context, input, row));
    row += before.context.length;
  }
  if (state.fed) pre = plus(pre, times(state.fed, input, row));
  const layers = [gruStep(arrays, "decoder/cell", state.layers[0], pre)];
  let output = shape.layer_norm ? norm(arrays, "decoder/norm_0", layers[0]) : layers[0];
  for (let i = 1; i < shape.num_decoder_layers; i++) {
    const cell = `decoder/cell_${i}`;
    layers.push(gruStep(arrays, cell, state.layers[i], linearInput(arrays, cell, output)));
    output = shape.residual ? plus(layers[i], output) : layers[i];
    if (shape.layer_norm) output = norm(arrays, `decoder/norm_${i}`, output);
  }
  const attended = before ?? attend(model, output, source, intervention);
  const features = tanh(linear(arrays, "decoder/readout", concatenate(output, attended.context, embedded)));
  const logits = shape.tied_embeddings
    ? plus(timesRows(features, matrices["decoder/embedding/embedding"]), vectors["decoder/logits_bias"])
    : linear(arrays, "decoder/logits", features);
  return { state: { layers, fed: state.fed && features }, features, logits, ...attended };
}

/**
 * Attends to the source: the weights are a softmax of the scores, or what the user chose instead.
 *
 * @param {Model} model
 * @param {Vector} vector
 * @param {Source} source
 * @param {Intervention} intervention
 * @returns {AttentionOutput | Unattended}
 */
function attend({ arrays, shape }, vector, source, { masked, row }) {
  if (shape.attention === "none") {
    return { query: null, scores: null, weights: null, context: source.summary };
  }
  const kernel = arrays.matrices["decoder/attention_layer/query/kernel"];
  const query = kernel ? times(vector, kernel) : vector;
  const scores = SCORES[shape.attention](arrays, query, source.keys);
  const allowed = scores.map((score, s) => (masked.has(s) ? -Infinity : score));
  let weights = softmax(allowed);
  if (row === "flat") weights = softmax(allowed.map((score) => (score === -Infinity ? score : 0)));
  if (typeof row === "number" && row < scores.length) weights = weights.map((_, s) => Number(s === row));
  return { query, scores, weights, context: weightedSum(weights, source.memory) };
}

/**
 * Returns the states of a GRU after each vector.
 *
 * @param {Arrays} arrays
 * @param {string} name
 * @param {Vector[]} inputs
 */
function read(arrays, name, inputs) {
  /** @type {Vector} */
  let state = new Float64Array(arrays.vectors[`${name}/recurrent_bias`].length);
  return inputs.map((vector) => {
    state = gruStep(arrays, name, state, linearInput(arrays, name, vector));
    return state;
  });
}

/**
 * @param {Arrays} arrays
 * @param {string} name
 * @param {Vector} vector
 */
function linearInput({ matrices, vectors }, name, vector) {
  return plus(times(vector, matrices[`${name}/input`]), vectors[`${name}/bias`]);
}

/**
 * Returns a GRU's next state.
 *
 * @param {Arrays} arrays
 * @param {string} name
 * @param {Vector} state
 * @param {Vector} projected the input's products: reset, update, candidate.
 */
function gruStep({ matrices, vectors }, name, state, projected) {
  const H = state.length;
  const products = times(state, matrices[`${name}/recurrent`]);
  const bias = vectors[`${name}/recurrent_bias`];
  return state.map((before, i) => {
    const reset = sigmoid(projected[i] + products[i]);
    const update = sigmoid(projected[H + i] + products[H + i]);
    const candidate = Math.tanh(projected[2 * H + i] + reset * (products[2 * H + i] + bias[i]));
    return (1 - update) * candidate + update * before;
  });
}

/**
 * @param {Arrays} arrays
 * @param {string} name
 * @param {Vector} vector
 */
function linear({ matrices, vectors }, name, vector) {
  return plus(times(vector, matrices[`${name}/kernel`]), vectors[`${name}/bias`]);
}

/**
 * Returns a vector of mean 0 and variance 1, times a scale and plus a bias.
 *
 * @param {Arrays} arrays
 * @param {string} name
 * @param {Vector} vector
 */
function norm({ vectors }, name, vector) {
  const centre = mean(vector);
  const variance = mean(vector.map((number) => (number - centre) ** 2));
  const root = Math.sqrt(variance + 1e-6);
  const [scale, bias] = [vectors[`${name}/scale`], vectors[`${name}/bias`]];
  return vector.map((number, i) => ((number - centre) / root) * scale[i] + bias[i]);
}

/** @param {Vector} vector */
function toUnit(vector) {
  const length = Math.sqrt(dot(vector, vector));
  return length ? vector.map((number) => number / length) : vector;
}
