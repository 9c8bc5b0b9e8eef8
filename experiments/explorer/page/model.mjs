// The recurrent translator: what attention/models computes, for one sentence, one step at a time.

import {
  dot,
  joined,
  plus,
  rowOf,
  sigmoid,
  softmax,
  tanh,
  times,
  timesRows,
  weightedSum,
} from "./numbers.mjs";

/** How well a query fits each key: attention/scores. */
const SCORES = {
  additive: (arrays, query, keys) =>
    keys.map((key) => dot(arrays["decoder/look_up/score_vector"], tanh(plus(query, key)))),
  dot_product: (arrays, query, keys) => keys.map((key) => dot(query, key)),
  scaled_dot_product: (arrays, query, keys) => keys.map((key) => dot(query, key) / Math.sqrt(query.length)),
  cosine: (arrays, query, keys) => {
    const unit = toUnit(query);
    return keys.map((key) => arrays["decoder/look_up/scale"][0] * dot(unit, toUnit(key)));
  },
  bilinear: (arrays, query, keys) => {
    const turned = times(query, arrays["decoder/look_up/matrix"]);
    return keys.map((key) => dot(turned, key));
  },
};

/**
 * What a decoder's steps look at.
 *
 * @typedef {{memory: Float64Array[], keys: Float64Array[], summary: Float64Array}} Source
 *   one vector of the memory and one key for each token, and the encoder's summary.
 * @typedef {{layers: Float64Array[], fed: ?Float64Array}} State
 */

/** Returns what a bidirectional GRU makes of tokens. */
export function encode(model, ids) {
  const { arrays, shape } = model;
  let layer = ids.map((id) => rowOf(arrays["encoder/embedding/embedding"], id));
  let summary;
  for (let i = 0; i < shape.num_layers; i++) {
    const ahead = read(arrays, `encoder/forward_${i}`, layer);
    const behind = read(arrays, `encoder/backward_${i}`, [...layer].reverse()).reverse();
    summary = joined(ahead.at(-1), behind[0]);
    let outputs = layer.map((_, s) => joined(ahead[s], behind[s]));
    if (shape.residual && i > 0) outputs = outputs.map((output, s) => plus(output, layer[s]));
    layer = shape.use_norm ? outputs.map((output) => norm(arrays, `encoder/norm_${i}`, output)) : outputs;
  }
  const kernel = arrays["decoder/look_up/key/kernel"];
  return { memory: layer, keys: kernel ? layer.map((vector) => times(vector, kernel)) : layer, summary };
}

/** Returns a decoder's state before its first step. */
export function start(model, source) {
  const { arrays, shape } = model;
  const layers = Array.from({ length: shape.num_decoder_layers }, (_, i) =>
    tanh(linear(arrays, i ? `decoder/initial_${i}` : "decoder/initial", source.summary)),
  );
  const fed = shape.input_feeding ? new Float64Array(arrays["decoder/readout/bias"].length) : null;
  return { layers, fed };
}

/**
 * Reads one token and says what may come next.
 *
 * @param {State} state from `start` or the step before.
 * @param {number} token the word before.
 * @param {Source} source from `encode`.
 * @param {{masked?: Set<number>, row?: "flat" | number | null}} look what a person has changed of the looking:
 *   source positions that may not be looked at, and this step's weights: equal, or all on one position.
 * @returns the next state, logits, and what was computed on the way: query, scores, weights, context; the first
 *   three are null for a model without attention.
 */
