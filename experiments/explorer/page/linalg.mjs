// Vectors and matrices.

/** @typedef {Float32Array | Float64Array} Vector */
/** @typedef {{rows: number, columns: number, data: Float32Array}} Matrix data row by row. */

/**
 * Returns the product of a vector and the rows of a matrix, from one of them on.
 *
 * @param {Vector} vector
 * @param {Matrix} matrix
 */
export function times(vector, matrix, firstRow = 0) {
  const { columns, data } = matrix;
  const sums = new Float64Array(columns);
  for (let i = 0; i < vector.length; i++) {
    const factor = vector[i];
    const row = (firstRow + i) * columns;
    for (let j = 0; j < columns; j++) sums[j] += factor * data[row + j];
  }
  return sums;
}

/**
 * Returns the product of a vector with each row of a matrix, as for logits of tied embeddings.
 *
 * @param {Vector} vector
 * @param {Matrix} matrix
 */
export function timesRows(vector, matrix) {
  const { rows, columns, data } = matrix;
  return Float64Array.from({ length: rows }, (_, i) => {
    let sum = 0;
    for (let j = 0; j < columns; j++) sum += vector[j] * data[i * columns + j];
    return sum;
  });
}

/**
 * Returns one row of a matrix.
 *
 * @param {Matrix} matrix
 * @param {number} i
 */
export function rowOf(matrix, i) {
  return matrix.data.subarray(i * matrix.columns, (i + 1) * matrix.columns);
}

/**
 * @param {Vector} one
 * @param {Vector} other
 */
export function plus(one, other) {
  return Float64Array.from(one, (number, i) => number + other[i]);
}

/**
 * @param {Vector} one
 * @param {Vector} other
 */
export function dot(one, other) {
  let sum = 0;
  for (let i = 0; i < one.length; i++) sum += one[i] * other[i];
  return sum;
}

/** @param {Vector} vector */
export function mean(vector) {
  let sum = 0;
  for (const number of vector) sum += number;
  return sum / vector.length;
}

/**
 * Returns the concatenation of vectors.
 *
 * @param {Vector[]} vectors
 */
export function concatenate(...vectors) {
  const all = new Float64Array(vectors.reduce((sum, vector) => sum + vector.length, 0));
  let first = 0;
  for (const vector of vectors) {
    all.set(vector, first);
    first += vector.length;
  }
  return all;
}

/**
 * Returns the sum of vectors, each times its weight.
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

/** @param {number} number */
export function sigmoid(number) {
  return 1 / (1 + Math.exp(-number));
}

/**
 * Returns weights that sum to 1; those of scores of -Infinity are 0. Zeros if all scores are -Infinity.
 *
 * @param {ArrayLike<number>} scores
 */
export function softmax(scores) {
  const most = scores[argmax(scores)];
  if (most === -Infinity) return new Float64Array(scores.length);
  const exponentials = Float64Array.from(scores, (score) => Math.exp(score - most));
  const sum = exponentials.reduce((one, other) => one + other, 0);
  return exponentials.map((each) => each / sum);
}

/**
 * Returns the logarithms of the softmax.
 *
 * @param {Vector} logits
 */
export function logSoftmax(logits) {
  const most = logits[argmax(logits)];
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - most);
  return Float64Array.from(logits, (logit) => logit - most - Math.log(sum));
}

/**
 * Returns the first position of the largest number.
 *
 * @param {ArrayLike<number>} numbers
 */
export function argmax(numbers) {
  let best = 0;
  for (let i = 1; i < numbers.length; i++) if (numbers[i] > numbers[best]) best = i;
  return best;
}

/**
 * Returns the positions of the largest numbers, the largest first; of equals the first.
 *
 * @param {ArrayLike<number>} numbers
 * @param {number} count
 */
export function largest(numbers, count) {
  /** @type {number[]} */
  const best = [];
  for (let i = 0; i < numbers.length; i++) {
    if (best.length === count && !(numbers[i] > numbers[best[count - 1]])) continue;
    let place = best.length;
    while (place > 0 && numbers[i] > numbers[best[place - 1]]) place--;
    best.splice(place, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}

/**
 * Returns a function that draws numbers in [0, 1), the same for the same seed (mulberry32).
 *
 * @param {number} seed
 */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
