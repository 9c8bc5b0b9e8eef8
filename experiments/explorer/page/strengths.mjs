// How strongly weights are drawn: shares as they are, others by the largest of them.

const ROUNDING = 1e-4; // by which a recorded weight of 0 or 1 may be off

/** @import { Vector } from "./linalg.mjs" */

/**
 * Returns the smallest and the largest weight, or 0.
 *
 * @param {Vector[]} weights
 */
function rangeOf(weights) {
  let [low, high] = [0, 0];
  for (const row of weights) {
    for (const weight of row) [low, high] = [Math.min(low, weight), Math.max(high, weight)];
  }
  return [low, high];
}

/** @param {number[]} range */
function areShares([low, high]) {
  return low >= -ROUNDING && high <= 1 + ROUNDING;
}

/**
 * Returns rows of numbers in [0, 1]: shares as they are, other weights without sign, over the largest.
 *
 * @param {Vector[]} weights
 */
export function strengthsOf(weights) {
  const [low, high] = rangeOf(weights);
  const most = areShares([low, high]) ? 1 : Math.max(-low, high);
  return weights.map((row) => Float64Array.from(row, (weight) => Math.min(Math.abs(weight) / most, 1)));
}

/**
 * Returns a line about weights that are not shares; null for shares.
 *
 * @param {Vector[]} weights
 */
export function toldRange(weights) {
  const [low, high] = rangeOf(weights);
  if (areShares([low, high])) return null;
  const range = `Weights from ${number(low)} to ${number(high)}, not in [0, 1]: the darkest is the largest`;
  return `${range}${low < -ROUNDING ? "; those below 0 have another colour" : ""}.`;
}

/** @param {number} value */
function number(value) {
  return String(Number(value.toPrecision(3))).replace("-", "−");
}
