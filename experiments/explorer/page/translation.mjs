// Translates a text with a run. The result has only what the page shows, so that a worker can send it.

import { beamSearch } from "./beam_search.mjs";
import { appliedChanges, interventionsOf, toTargetId } from "./interventions.mjs";
import { topK } from "./linalg.mjs";
import { encode, initialState } from "./model.mjs";
import { sample } from "./sampling.mjs";
import {
  detokenize,
  displayToken,
  EOS,
  EOS_ID,
  escapeInvisible,
  isBlank,
  toIds,
  tokenize,
  toToken,
  UNK,
  UNK_ID,
} from "./tokenizer.mjs";

/**
 * @import { Node } from "./beam_search.mjs"
 * @import { LiveRun } from "./data"
 * @import { Arrays } from "./decode_arrays.mjs"
 * @import { Changes, Interventions } from "./interventions.mjs"
 * @import { Vector } from "./linalg.mjs"
 * @import { Model, Source } from "./model.mjs"
 * @import { Hypothesis, TokenStep } from "./sampling.mjs"
 * @import { State } from "./url_state.mjs"
 *
 * @typedef {State & {text: string}} TextState
 *
 * @typedef {object} TranslationStep
 * @property {number} logProbability of the chosen token.
 * @property {string} token the chosen token.
 * @property {{token: string, probability: number}[]} candidates the most probable tokens.
 * @property {Vector | null} query null without attention.
 * @property {number[] | null} scores
 * @property {Vector | null} weights
 * @property {Vector} context
 * @property {Vector} state the next state of the last decoder layer.
 * @property {Vector} features
 *
 * @typedef {object} TreeNode of a beam search.
 * @property {string} token
 * @property {number} logProbability of all tokens up to this node.
 * @property {number | null} parent index in the previous level.
 * @property {boolean} isSelected whether it is part of the translation.
 *
 * @typedef {object} Translation of a text, or its first steps.
 * @property {number} beamSize
 * @property {boolean} isComplete whether it has all steps.
 * @property {boolean} isTruncated whether it does not end with EOS.
 * @property {number} score
 * @property {{tokens: string[], score: number, isTruncated: boolean}[]} hypotheses
 * @property {TreeNode[][]} levels of the beam search; empty without one.
 * @property {TranslationStep[]} steps
 * @property {Vector[]} keys the attention key of each source token.
 * @property {Vector | undefined} scoreVector of additive attention.
 * @property {number | undefined} scale of cosine attention.
 * @property {Changes} changes the user's changes that affected it.
 * @property {number} numDroppedTokens of the source.
 * @property {string[]} unknownWords of the source.
 * @property {string[]} unknownForcedWords
 * @property {string[]} sourceTokens with EOS, for display.
 * @property {string[]} columns the same, marked as unknown or hidden.
 * @property {number[]} ids without EOS.
 * @property {string[]} words the tokens of the ids.
 * @property {string[]} rows the words and EOS, for display.
 * @property {string} text
 * @property {Vector[] | null} weights a row for each step; null without attention.
 */

const MAX_SOURCE_TOKENS = 400;
const NUM_CANDIDATES = 6;

/**
 * Returns a run's translation of the text of a state, or null for a text without tokens.
 *
 * @param {LiveRun} run
 * @param {Arrays} arrays of one of its checkpoints.
 * @param {TextState} state
 * @returns {Translation | null}
 */
