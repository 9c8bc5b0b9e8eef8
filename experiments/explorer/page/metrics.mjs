// How far the strongest weights are from the true links, where these are known.

import { argmax } from "./linalg.mjs";

/** @import { Cell } from "./data" */

/**
 * Returns the alignment error rate of a sentence, from 0 (the same links) to 1 (no link in common), as
 * experiments/translation/metrics.py computes it; null if there is no link.
 *
 * @param {ArrayLike<number>[]} weights a row for each target word; the last column is the end of the source.
 * @param {Cell[]} links true ones.
 * @param {boolean} hasEnd whether the last row is that of the end, not of a word.
 */
export function alignmentErrorRate(weights, links, hasEnd = true) {
  const strongest = strongestLinks(hasEnd ? weights.slice(0, -1) : weights);
  const truth = new Set(links.map(String));
  const common = strongest.filter((link) => truth.has(String(link))).length;
  const total = strongest.length + truth.size;
  return total ? 1 - (2 * common) / total : null;
}

/**
 * Returns the link of each target word to its strongest source word, if that is a word and has any weight.
 *
 * @param {ArrayLike<number>[]} words
 */
function strongestLinks(words) {
  return words.flatMap((row, t) => {
    const best = argmax(row);
    return best < row.length - 1 && row[best] > 0 ? [[t, best]] : [];
  });
}
