// Vectors and matrices.

/** @typedef {Float32Array | Float64Array} Vector */
/** @typedef {{rows: number, columns: number, data: Float32Array}} Matrix stored row by row. */

/**
 * Returns the product of a row vector and the rows of a matrix from `firstRow` on.
 *
 * @param {Vector} vector
 * @param {Matrix} matrix
 */
export function vecMat(vector, matrix, firstRow = 0) {
  const { columns, data } = matrix;
  const sums = new Float64Array(columns);
  for (let i = 0; i < vector.length; i++) {
    const factor = vector[i];
    const offset = (firstRow + i) * columns;
    for (let j = 0; j < columns; j++) sums[j] += factor * data[offset + j];
  }
  return sums;
}

/**
 * Returns the product of a matrix and a column vector.
 *
 * @param {Matrix} matrix
 * @param {Vector} vector
 */
export function matVec(matrix, vector) {
  const { rows, columns, data } = matrix;
  return Float64Array.from({ length: rows }, (_, i) => {
    let sum = 0;
    for (let j = 0; j < columns; j++) sum += vector[j] * data[i * columns + j];
    return sum;
  });
}

/**
 * Returns row i of a matrix.
 *
 * @param {Matrix} matrix
 * @param {number} i
 */
export function matrixRow(matrix, i) {
  return matrix.data.subarray(i * matrix.columns, (i + 1) * matrix.columns);
}

/**
 * @param {Vector} a
 * @param {Vector} b
 */
export function add(a, b) {
  return Float64Array.from(a, (value, i) => value + b[i]);
}

/**
 * @param {Vector} a
 * @param {Vector} b
 */
export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** @param {Vector} vector */
export function norm(vector) {
  return Math.sqrt(dot(vector, vector));
}

/** @param {Vector} vector */
export function mean(vector) {
  let sum = 0;
  for (const value of vector) sum += value;
  return sum / vector.length;
}

/** @param {Vector[]} vectors */
export function concatenate(...vectors) {
  const result = new Float64Array(vectors.reduce((sum, { length }) => sum + length, 0));
  let offset = 0;
  for (const vector of vectors) {
    result.set(vector, offset);
    offset += vector.length;
  }
  return result;
}

/**
 * Returns the weighted sum of vectors.
 *
 * @param {Vector} weights
 * @param {Vector[]} vectors
 */
export function weightedSum(weights, vectors) {
  const sums = new Float64Array(vectors[0].length);
  vectors.forEach((vector, s) => {
    if (weights[s]) for (let i = 0; i < sums.length; i++) sums[i] += weights[s] * vector[i];
  });
  return sums;
}

/** @param {Vector} vector */
export function tanh(vector) {
  return vector.map(Math.tanh);
}

/** @param {number} value */
export function sigmoid(value) {
  return 1 / (1 + Math.exp(-value));
}

/**
 * Returns the softmax of scores. A score of -Infinity has weight 0. If all scores are -Infinity, all weights are 0.
 *
 * @param {ArrayLike<number>} scores
 */
export function softmax(scores) {
  const max = scores[argmax(scores)];
  if (max === -Infinity) return new Float64Array(scores.length);
  const exponentials = Float64Array.from(scores, (score) => Math.exp(score - max));
  const sum = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((value) => value / sum);
}

/**
 * Returns the logarithm of the softmax.
 *
 * @param {Vector} logits
 */
export function logSoftmax(logits) {
  const max = logits[argmax(logits)];
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - max);
  return Float64Array.from(logits, (logit) => logit - max - Math.log(sum));
}

/**
 * Returns the index of the largest value, the first one if several are equal.
 *
 * @param {ArrayLike<number>} values
 */
export function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/**
 * Returns the indices of the k largest values, in descending order of value. Equal values keep their order.
 *
 * @param {ArrayLike<number>} values
 * @param {number} k
 */
export function topK(values, k) {
  /** @type {number[]} */
  const best = [];
  for (let i = 0; i < values.length; i++) {
    if (best.length === k && !(values[i] > values[best[k - 1]])) continue;
    let rank = best.length;
    while (rank > 0 && values[i] > values[best[rank - 1]]) rank--;
    best.splice(rank, 0, i);
    if (best.length > k) best.pop();
  }
  return best;
}

/**
 * Returns a random number generator (mulberry32): a function that returns numbers in [0, 1).
 *
 * @param {number} seed
 */
export function makeRandom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
