// The recurrent translator of attention/models, for one sentence and one step at a time.

import type { Arrays } from "./arrays";
import { type AttentionChange, type AttentionOutput, attend } from "./attention";
import type { Shape } from "./data";
import { add, concatenate, matrixRow, matVec, mean, type Vector, vecMat } from "./linalg";

export type Model = { shape: Shape; arrays: Arrays };

/** The encoded source. */
export interface Source {
  memory: Vector[]; // the encoder output of each token
  keys: Vector[]; // the attention key of each token
  finalState: Vector; // the final state of the encoder
}

interface DecoderState {
  layers: Vector[];
  inputFeed: Vector | null; // the output features of the previous step; null without input feeding
}

/** What a decoder step computes. */
export interface StepOutput extends AttentionOutput {
  state: DecoderState;
  features: Vector;
  logits: Vector;
}

/** Encodes tokens with a bidirectional GRU. */
export function encode({ arrays, shape }: Model, ids: number[]): Source {
  let memory: Vector[] = ids.map((id) => matrixRow(arrays.matrices["encoder/embedding/embedding"], id));
  let finalState: Vector = new Float64Array();
  for (let i = 0; i < shape.num_layers; i++) {
    const inputs = memory;
    const forward = runGru(arrays, `encoder/forward_${i}`, inputs);
    const backward = runGru(arrays, `encoder/backward_${i}`, inputs.toReversed()).reverse();
    finalState = concatenate(forward[forward.length - 1], backward[0]);
    memory = forward.map((state, s) => concatenate(state, backward[s]));
    if (shape.residual && i > 0) memory = memory.map((output, s) => add(output, inputs[s]));
    if (shape.layer_norm) memory = memory.map((output) => layerNorm(arrays, `encoder/norm_${i}`, output));
  }
  const kernel = arrays.matrices["decoder/attention_layer/key/kernel"];
  const keys = kernel ? memory.map((output) => vecMat(output, kernel)) : memory;
  return { memory, keys, finalState };
}

/** Returns the state of the decoder before its first step. */
export function initialState({ arrays, shape }: Model, source: Source): DecoderState {
  const layers = Array.from({ length: shape.num_decoder_layers }, (_, i) =>
    linear(arrays, i ? `decoder/initial_${i}` : "decoder/initial", source.finalState).map(Math.tanh),
  );
  const numFeatures = arrays.vectors["decoder/readout/bias"].length;
  return { layers, inputFeed: shape.input_feeding ? new Float64Array(numFeatures) : null };
}

/** Reads the previous token and computes the logits of the next one. */
export function decodeStep(
  model: Model,
  state: DecoderState,
  previousToken: number,
  source: Source,
  change: AttentionChange,
): StepOutput {
  const { arrays, shape } = model;
  const embeddings = arrays.matrices["decoder/embedding/embedding"];
  const embedding = matrixRow(embeddings, previousToken);
  const early = shape.attend_order === "before" ? attend(model, state.layers[0], source, change) : null;
  const inputs = [embedding, early?.context ?? [], state.inputFeed ?? []];
  let output: Vector = concatenate(...inputs);
  const layers: Vector[] = [];
  for (let i = 0; i < shape.num_decoder_layers; i++) {
    layers.push(gruStep(arrays, i ? `decoder/cell_${i}` : "decoder/cell", state.layers[i], output));
    output = shape.residual && i > 0 ? add(layers[i], output) : layers[i];
    if (shape.layer_norm) output = layerNorm(arrays, `decoder/norm_${i}`, output);
  }
  const attended = early ?? attend(model, output, source, change);
  const readout = concatenate(output, attended.context, embedding);
  const features = linear(arrays, "decoder/readout", readout).map(Math.tanh);
  const logits = shape.tied_embeddings
    ? add(matVec(embeddings, features), arrays.vectors["decoder/logits_bias"])
    : linear(arrays, "decoder/logits", features);
  return { state: { layers, inputFeed: state.inputFeed && features }, features, logits, ...attended };
}

function runGru(arrays: Arrays, name: string, inputs: Vector[]): Vector[] {
  let state: Vector = new Float64Array(arrays.vectors[`${name}/recurrent_bias`].length);
  return inputs.map((input) => {
    state = gruStep(arrays, name, state, input);
    return state;
  });
}

/** Projections contain the parts of the reset gate, the update gate and the candidate. */
function gruStep({ matrices, vectors }: Arrays, name: string, state: Vector, input: Vector): Vector {
  const H = state.length;
  const projectedInput = add(vecMat(input, matrices[`${name}/input`]), vectors[`${name}/bias`]);
  const projectedState = vecMat(state, matrices[`${name}/recurrent`]);
  const bias = vectors[`${name}/recurrent_bias`];
  return state.map((previous, i) => {
    const reset = sigmoid(projectedInput[i] + projectedState[i]);
    const update = sigmoid(projectedInput[H + i] + projectedState[H + i]);
    const candidate = Math.tanh(projectedInput[2 * H + i] + reset * (projectedState[2 * H + i] + bias[i]));
    return (1 - update) * candidate + update * previous;
  });
}

function sigmoid(value: number): number {
  return 1 / (1 + Math.exp(-value));
}

function linear({ matrices, vectors }: Arrays, name: string, vector: Vector): Vector {
  return add(vecMat(vector, matrices[`${name}/kernel`]), vectors[`${name}/bias`]);
}

function layerNorm({ vectors }: Arrays, name: string, vector: Vector): Vector {
  const center = mean(vector);
  const deviation = Math.sqrt(mean(vector.map((value) => (value - center) ** 2)) + 1e-6);
  const [scale, bias] = [vectors[`${name}/scale`], vectors[`${name}/bias`]];
  return vector.map((value, i) => ((value - center) / deviation) * scale[i] + bias[i]);
}
