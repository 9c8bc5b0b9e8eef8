// The range of weights, and how strongly each is drawn.

/** @import { Vector } from "./linalg.mjs" */

const TOLERANCE = 1e-4; // rounding error of recorded weights

/**
 * Returns the smallest and the largest weight.
 *
 * @param {Vector[]} weights
 */
function rangeOf(weights) {
  let [low, high] = [Infinity, -Infinity];
  for (const row of weights) {
    for (const weight of row) [low, high] = [Math.min(low, weight), Math.max(high, weight)];
  }
  return [low, high];
}

/** @param {number[]} range */
function isUnitRange([low, high]) {
  return low >= -TOLERANCE && high <= 1 + TOLERANCE;
}

/**
 * Returns the strength of each weight, in [0, 1]. If weights are not in [0, 1], they are divided by the largest
 * absolute value.
 *
 * @param {Vector[]} weights
 */
export function strengthsOf(weights) {
  const [low, high] = rangeOf(weights);
  const max = isUnitRange([low, high]) ? 1 : Math.max(-low, high);
  return weights.map((row) => Float64Array.from(row, (weight) => Math.min(Math.abs(weight) / max, 1)));
}

/**
 * Returns a description of weights that are not in [0, 1]; null for others.
 *
 * @param {Vector[]} weights
 */
export function describeRange(weights) {
  const [low, high] = rangeOf(weights);
  if (isUnitRange([low, high])) return null;
  const largest = low < -TOLERANCE ? "largest absolute value" : "largest";
  return `Weights range from ${round(low)} to ${round(high)}; the darkest is the ${largest}.`;
}

/** @param {number} value */
function round(value) {
  return String(Number(value.toPrecision(3))).replace("-", "−");
}
