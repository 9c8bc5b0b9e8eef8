// The comparison of a translation with the reference translation.

import { toggleButton } from "./dom.mjs";
import { alignmentErrorRate } from "./metrics.mjs";
import { EOS, toIds, tokenize } from "./tokenizer.mjs";

/**
 * @import { Cell, LiveRun } from "./data"
 * @import { TranslationDisplay } from "./display.mjs"
 * @import { Child } from "./dom.mjs"
 * @import { Translation } from "./translation.mjs"
 *
 * @typedef {object} Reference
 * @property {string} text
 * @property {boolean} isMatched whether it starts with the steps of the translation that are shown.
 * @property {Cell[] | null} links the true alignment of these steps, if it is available.
 */

/**
 * Returns the reference translation, or null if it is not available.
 *
 * @param {TranslationDisplay} display
 * @returns {Reference | null}
 */
export function referenceOf({ run, translation, state }) {
  const example = run.examples.find(({ source }) => source === state.text.trim());
  if (!example?.target) return null;
  const numRows = translation.rows.length;
  const isMatched = numRows > 0 && matches(run, translation, example.target);
  const links = isMatched && example.links ? example.links.filter(([t]) => t < numRows) : null;
  return { text: example.target, isMatched, links };
}

/**
 * @param {TranslationDisplay} display
 * @param {Reference | null} reference
 * @returns {Child}
 */
export function describeReference({ run, translation, id, change }, reference) {
  if (!reference) return "No reference translation is available for this sentence.";
  if (!translation.rows.length) return null;
  if (!reference.isMatched) {
    const forcedWords = toForcedWords(run, reference.text);
    const force = () => change({ forcedWords, beamSize: 1, cell: null });
    const button = toggleButton(`${id}-reference`, false, force, "force this translation");
    return [`Reference translation: ${reference.text} `, button];
  }
  const { isComplete, weights } = translation;
  const verdict = isComplete
    ? "Matches the reference translation."
    : "Starts like the reference translation.";
  if (!weights || !reference.links) return verdict;
  const rate = alignmentErrorRate(weights, reference.links, isComplete);
  if (rate === null) return verdict;
  return `${verdict} Alignment error ${rate.toFixed(2)}.`;
}

/**
 * Returns whether the ids of a translation are those of a text, or the first ones of them.
 *
 * @param {LiveRun} run
 * @param {Translation} translation
 * @param {string} text
 */
function matches(run, { ids, isComplete, isTruncated }, text) {
  const expected = toIds(run.target, tokenize(run.target, text));
  return !isTruncated && String(isComplete ? expected : expected.slice(0, ids.length)) === String(ids);
}

/**
 * @param {LiveRun} run
 * @param {string} text
 * @returns {Record<number, string>}
 */
function toForcedWords(run, text) {
  return Object.fromEntries([...tokenize(run.target, text), EOS].map((word, t) => [t, word]));
}
