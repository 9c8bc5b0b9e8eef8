// Vectors and matrices. A vector is an array of numbers; a matrix has rows, columns, and data, row by row.

/** Returns the product of a vector and the rows of a matrix, from one of them on. */
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

/** Returns the product of a vector with each row of a matrix, as for logits of tied embeddings. */
export function timesRows(vector, matrix) {
  const { rows, columns, data } = matrix;
  return Float64Array.from({ length: rows }, (_, i) => {
    let sum = 0;
    for (let j = 0; j < columns; j++) sum += vector[j] * data[i * columns + j];
    return sum;
  });
}

/** Returns one row of a matrix, a vector. */
export function rowOf(matrix, i) {
  return matrix.data.subarray(i * matrix.columns, (i + 1) * matrix.columns);
}

export function plus(one, other) {
  return Float64Array.from(one, (number, i) => number + other[i]);
}

export function dot(one, other) {
  let sum = 0;
  for (let i = 0; i < one.length; i++) sum += one[i] * other[i];
  return sum;
}

/** Returns vectors one after the other, as one. */
export function joined(...vectors) {
  const all = new Float64Array(vectors.reduce((sum, vector) => sum + vector.length, 0));
  let first = 0;
  for (const vector of vectors) {
    all.set(vector, first);
    first += vector.length;
  }
  return all;
}

/** Returns the sum of vectors, each times its weight. */
export function weightedSum(weights, vectors) {
  const sums = new Float64Array(vectors[0].length);
  vectors.forEach((vector, s) => {
    if (weights[s]) for (let i = 0; i < sums.length; i++) sums[i] += weights[s] * vector[i];
  });
  return sums;
}

export function tanh(vector) {
  return vector.map(Math.tanh);
}

export function sigmoid(number) {
  return 1 / (1 + Math.exp(-number));
}

/** Returns weights that sum to 1, of scores of which those at -Infinity get 0; zeros where all are there. */
export function softmax(scores) {
  const most = scores[argmax(scores)];
  if (most === -Infinity) return new Float64Array(scores.length);
  const exponentials = Float64Array.from(scores, (score) => Math.exp(score - most));
  const sum = exponentials.reduce((one, other) => one + other, 0);
  return exponentials.map((each) => each / sum);
}

/** Returns the logarithms of the softmax. */
export function logSoftmax(logits) {
  const most = logits[argmax(logits)];
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - most);
  return Float64Array.from(logits, (logit) => logit - most - Math.log(sum));
}

/** Returns the first position of the largest number. */
export function argmax(numbers) {
  let best = 0;
  for (let i = 1; i < numbers.length; i++) if (numbers[i] > numbers[best]) best = i;
  return best;
}

/** Returns the positions of the largest numbers, the largest first; of equals the first. */
export function largest(numbers, count) {
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

/** Returns a function that draws numbers in [0, 1), the same for the same seed (mulberry32). */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
