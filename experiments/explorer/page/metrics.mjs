// The alignment error rate, as in experiments/evaluation/metrics.py.

import { argmax } from "./linalg.mjs";

/** @import { Cell } from "./data" */

/**
 * Returns the alignment error rate of a sentence, between 0 (the same links) and 1 (no link in common); null without
 * links.
 *
 * @param {ArrayLike<number>[]} weights a row for each target word; the last column is the end of the source.
 * @param {Cell[]} links the true alignment.
 * @param {boolean} hasEnd whether the last row is the end of the translation, which is not counted.
 */
export function alignmentErrorRate(weights, links, hasEnd = true) {
  const predicted = strongestLinks(hasEnd ? weights.slice(0, -1) : weights);
  const trueLinks = new Set(links.map(String));
  const numCommon = predicted.filter((link) => trueLinks.has(String(link))).length;
  const total = predicted.length + trueLinks.size;
  return total ? 1 - (2 * numCommon) / total : null;
}

/**
 * Returns the link of each target word to its strongest source word, unless that is the end or has no weight.
 *
 * @param {ArrayLike<number>[]} rows
 */
function strongestLinks(rows) {
  return rows.flatMap((row, t) => {
    const s = argmax(row);
    return s < row.length - 1 && row[s] > 0 ? [[t, s]] : [];
  });
}
