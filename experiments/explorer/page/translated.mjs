// A text and what a run makes of it: no elements, only values.

import { encode, start } from "./model.mjs";
import { beam, oneByOne } from "./search.mjs";
import { END, END_WORD, UNKNOWN, UNKNOWN_WORD, idsOf, isBlank, join, plain, tokenize, visible, wordOf } from "./words.mjs";

const LONGEST = 400; // tokens of a source; more take long

/**
 * Returns a run's translation of the text of a state, or null for a text without tokens.
 *
 * @param {object} run of the page's data.
 * @param {object} arrays of one of its checkpoints.
 * @param {import("./address.mjs").State} state
 */
export function translated(run, arrays, state) {
  const all = tokenize(run.source, state.text);
  if (!all.length || isBlank(state.text)) return null;
  const tokens = all.slice(0, LONGEST);
  const model = { shape: run.shape, arrays };
  const ids = [...idsOf(run.source, tokens), END];
  const source = encode(model, ids);
  const first = start(model, source);
  const changes = changesOf(run, state, ids.length);
  const options = { maxLength: run.max_length, changes };
  const beamSize = state.beam ?? run.beam_size;
  let [hypotheses, levels] = [[], []];
  if (beamSize > 1) {
    const lengthPenalty = run.length_penalty;
    ({ hypotheses, levels } = beam(model, source, first, { ...options, beamSize, lengthPenalty }));
  } else {
    const { temperature, seed } = state;
    hypotheses = [oneByOne(model, source, first, { ...options, temperature, seed })];
  }
  const found = hypotheses[Math.min(state.hypothesis, hypotheses.length - 1)];
  const ends = found.isCut ? 0 : 1;
  const ownIds = found.steps.slice(0, found.steps.length - ends).map(({ token }) => token);
  const words = ownIds.map((id) => wordOf(run.target, id));
  return {
    model,
    source,
    beamSize,
    steps: found.steps,
    score: found.score,
    isCut: found.isCut,
    hypotheses,
    levels,
    applied: appliedOf(state, changes, found.steps.length),
    leftOut: all.length - tokens.length,
    unknown: [...new Set(tokens.filter((_, s) => ids[s] === UNKNOWN).map((token) => visible(plain(token))))],
    notTaken: Object.values(state.words).filter(
      (word) => word !== UNKNOWN_WORD && idOf(run, word) === UNKNOWN,
    ),
    tokens: [...tokens.map(plain), END_WORD],
    columns: [...tokens.map(plain), END_WORD].map((token, s) => {
      const marks = [ids[s] === UNKNOWN ? " (unknown)" : "", changes.masked.has(s) ? " (hidden)" : ""];
      return token + marks.join("");
    }),
    ids: ownIds,
    words,
    rows: [...words.map(plain), ...(ends ? [END_WORD] : [])],
    text: join(run.target, words),
    weights: found.steps[0].weights && found.steps.map(({ weights }) => weights),
  };
}

/** Returns the first steps of a translation, as if there were no others: what is told of it is of these alone. */
export function firstSteps(run, found, count) {
  if (count >= found.rows.length) return { ...found, isWhole: true };
  const steps = found.steps.slice(0, count);
  const words = found.words.slice(0, count);
  return {
    ...found,
    isWhole: false,
    isCut: false,
    steps,
    words,
    score: steps.reduce((sum, { token, logProbabilities }) => sum + logProbabilities[token], 0),
    ids: found.ids.slice(0, count),
    rows: found.rows.slice(0, count),
    text: join(run.target, words),
    weights: found.weights?.slice(0, count),
    levels: found.levels.slice(0, count),
  };
}

/** Returns what a person has changed, in the run's own numbers, of the source positions that are there. */
function changesOf(run, state, numSources) {
  const byPlace = (values, read) =>
    new Map(Object.entries(values).map(([t, value]) => [Number(t), read(value)]));
  const isThere = (row) => row === "flat" || row < numSources;
  return {
    masked: new Set(state.masked.filter((s) => s < numSources)),
    words: byPlace(state.words, (word) => idOf(run, word)),
    rows: byPlace(
      Object.fromEntries(Object.entries(state.rows).filter(([, row]) => isThere(row))),
      (row) => row,
    ),
  };
}

/** Returns what of a state's changes has had an effect on a translation of so many steps. */
function appliedOf(state, { masked, rows }, numSteps) {
  const within = (values) => Object.fromEntries(Object.entries(values).filter(([t]) => Number(t) < numSteps));
  return { masked: [...masked], words: within(state.words), rows: within(Object.fromEntries(rows)) };
}

function idOf(run, word) {
  return word === END_WORD ? END : idsOf(run.target, [word])[0];
}

/** Returns the words of a true translation and its end, by their places: as `words` of a state. */
export function wordsOf(run, text) {
  return Object.fromEntries([...tokenize(run.target, text), END_WORD].map((word, t) => [t, word]));
}

/** Returns whether a translation, or its first steps, is a text or its beginning, as far as the run knows words. */
export function isSame(run, found, text) {
  const ids = idsOf(run.target, tokenize(run.target, text));
  const those = found.isWhole ? ids : ids.slice(0, found.ids.length);
  return !found.isCut && String(those) === String(found.ids);
}