export function translate(run, arrays, state) {
  const allTokens = tokenize(run.source, state.text);
  if (!allTokens.length || isBlank(state.text)) return null;
  const tokens = allTokens.slice(0, MAX_SOURCE_TOKENS);
  const model = { shape: run.shape, arrays };
  const sourceIds = [...toIds(run.source, tokens), EOS_ID];
  const source = encode(model, sourceIds);
  const interventions = interventionsOf(run, state, sourceIds.length);
  const { beamSize, hypotheses, levels } = search(run, model, source, state, interventions);
  const { steps, score, isTruncated } = hypotheses[Math.min(state.hypothesis, hypotheses.length - 1)];
  const ids = steps.slice(0, steps.length - (isTruncated ? 0 : 1)).map(({ token }) => token);
  const words = ids.map((id) => toToken(run.target, id));
  const sourceTokens = [...tokens.map(displayToken), EOS];
  const rows = steps.map(({ weights }) => weights);
  return {
    beamSize,
    isComplete: true,
    isTruncated,
    score,
    hypotheses: hypotheses.map((hypothesis) => ({
      ...hypothesis,
      steps: undefined,
      tokens: hypothesis.steps.map(({ token }) => displayToken(toToken(run.target, token))),
    })),
    levels: treeOf(run, levels, new Set(steps)),
    steps: steps.map((step) => summaryOf(run, step)),
    keys: source.keys,
    scoreVector: arrays.vectors["decoder/attention_layer/score_vector"],
    scale: arrays.vectors["decoder/attention_layer/scale"]?.[0],
    changes: appliedChanges(state, interventions, steps.length),
    numDroppedTokens: allTokens.length - tokens.length,
    unknownWords: [...new Set(tokens.filter((_, s) => sourceIds[s] === UNK_ID))].map((token) =>
      escapeInvisible(displayToken(token)),
    ),
    unknownForcedWords: Object.values(state.forcedWords)
      .filter((word) => word !== UNK && toTargetId(run, word) === UNK_ID)
      .map(displayToken),
    sourceTokens,
    columns: sourceTokens.map((token, s) => {
      const unknown = sourceIds[s] === UNK_ID ? " (unknown)" : "";
      return `${token}${unknown}${interventions.masked.has(s) ? " (hidden)" : ""}`;
    }),
    ids,
    words,
    rows: [...words.map(displayToken), ...(isTruncated ? [] : [EOS])],
    text: detokenize(run.target, words),
    weights: rows.every((row) => row !== null) ? rows : null,
  };
}

/**
 * @param {LiveRun} run
 * @param {Model} model
 * @param {Source} source
 * @param {State} state
 * @param {Interventions} interventions
 * @returns {{beamSize: number, hypotheses: Hypothesis[], levels: Node[][]}}
 */
function search(run, model, source, state, interventions) {
  const { temperature, seed } = state;
  const beamSize = state.beamSize ?? run.beam_size;
  const options = { maxLength: run.max_length, interventions };
  const initial = initialState(model, source);
  if (beamSize > 1) {
    const lengthPenalty = run.length_penalty;
    return { beamSize, ...beamSearch(model, source, initial, { ...options, beamSize, lengthPenalty }) };
  }
  const hypothesis = sample(model, source, initial, { ...options, temperature, seed });
  return { beamSize, hypotheses: [hypothesis], levels: [] };
}

/**
 * @param {LiveRun} run
 * @param {TokenStep} step
 * @returns {TranslationStep}
 */
function summaryOf(run, { token, logProbabilities, query, scores, weights, context, state, features }) {
  return {
    logProbability: logProbabilities[token],
    token: toToken(run.target, token),
    candidates: topK(logProbabilities, NUM_CANDIDATES).map((id) => ({
      token: toToken(run.target, id),
      probability: Math.exp(logProbabilities[id]),
    })),
    query,
    scores,
    weights,
    context,
    state: state.layers[state.layers.length - 1],
    features,
  };
}

/**
 * Returns the tree of a beam search.
 *
 * @param {LiveRun} run
 * @param {Node[][]} levels
 * @param {Set<TokenStep>} selected
 * @returns {TreeNode[][]}
 */
function treeOf(run, levels, selected) {
  return levels.map((nodes, t) =>
    nodes.map((node) => ({
      token: displayToken(toToken(run.target, node.token)),
      logProbability: node.logProbability,
      parent: t ? levels[t - 1].indexOf(/** @type {Node} */ (node.parent)) : null,
      isSelected: selected.has(node),
    })),
  );
}