export function step(model, state, token, source, look = {}) {
  const { arrays, shape } = model;
  const embedded = rowOf(arrays["decoder/embedding/embedding"], token);
  const cell = "decoder/cell";
  let pre = plus(times(embedded, arrays[`${cell}/input`]), arrays[`${cell}/bias`]);
  let row = embedded.length;
  let looked;
  if (shape.looks === "before") {
    looked = lookUp(model, state.layers[0], source, look);
    pre = plus(pre, times(looked.context, arrays[`${cell}/input`], row));
    row += looked.context.length;
  }
  if (state.fed) pre = plus(pre, times(state.fed, arrays[`${cell}/input`], row));
  const layers = [gruStep(arrays, cell, state.layers[0], pre)];
  let output = shape.use_norm ? norm(arrays, "decoder/norm_0", layers[0]) : layers[0];
  for (let i = 1; i < shape.num_decoder_layers; i++) {
    layers.push(
      gruStep(arrays, `decoder/cell_${i}`, state.layers[i], linearInput(arrays, `decoder/cell_${i}`, output)),
    );
    output = shape.residual ? plus(layers[i], output) : layers[i];
    if (shape.use_norm) output = norm(arrays, `decoder/norm_${i}`, output);
  }
  if (shape.looks === "after") looked = lookUp(model, output, source, look);
  const features = tanh(linear(arrays, "decoder/readout", joined(output, looked.context, embedded)));
  const logits = shape.tied_embeddings
    ? plus(timesRows(features, arrays["decoder/embedding/embedding"]), arrays["decoder/logits_bias"])
    : linear(arrays, "decoder/logits", features);
  return { state: { layers, fed: state.fed && features }, features, logits, ...looked };
}

/** Looks at the source: a softmax of the scores, or what a person wants in its place. */
function lookUp(model, vector, source, { masked = new Set(), row = null }) {
  const { arrays, shape } = model;
  if (shape.attention === "none") {
    return { query: null, scores: null, weights: null, context: source.summary };
  }
  const kernel = arrays["decoder/look_up/query/kernel"];
  const query = kernel ? times(vector, kernel) : vector;
  const scores = SCORES[shape.attention](arrays, query, source.keys);
  const allowed = scores.map((score, s) => (masked.has(s) ? -Infinity : score));
  let weights = softmax(allowed);
  if (row === "flat") weights = softmax(allowed.map((score) => (score === -Infinity ? score : 0)));
  if (typeof row === "number" && row < scores.length) weights = weights.map((_, s) => Number(s === row));
  return { query, scores, weights, context: weightedSum(weights, source.memory) };
}

/** Returns the states of a GRU after each of some vectors. */
function read(arrays, name, vectors) {
  let state = new Float64Array(arrays[`${name}/recurrent_bias`].length);
  return vectors.map((vector) => (state = gruStep(arrays, name, state, linearInput(arrays, name, vector))));
}

function linearInput(arrays, name, vector) {
  return plus(times(vector, arrays[`${name}/input`]), arrays[`${name}/bias`]);
}

/** Returns a GRU's next state; `projected` are the input's products: reset, update, candidate. */
function gruStep(arrays, name, state, projected) {
  const H = state.length;
  const products = times(state, arrays[`${name}/recurrent`]);
  const bias = arrays[`${name}/recurrent_bias`];
  return state.map((before, i) => {
    const reset = sigmoid(projected[i] + products[i]);
    const update = sigmoid(projected[H + i] + products[H + i]);
    const candidate = Math.tanh(projected[2 * H + i] + reset * (products[2 * H + i] + bias[i]));
    return (1 - update) * candidate + update * before;
  });
}

function linear(arrays, name, vector) {
  return plus(times(vector, arrays[`${name}/kernel`]), arrays[`${name}/bias`]);
}

/** Returns a vector of mean 0 and variance 1, times a scale and plus a bias. */
function norm(arrays, name, vector) {
  const mean = vector.reduce((sum, number) => sum + number, 0) / vector.length;
  const variance = vector.reduce((sum, number) => sum + (number - mean) ** 2, 0) / vector.length;
  const root = Math.sqrt(variance + 1e-6);
  return vector.map(
    (number, i) => ((number - mean) / root) * arrays[`${name}/scale`][i] + arrays[`${name}/bias`][i],
  );
}

function toUnit(vector) {
  const length = Math.sqrt(dot(vector, vector));
  return length ? vector.map((number) => number / length) : vector;
}
