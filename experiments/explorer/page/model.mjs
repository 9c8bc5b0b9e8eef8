// The recurrent translator of attention/models, for one sentence and one step at a time.

import { attend } from "./attention.mjs";
import { gruStep, layerNorm, linear, projectInput, runGru } from "./layers.mjs";
import { add, concatenate, matrixRow, matVec, tanh, vecMat } from "./linalg.mjs";

/**
 * @import { AttentionOutput, NoAttention, StepIntervention } from "./attention.mjs"
 * @import { Shape } from "./data"
 * @import { Arrays } from "./decode_arrays.mjs"
 * @import { Vector } from "./linalg.mjs"
 *
 * @typedef {{shape: Shape, arrays: Arrays}} Model
 *
 * @typedef {object} Source the encoded source.
 * @property {Vector[]} memory the encoder output of each token.
 * @property {Vector[]} keys the attention key of each token.
 * @property {Vector} finalState of the encoder.
 *
 * @typedef {object} DecoderState
 * @property {Vector[]} layers the state of each layer.
 * @property {Vector | null} inputFeed the output features of the previous step, with input feeding.
 *
 * @typedef {object} StepOutput
 * @property {DecoderState} state the next state.
 * @property {Vector} features the output features.
 * @property {Vector} logits
 *
 * @typedef {StepOutput & (AttentionOutput | NoAttention)} Step the values that a decoder step computes.
 */

/**
 * Encodes tokens with a bidirectional GRU.
 *
 * @param {Model} model
 * @param {number[]} ids
 * @returns {Source}
 */
export function encode({ arrays, shape }, ids) {
  /** @type {Vector[]} */
  let memory = ids.map((id) => matrixRow(arrays.matrices["encoder/embedding/embedding"], id));
  let finalState = new Float64Array();
  for (let i = 0; i < shape.num_layers; i++) {
    const forward = runGru(arrays, `encoder/forward_${i}`, memory);
    const backward = runGru(arrays, `encoder/backward_${i}`, [...memory].reverse()).reverse();
    finalState = concatenate(forward[forward.length - 1], backward[0]);
    const inputs = memory;
    memory = inputs.map((_, s) => concatenate(forward[s], backward[s]));
    if (shape.residual && i > 0) memory = memory.map((output, s) => add(output, inputs[s]));
    if (shape.layer_norm) memory = memory.map((output) => layerNorm(arrays, `encoder/norm_${i}`, output));
  }
  const kernel = arrays.matrices["decoder/attention_layer/key/kernel"];
  const keys = kernel ? memory.map((output) => vecMat(output, kernel)) : memory;
  return { memory, keys, finalState };
}

/**
 * Returns the state of the decoder before its first step.
 *
 * @param {Model} model
 * @param {Source} source
 * @returns {DecoderState}
 */
export function initialState({ arrays, shape }, source) {
  const layers = Array.from({ length: shape.num_decoder_layers }, (_, i) =>
    tanh(linear(arrays, i ? `decoder/initial_${i}` : "decoder/initial", source.finalState)),
  );
  const numFeatures = arrays.vectors["decoder/readout/bias"].length;
  return { layers, inputFeed: shape.input_feeding ? new Float64Array(numFeatures) : null };
}

/**
 * Reads the previous token and computes the logits of the next one.
 *
 * @param {Model} model
 * @param {DecoderState} state from `initialState` or the previous step.
 * @param {number} previousToken
 * @param {Source} source
 * @param {StepIntervention} intervention
 * @returns {Step}
 */
export function step(model, state, previousToken, source, intervention) {
  const { arrays, shape } = model;
  const { matrices, vectors } = arrays;
  const embedding = matrixRow(matrices["decoder/embedding/embedding"], previousToken);
  const early = shape.attend_order === "before" ? attend(model, state.layers[0], source, intervention) : null;
  const context = early ? [early.context] : [];
  const inputFeed = state.inputFeed ? [state.inputFeed] : [];
  const input = concatenate(embedding, ...context, ...inputFeed);
  const layers = [
    gruStep(arrays, "decoder/cell", state.layers[0], projectInput(arrays, "decoder/cell", input)),
  ];
  let output = shape.layer_norm ? layerNorm(arrays, "decoder/norm_0", layers[0]) : layers[0];
  for (let i = 1; i < shape.num_decoder_layers; i++) {
    const name = `decoder/cell_${i}`;
    layers.push(gruStep(arrays, name, state.layers[i], projectInput(arrays, name, output)));
    output = shape.residual ? add(layers[i], output) : layers[i];
    if (shape.layer_norm) output = layerNorm(arrays, `decoder/norm_${i}`, output);
  }
  const attended = early ?? attend(model, output, source, intervention);
  const readoutInput = concatenate(output, attended.context, embedding);
  const features = tanh(linear(arrays, "decoder/readout", readoutInput));
  const logits = shape.tied_embeddings
    ? add(matVec(matrices["decoder/embedding/embedding"], features), vectors["decoder/logits_bias"])
    : linear(arrays, "decoder/logits", features);
  return { state: { layers, inputFeed: state.inputFeed && features }, features, logits, ...attended };
}
