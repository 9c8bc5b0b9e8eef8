// The layers of the recurrent translator: GRU, linear layer and layer normalization.

import { add, mean, sigmoid, vecMat } from "./linalg.mjs";

/**
 * @import { Arrays } from "./decode_arrays.mjs"
 * @import { Vector } from "./linalg.mjs"
 */

/**
 * Returns the state of a GRU after each input.
 *
 * @param {Arrays} arrays
 * @param {string} name
 * @param {Vector[]} inputs
 */
export function runGru(arrays, name, inputs) {
  /** @type {Vector} */
  let state = new Float64Array(arrays.vectors[`${name}/recurrent_bias`].length);
  return inputs.map((vector) => {
    state = gruStep(arrays, name, state, projectInput(arrays, name, vector));
    return state;
  });
}

/**
 * Returns the input projection of a GRU, which contains the parts of the reset gate, the update gate and the
 * candidate.
 *
 * @param {Arrays} arrays
 * @param {string} name
 * @param {Vector} vector
 */
export function projectInput({ matrices, vectors }, name, vector) {
  return add(vecMat(vector, matrices[`${name}/input`]), vectors[`${name}/bias`]);
}

/**
 * Returns the next state of a GRU.
 *
 * @param {Arrays} arrays
 * @param {string} name
 * @param {Vector} state
 * @param {Vector} projectedInput from `projectInput`.
 */
export function gruStep({ matrices, vectors }, name, state, projectedInput) {
  const H = state.length;
  const projectedState = vecMat(state, matrices[`${name}/recurrent`]);
  const bias = vectors[`${name}/recurrent_bias`];
  return state.map((previous, i) => {
    const reset = sigmoid(projectedInput[i] + projectedState[i]);
    const update = sigmoid(projectedInput[H + i] + projectedState[H + i]);
    const candidate = Math.tanh(projectedInput[2 * H + i] + reset * (projectedState[2 * H + i] + bias[i]));
    return (1 - update) * candidate + update * previous;
  });
}

/**
 * @param {Arrays} arrays
 * @param {string} name
 * @param {Vector} vector
 */
export function linear({ matrices, vectors }, name, vector) {
  return add(vecMat(vector, matrices[`${name}/kernel`]), vectors[`${name}/bias`]);
}

/**
 * @param {Arrays} arrays
 * @param {string} name
 * @param {Vector} vector
 */
export function layerNorm({ vectors }, name, vector) {
  const center = mean(vector);
  const variance = mean(vector.map((value) => (value - center) ** 2));
  const deviation = Math.sqrt(variance + 1e-6);
  const [scale, bias] = [vectors[`${name}/scale`], vectors[`${name}/bias`]];
  return vector.map((value, i) => ((value - center) / deviation) * scale[i] + bias[i]);
}
