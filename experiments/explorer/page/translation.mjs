// The translation of a text by a run: no elements, only values.

import { encode, start } from "./model.mjs";
import { beam, oneByOne } from "./search.mjs";
import {
  END,
  END_WORD,
  idsOf,
  isBlank,
  join,
  plain,
  tokenize,
  UNKNOWN,
  UNKNOWN_WORD,
  visible,
  wordOf,
} from "./tokenizer.mjs";

/**
 * @import { LiveRun } from "./data"
 * @import { Arrays } from "./decode_arrays.mjs"
 * @import { Vector } from "./linalg.mjs"
 * @import { Model, Source } from "./model.mjs"
 * @import { Hypothesis, Interventions, Node, TokenStep } from "./search.mjs"
 * @import { Row, State } from "./url_state.mjs"
 *
 * @typedef {State & {text: string}} TextState a state whose text is known.
 *
 * @typedef {object} Changes of a state that affect a translation.
 * @property {number[]} masked
 * @property {Record<number, string>} words
 * @property {Record<number, Row>} rows
 *
 * @typedef {object} Translation of a text, or its first steps.
 * @property {Model} model
 * @property {Source} source
 * @property {number} beamSize
 * @property {boolean} isWhole whether it has all steps.
 * @property {boolean} isCut whether it lacks the end.
 * @property {TokenStep[]} steps
 * @property {number} score
 * @property {Hypothesis[]} hypotheses of which this is one.
 * @property {Node[][]} levels of the beam search; none without.
 * @property {Changes} applied
 * @property {number} leftOut how many tokens of the source were left out.
 * @property {string[]} unknown words of the source.
 * @property {string[]} notTaken words that the user has chosen and the model does not know.
 * @property {string[]} tokens of the source and its end, as people read them.
 * @property {string[]} columns the same, with marks.
 * @property {number[]} ids of the words.
 * @property {string[]} words
 * @property {string[]} rows the words and the end, as people read them.
 * @property {string} text
 * @property {Vector[] | null} weights a row for each step; null without attention.
 */

const LONGEST = 400; // tokens of a source; more take long

/**
 * Returns a run's translation of the text of a state, or null for a text without tokens.
 *
 * @param {LiveRun} run
 * @param {Arrays} arrays of one of its checkpoints.
 * @param {TextState} state
 * @returns {Translation | null}
 */
export function translate(run, arrays, state) {
  const all = tokenize(run.source, state.text);
  if (!all.length || isBlank(state.text)) return null;
  const tokens = all.slice(0, LONGEST);
  const model = { shape: run.shape, arrays };
  const sourceIds = [...idsOf(run.source, tokens), END];
  const source = encode(model, sourceIds);
  const interventions = interventionsOf(run, state, sourceIds.length);
  const { beamSize, hypotheses, levels } = search(run, model, source, state, interventions);
  const hypothesis = hypotheses[Math.min(state.hypothesis, hypotheses.length - 1)];
  const { steps, score, isCut } = hypothesis;
  const ids = steps.slice(0, steps.length - (isCut ? 0 : 1)).map(({ token }) => token);
  const words = ids.map((id) => wordOf(run.target, id));
  const isUnknown = (/** @type {unknown} */ _, /** @type {number} */ s) => sourceIds[s] === UNKNOWN;
  const sourceWords = [...tokens.map(plain), END_WORD];
  return {
    model,
    source,
    beamSize,
    isWhole: true,
    isCut,
    steps,
    score,
    hypotheses,
    levels,
    applied: appliedOf(state, interventions, steps.length),
    leftOut: all.length - tokens.length,
    unknown: [...new Set(tokens.filter(isUnknown).map((token) => visible(plain(token))))],
    notTaken: Object.values(state.words).filter(
      (word) => word !== UNKNOWN_WORD && idOf(run, word) === UNKNOWN,
    ),
    tokens: sourceWords,
    columns: sourceWords.map((word, s) => {
      const marks = [isUnknown(word, s) ? " (unknown)" : "", interventions.masked.has(s) ? " (hidden)" : ""];
      return word + marks.join("");
    }),
    ids,
    words,
    rows: [...words.map(plain), ...(isCut ? [] : [END_WORD])],
    text: join(run.target, words),
    weights: weightsOf(steps),
  };
}

