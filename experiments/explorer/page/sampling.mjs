// Greedy decoding and sampling, as in attention/decoding.

import { argmax, logSoftmax, makeRandom, softmax } from "./linalg.mjs";
import { step } from "./model.mjs";
import { BOS_ID, EOS_ID, PAD_ID } from "./tokenizer.mjs";

/**
 * @import { Interventions } from "./interventions.mjs"
 * @import { Vector } from "./linalg.mjs"
 * @import { DecoderState, Model, Source, Step } from "./model.mjs"
 *
 * @typedef {Step & {logProbabilities: Vector}} Prediction
 * @typedef {Prediction & {token: number}} TokenStep a prediction and the token that was chosen.
 *
 * @typedef {object} Hypothesis
 * @property {TokenStep[]} steps
 * @property {number} score
 * @property {boolean} isTruncated whether it does not end with EOS.
 */

/**
 * Computes the log-probabilities of the next token. PAD and BOS have -Infinity.
 *
 * @param {Model} model
 * @param {DecoderState} state
 * @param {number} previousToken
 * @param {Source} source
 * @param {Interventions} interventions
 * @param {number} t the target position.
 * @returns {Prediction}
 */
export function predict(model, state, previousToken, source, { masked, weightOverrides }, t) {
  const weightOverride = weightOverrides.get(t) ?? null;
  const outputs = step(model, state, previousToken, source, { masked, weightOverride });
  outputs.logits[PAD_ID] = outputs.logits[BOS_ID] = -Infinity;
  return { ...outputs, logProbabilities: logSoftmax(outputs.logits) };
}

/**
 * Translates one token at a time. Temperature 0 chooses the most probable token.
 *
 * @param {Model} model
 * @param {Source} source
 * @param {DecoderState} initial
 * @param {{maxLength: number, interventions: Interventions, temperature: number, seed: number}} options
 * @returns {Hypothesis}
 */
export function sample(model, source, initial, { maxLength, interventions, temperature, seed }) {
  const random = makeRandom(seed);
  /** @type {TokenStep[]} */
  const steps = [];
  let [state, token, score] = [initial, BOS_ID, 0];
  for (let t = 0; t < maxLength && token !== EOS_ID; t++) {
    const prediction = predict(model, state, token, source, interventions, t);
    // One number per step, so that a forced word does not change the random numbers of later steps.
    const uniform = random();
    token =
      interventions.forcedTokens.get(t) ??
      (temperature ? sampleToken(prediction.logits, temperature, uniform) : argmax(prediction.logits));
    score += prediction.logProbabilities[token];
    state = prediction.state;
    steps.push({ token, ...prediction });
  }
  return { steps, score, isTruncated: token !== EOS_ID };
}

/**
 * @param {Vector} logits
 * @param {number} temperature
 * @param {number} uniform a random number in [0, 1).
 */
function sampleToken(logits, temperature, uniform) {
  const max = logits[argmax(logits)];
  const probabilities = softmax(logits.map((logit) => (logit - max) / temperature));
  let cumulative = 0;
  for (let i = 0; i < probabilities.length; i++) {
    cumulative += probabilities[i];
    if (uniform < cumulative) return i;
  }
  return argmax(probabilities);
}
