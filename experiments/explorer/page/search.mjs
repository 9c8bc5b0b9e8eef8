// Greedy search, sampling and beam search, as in attention/decoding.

import { argmax, largest, logSoftmax, random, softmax } from "./linalg.mjs";
import { step } from "./model.mjs";
import { END, PAD, START } from "./tokenizer.mjs";

/**
 * @import { Vector } from "./linalg.mjs"
 * @import { DecoderState, Model, Source, Step } from "./model.mjs"
 * @import { Row } from "./url_state.mjs"
 *
 * @typedef {object} Interventions the user's changes of a translation.
 * @property {Set<number>} masked source positions that may not be attended to.
 * @property {Map<number, number>} words the token at some steps.
 * @property {Map<number, Row>} rows the weights at some steps.
 *
 * @typedef {Step & {logProbabilities: Vector}} Prediction
 * @typedef {Prediction & {token: number}} TokenStep a prediction and the token that followed.
 *
 * @typedef {object} Hypothesis
 * @property {TokenStep[]} steps
 * @property {number} score
 * @property {boolean} isCut whether it lacks the end.
 *
 * @typedef {object} Root where a beam search begins.
 * @property {Root | null} parent
 * @property {DecoderState} state
 * @property {number} token
 * @property {number} score the log-probability of all tokens.
 *
 * @typedef {Root & TokenStep & {normalised: number}} Node of a beam search; `normalised` is the score over a
 *   power of the length.
 */

/**
 * Computes one more step. Tokens that are not words have a log-probability of -Infinity.
 *
 * @param {Model} model
 * @param {DecoderState} state
 * @param {number} token
 * @param {Source} source
 * @param {Interventions} interventions
 * @param {number} t
 * @returns {Prediction}
 */
function predict(model, state, token, source, { masked, rows }, t) {
  const outputs = step(model, state, token, source, { masked, row: rows.get(t) ?? null });
  outputs.logits[PAD] = outputs.logits[START] = -Infinity;
  return { ...outputs, logProbabilities: logSoftmax(outputs.logits) };
}

/**
 * Translates one token at a time: the likeliest, or a sampled one.
 *
 * @param {Model} model
 * @param {Source} source
 * @param {DecoderState} initial
 * @param {{maxLength: number, interventions: Interventions, temperature: number, seed: number}} options
 * @returns {Hypothesis}
 */
export function oneByOne(model, source, initial, { maxLength, interventions, temperature, seed }) {
  const draw = random(seed);
  /** @type {TokenStep[]} */
  const steps = [];
  let [state, token, score] = [initial, START, 0];
  for (let t = 0; t < maxLength && token !== END; t++) {
    const prediction = predict(model, state, token, source, interventions, t);
    const chance = draw(); // at every step, so that a word which the user has chosen changes no other draw
    token =
      interventions.words.get(t) ??
      (temperature ? sample(prediction.logits, temperature, chance) : argmax(prediction.logits));
    score += prediction.logProbabilities[token];
    state = prediction.state;
    steps.push({ token, ...prediction });
  }
  return { steps, score, isCut: token !== END };
}

/**
 * @param {Vector} logits
 * @param {number} temperature
 * @param {number} chance in [0, 1).
 */
function sample(logits, temperature, chance) {
  const most = logits[argmax(logits)];
  const probabilities = softmax(logits.map((logit) => (logit - most) / temperature));
  let sum = 0;
  for (let i = 0; i < probabilities.length; i++) {
    sum += probabilities[i];
    if (chance < sum) return i;
  }
  return argmax(probabilities);
}

/**
 * Translates by beam search; see attention.decoding.beam.
 *
 * @param {Model} model
 * @param {Source} source
 * @param {DecoderState} initial
 * @param {{maxLength: number, interventions: Interventions, beamSize: number, lengthPenalty: number}} options
 * @returns {{hypotheses: Hypothesis[], levels: Node[][]}} the finished hypotheses, the best first, then those
 *   that were cut; and the nodes that were kept at each step, those that continue before those that ended.
 */
export function beam(model, source, initial, { maxLength, interventions, beamSize, lengthPenalty }) {
  const normalise = (/** @type {number} */ score, /** @type {number} */ length) =>
    score / ((5 + length) / 6) ** lengthPenalty;
  /** @type {Root[]} */
  let alive = [{ parent: null, state: initial, token: START, score: 0 }];
  /** @type {Node[]} */
  let ended = [];
  let isExhaustive = true; // nothing has been pruned yet
  /** @type {Node[][]} */
  const levels = [];
  // Scores are negative, so the largest penalty gives the best score that an alive hypothesis can reach.
  const isDone = () =>
    ended.length > 0 &&
    ended[0].normalised >= normalise(Math.max(...alive.map(({ score }) => score)), maxLength);
  for (let t = 0; t < maxLength && alive.length && !isDone(); t++) {
    /** @type {Node[]} */
    const candidates = [];
    for (const parent of alive) {
      const prediction = predict(model, parent.state, parent.token, source, interventions, t);
      const forced = interventions.words.get(t);
      // The likeliest beamSize + 1 continuations, and the end.
      const tokens = forced === undefined ? [...largest(prediction.logits, beamSize + 2), END] : [forced];
      for (const token of new Set(tokens)) {
        const score = parent.score + prediction.logProbabilities[token];
        const normalised = normalise(score, t + 1);
        if (score > -Infinity) candidates.push({ ...prediction, parent, token, score, normalised });
      }
    }
    candidates.sort((one, other) => other.score - one.score);
    const continuations = candidates.filter(({ token }) => token !== END);
    isExhaustive &&= t === maxLength - 1 || continuations.length <= beamSize;
    const least = isExhaustive ? -Infinity : (continuations[beamSize - 1]?.score ?? -Infinity);
    const ends = candidates.filter(({ token, score }) => token === END && score >= least);
    ended = [...ended, ...ends].sort((one, other) => other.normalised - one.normalised).slice(0, beamSize);
    const kept = continuations.slice(0, beamSize);
    levels.push([...kept, ...ends]);
    alive = kept;
  }
  const last = levels.length === maxLength ? levels[maxLength - 1] : [];
  const cut = last.filter(({ token }) => token !== END);
  const hypotheses = [...ended, ...cut].map((node) => ({
    steps: pathTo(node),
    score: node.normalised,
    isCut: node.token !== END,
  }));
  return { hypotheses, levels };
}

/**
 * Returns the nodes from the first step to one.
 *
 * @param {Node} node
 * @returns {Node[]}
 */
function pathTo(node) {
  const { parent } = node;
  return parent && isNode(parent) ? [...pathTo(parent), node] : [node];
}

/**
 * @param {Root} root
 * @returns {root is Node}
 */
function isNode(root) {
  return root.parent !== null;
}
