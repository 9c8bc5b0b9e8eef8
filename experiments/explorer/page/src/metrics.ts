// The alignment error rate, as in experiments/evaluation/metrics.py.

import type { Cell } from "./data";
import { argmax } from "./linalg";

/**
 * Returns the alignment error rate of a sentence, from 0 (the same links) to 1 (no common link); null without links.
 * Each row of weights is a target token. The last column is the end of the source, which is not counted.
 */
export function alignmentErrorRate(rows: ArrayLike<number>[], links: Cell[]): number | null {
  const predicted = rows.flatMap((row, t) => {
    const s = argmax(row);
    return s < row.length - 1 && row[s] > 0 ? [[t, s]] : [];
  });
  const trueLinks = new Set(links.map(String));
  const numCommon = predicted.filter((link) => trueLinks.has(String(link))).length;
  const total = predicted.length + trueLinks.size;
  return total ? 1 - (2 * numCommon) / total : null;
}
