// Truth, where it is known: how far the strongest weights are from the true links.

/**
 * Returns the alignment error rate of a sentence, from 0 (the same links) to 1 (no link in common), as
 * experiments/translation/metrics.py has it: null where there is no link at all.
 *
 * @param {ArrayLike<number>[]} weights a row for each target word; the last column is the end of the source.
 * @param {[number, number][]} links true ones, (target, source).
 * @param {boolean} hasEnd whether the last row is the end's, not a word's.
 */
export function alignmentErrorRate(weights, links, hasEnd = true) {
  const found = strongestLinks(hasEnd ? weights.slice(0, -1) : weights);
  const truth = new Set(links.map(String));
  const common = found.filter((link) => truth.has(String(link))).length;
  const total = found.length + truth.size;
  return total ? 1 - (2 * common) / total : null;
}

/** Returns each target word's link to its strongest source word, if that is a word and has any weight. */
function strongestLinks(words) {
  return words.flatMap((row, t) => {
    let best = 0;
    for (let s = 1; s < row.length; s++) if (row[s] > row[best]) best = s;
    return best < row.length - 1 && row[best] > 0 ? [[t, best]] : [];
  });
}
