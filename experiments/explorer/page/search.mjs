// Translations: one word after the other, or by beams, as attention/search finds them.

import { argmax, largest, logSoftmax, random, softmax } from "./numbers.mjs";
import { step } from "./model.mjs";
import { END, PAD, START } from "./words.mjs";

/**
 * What a person has changed of a translation.
 *
 * @typedef {object} Changes
 * @property {Set<number>} masked source positions that may not be looked at.
 * @property {Map<number, number>} words the token at some steps.
 * @property {Map<number, "flat" | number>} rows the weights at some steps: equal, or all on one position.
 */

/** Returns no changes. */
export function unchanged() {
  return { masked: new Set(), words: new Map(), rows: new Map() };
}

/** Returns what one more step finds, and the log-probability of each token, those apart that are no words. */
function advance(model, state, token, source, changes, t) {
  const found = step(model, state, token, source, {
    masked: changes.masked,
    row: changes.rows.get(t) ?? null,
  });
  found.logits[PAD] = found.logits[START] = -Infinity;
  return { ...found, logProbabilities: logSoftmax(found.logits) };
}

/**
 * Translates one word after the other: the likeliest, or one drawn by chance.
 *
 * @returns {{steps: object[], score: number, isCut: boolean}} of each step its token, and all that `step`
 *   finds; the log-probability of all tokens; whether there was no end.
 */
export function oneByOne(
  model,
  source,
  first,
  { maxLength, changes = unchanged(), temperature = 0, seed = 0 },
) {
  const draw = random(seed);
  const steps = [];
  let [state, token, score] = [first, START, 0];
  for (let t = 0; t < maxLength && token !== END; t++) {
    const found = advance(model, state, token, source, changes, t);
    const chance = draw(); // of every step, so that a word which a person has chosen changes no other chance
    token =
      changes.words.get(t) ?? (temperature ? drawn(found.logits, temperature, chance) : argmax(found.logits));
    score += found.logProbabilities[token];
    state = found.state;
    steps.push({ token, ...found });
  }
  return { steps, score, isCut: token !== END };
}

function drawn(logits, temperature, chance) {
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
 * Translates by beams; see attention.search.beam.
 *
 * @returns {{hypotheses: object[], levels: object[][]}} what has ended, the best first, then what was cut; and
 *   of each step the nodes that were kept: those that go on, and those that have ended. A node has a parent.
 */
export function beam(model, source, first, { maxLength, beamSize, lengthPenalty, changes = unchanged() }) {
  const normalised = (score, length) => score / ((5 + length) / 6) ** lengthPenalty;
  let alive = [{ parent: null, state: first, token: START, score: 0 }];
  let ended = [];
  let isExhaustive = true; // nothing has been pruned yet
  const levels = [];
  // Scores are negative, so the largest penalty gives the best score that an alive hypothesis can reach.
  const isDone = () =>
    ended.length > 0 &&
    ended[0].normalised >= normalised(Math.max(...alive.map(({ score }) => score)), maxLength);
  for (let t = 0; t < maxLength && alive.length && !isDone(); t++) {
    const candidates = [];
    for (const parent of alive) {
      const found = advance(model, parent.state, parent.token, source, changes, t);
      const forced = changes.words.get(t);
      // The likeliest beamSize + 1 continuations, and the end.
      const tokens = new Set(forced === undefined ? [...largest(found.logits, beamSize + 2), END] : [forced]);
      for (const token of tokens) {
        const score = parent.score + found.logProbabilities[token];
        if (score > -Infinity) candidates.push({ parent, token, score, t, ...found });
      }
    }
    candidates.sort((one, other) => other.score - one.score);
    const continuations = candidates.filter(({ token }) => token !== END);
    isExhaustive &&= t === maxLength - 1 || continuations.length <= beamSize;
    const least = isExhaustive ? -Infinity : (continuations[beamSize - 1]?.score ?? -Infinity);
    const ends = candidates.filter(({ token, score }) => token === END && score >= least);
    for (const node of ends) node.normalised = normalised(node.score, t + 1);
    ended = [...ended, ...ends].sort((one, other) => other.normalised - one.normalised).slice(0, beamSize);
    alive = continuations.slice(0, beamSize);
    levels.push([...alive, ...ends]);
  }
  const cut = alive.filter(({ t }) => t === maxLength - 1);
  for (const node of cut) node.normalised = normalised(node.score, maxLength);
  const hypotheses = [...ended, ...cut].map((node) => ({
    steps: pathTo(node),
    score: node.normalised,
    isCut: node.token !== END,
  }));
  return { hypotheses, levels };
}

/** Returns the nodes from the first step to one. */
function pathTo(node) {
  return node.parent ? [...pathTo(node.parent), node] : [];
}