/**
 * Searches as the state asks, or as the run does by default.
 *
 * @param {LiveRun} run
 * @param {Model} model
 * @param {Source} source
 * @param {State} state
 * @param {Interventions} interventions
 * @returns {{beamSize: number, hypotheses: Hypothesis[], levels: Node[][]}}
 */
function search(run, model, source, state, interventions) {
  const { temperature, seed } = state;
  const beamSize = state.beam ?? run.beam_size;
  const options = { maxLength: run.max_length, interventions };
  const initial = start(model, source);
  if (beamSize > 1) {
    const lengthPenalty = run.length_penalty;
    return { beamSize, ...beam(model, source, initial, { ...options, beamSize, lengthPenalty }) };
  }
  const hypothesis = oneByOne(model, source, initial, { ...options, temperature, seed });
  return { beamSize, hypotheses: [hypothesis], levels: [] };
}

/** @param {TokenStep[]} steps */
function weightsOf(steps) {
  const rows = steps.map(({ weights }) => weights);
  return rows.every((row) => row !== null) ? rows : null;
}

/**
 * Returns the first steps of a translation, as if there were no others: all that is told is of these alone.
 *
 * @param {LiveRun} run
 * @param {Translation} translation
 * @param {number} count
 * @returns {Translation}
 */
export function firstSteps(run, translation, count) {
  if (count >= translation.rows.length) return translation;
  const steps = translation.steps.slice(0, count);
  const words = translation.words.slice(0, count);
  return {
    ...translation,
    isWhole: false,
    isCut: false,
    steps,
    words,
    score: steps.reduce((sum, { token, logProbabilities }) => sum + logProbabilities[token], 0),
    ids: translation.ids.slice(0, count),
    rows: translation.rows.slice(0, count),
    text: join(run.target, words),
    weights: translation.weights ? translation.weights.slice(0, count) : null,
    levels: translation.levels.slice(0, count),
  };
}

/**
 * Returns the user's changes as the search takes them, of the source positions that exist.
 *
 * @param {LiveRun} run
 * @param {State} state
 * @param {number} numSources
 * @returns {Interventions}
 */
function interventionsOf(run, state, numSources) {
  const words = Object.entries(state.words).map(
    ([t, word]) => /** @type {const} */ ([Number(t), idOf(run, word)]),
  );
  const rows = Object.entries(state.rows)
    .filter(([, row]) => row === "flat" || row < numSources)
    .map(([t, row]) => /** @type {const} */ ([Number(t), row]));
  return {
    masked: new Set(state.masked.filter((s) => s < numSources)),
    words: new Map(words),
    rows: new Map(rows),
  };
}

/**
 * Returns the changes of a state that have affected a translation of some steps.
 *
 * @param {State} state
 * @param {Interventions} interventions
 * @param {number} numSteps
 * @returns {Changes}
 */
function appliedOf(state, { masked, rows }, numSteps) {
  const words = Object.entries(state.words).filter(([t]) => Number(t) < numSteps);
  return {
    masked: [...masked],
    words: Object.fromEntries(words),
    rows: Object.fromEntries([...rows].filter(([t]) => t < numSteps)),
  };
}

/**
 * @param {LiveRun} run
 * @param {string} word
 */
function idOf(run, word) {
  return word === END_WORD ? END : idsOf(run.target, [word])[0];
}

/**
 * Returns the words of a true translation and its end, as `words` of a state.
 *
 * @param {LiveRun} run
 * @param {string} text
 */
export function wordsOf(run, text) {
  return Object.fromEntries([...tokenize(run.target, text), END_WORD].map((word, t) => [t, word]));
}

/**
 * Returns whether a translation is a text, or its first steps are the beginning of it, in words the run knows.
 *
 * @param {LiveRun} run
 * @param {Translation} translation
 * @param {string} text
 */
export function isSame(run, translation, text) {
  const ids = idsOf(run.target, tokenize(run.target, text));
  const begun = translation.isWhole ? ids : ids.slice(0, translation.ids.length);
  return !translation.isCut && String(begun) === String(translation.ids);
}
