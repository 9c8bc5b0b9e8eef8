// The user's changes of a translation.

import { EOS, EOS_ID, toIds } from "./tokenizer.mjs";

/**
 * @import { LiveRun } from "./data"
 * @import { State, WeightOverride } from "./url_state.mjs"
 *
 * @typedef {object} Interventions the changes, for the search.
 * @property {Set<number>} masked source positions that cannot be attended to.
 * @property {Map<number, number>} forcedTokens token ids by target position.
 * @property {Map<number, WeightOverride>} weightOverrides by target position.
 *
 * @typedef {object} Changes the changes, for the page.
 * @property {number[]} masked
 * @property {Record<number, string>} forcedWords
 * @property {Record<number, WeightOverride>} weightOverrides
 */

/**
 * Returns the user's changes for the search, without those of source positions that do not exist.
 *
 * @param {LiveRun} run
 * @param {State} state
 * @param {number} numSourceTokens
 * @returns {Interventions}
 */
export function interventionsOf(run, state, numSourceTokens) {
  return {
    masked: new Set(state.masked.filter((s) => s < numSourceTokens)),
    forcedTokens: new Map(
      Object.entries(state.forcedWords).map(([t, word]) => [Number(t), toTargetId(run, word)]),
    ),
    weightOverrides: new Map(
      Object.entries(state.weightOverrides)
        .filter(([, value]) => value === "uniform" || value < numSourceTokens)
        .map(([t, value]) => [Number(t), value]),
    ),
  };
}

/**
 * Returns the user's changes that affected a translation of some steps.
 *
 * @param {State} state
 * @param {Interventions} interventions
 * @param {number} numSteps
 * @returns {Changes}
 */
export function appliedChanges(state, { masked, weightOverrides }, numSteps) {
  const forcedWords = Object.entries(state.forcedWords).filter(([t]) => Number(t) < numSteps);
  return {
    masked: [...masked],
    forcedWords: Object.fromEntries(forcedWords),
    weightOverrides: Object.fromEntries([...weightOverrides].filter(([t]) => t < numSteps)),
  };
}

/**
 * Returns the id of a target word or EOS.
 *
 * @param {LiveRun} run
 * @param {string} word
 */
export function toTargetId(run, word) {
  return word === EOS ? EOS_ID : toIds(run.target, [word])[0];
}
