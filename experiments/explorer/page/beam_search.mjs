// Beam search, as in attention.decoding.beam_search.

import { topK } from "./linalg.mjs";
import { predict } from "./sampling.mjs";
import { BOS_ID, EOS_ID } from "./tokenizer.mjs";

/**
 * @import { Interventions } from "./interventions.mjs"
 * @import { DecoderState, Model, Source } from "./model.mjs"
 * @import { Hypothesis, TokenStep } from "./sampling.mjs"
 *
 * @typedef {object} Root of the tree.
 * @property {Root | null} parent
 * @property {DecoderState} state
 * @property {number} token
 * @property {number} logProbability of all tokens up to this node.
 *
 * @typedef {Root & TokenStep & {score: number}} Node of the tree. The score is the log-probability over a power of
 *   the length.
 *
 * @typedef {object} BeamOptions
 * @property {number} maxLength
 * @property {Interventions} interventions
 * @property {number} beamSize
 * @property {number} lengthPenalty
 */

/**
 * Translates by beam search.
 *
 * @param {Model} model
 * @param {Source} source
 * @param {DecoderState} initial
 * @param {BeamOptions} options
 * @returns {{hypotheses: Hypothesis[], levels: Node[][]}} the finished hypotheses by score, followed by truncated
 *   ones; and the nodes of each step, where finished nodes follow unfinished ones.
 */
export function beamSearch(model, source, initial, options) {
  const { maxLength, interventions, beamSize, lengthPenalty } = options;
  const scoreOf = (/** @type {number} */ logProbability, /** @type {number} */ length) =>
    logProbability / ((5 + length) / 6) ** lengthPenalty;
  /** @type {Root[]} */
  let alive = [{ parent: null, state: initial, token: BOS_ID, logProbability: 0 }];
  /** @type {Node[]} */
  let finished = [];
  let isExhaustive = true; // no hypothesis has been pruned
  /** @type {Node[][]} */
  const levels = [];
  // Log-probabilities are negative, so the longest length gives the best score that an alive hypothesis can reach.
  const isDone = () =>
    finished.length > 0 &&
    finished[0].score >= scoreOf(Math.max(...alive.map(({ logProbability }) => logProbability)), maxLength);
  for (let t = 0; t < maxLength && alive.length && !isDone(); t++) {
    const candidates = alive
      .flatMap((parent) => extend(parent, t))
      .sort((a, b) => b.logProbability - a.logProbability);
    const unfinished = candidates.filter(({ token }) => token !== EOS_ID);
    isExhaustive &&= t === maxLength - 1 || unfinished.length <= beamSize;
    const threshold = isExhaustive ? -Infinity : (unfinished[beamSize - 1]?.logProbability ?? -Infinity);
    const newlyFinished = candidates.filter(
      ({ token, logProbability }) => token === EOS_ID && logProbability >= threshold,
    );
    finished = [...finished, ...newlyFinished].sort((a, b) => b.score - a.score).slice(0, beamSize);
    const kept = unfinished.slice(0, beamSize);
    levels.push([...kept, ...newlyFinished]);
    alive = kept;
  }
  const lastLevel = levels.length === maxLength ? levels[maxLength - 1] : [];
  const truncated = lastLevel.filter(({ token }) => token !== EOS_ID);
  const hypotheses = [...finished, ...truncated].map((node) => ({
    steps: pathTo(node),
    score: node.score,
    isTruncated: node.token !== EOS_ID,
  }));
  return { hypotheses, levels };

  /**
   * Returns the continuations of a node: the beamSize + 2 most probable ones, and EOS.
   *
   * @param {Root} parent
   * @param {number} t the target position.
   * @returns {Node[]}
   */
  function extend(parent, t) {
    const prediction = predict(model, parent.state, parent.token, source, interventions, t);
    const forced = interventions.forcedTokens.get(t);
    const tokens = forced === undefined ? [...topK(prediction.logits, beamSize + 2), EOS_ID] : [forced];
    return [...new Set(tokens)]
      .map((token) => {
        const logProbability = parent.logProbability + prediction.logProbabilities[token];
        return { ...prediction, parent, token, logProbability, score: scoreOf(logProbability, t + 1) };
      })
      .filter(({ logProbability }) => logProbability > -Infinity);
  }
}

/**
 * Returns the nodes of the path from the root to a node.
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
