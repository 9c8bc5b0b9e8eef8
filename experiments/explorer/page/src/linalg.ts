// Vectors and matrices.

export type Vector = Float32Array | Float64Array;

/** A matrix, stored row by row. */
export interface Matrix {
  rows: number;
  columns: number;
  data: Float32Array;
}

/** Returns the product of a row vector and a matrix. */
export function vecMat(vector: Vector, { columns, data }: Matrix): Float64Array {
  const sums = new Float64Array(columns);
  for (let i = 0; i < vector.length; i++) {
    const factor = vector[i];
    const offset = i * columns;
    for (let j = 0; j < columns; j++) sums[j] += factor * data[offset + j];
  }
  return sums;
}

/** Returns the product of a matrix and a column vector. */
export function matVec(matrix: Matrix, vector: Vector): Float64Array {
  return Float64Array.from({ length: matrix.rows }, (_, i) => dot(matrixRow(matrix, i), vector));
}

/** Returns row i of a matrix. */
export function matrixRow({ columns, data }: Matrix, i: number): Float32Array {
  return data.subarray(i * columns, (i + 1) * columns);
}

/** Returns the sum of two vectors. */
export function add(a: Vector, b: Vector): Float64Array {
  return Float64Array.from(a, (value, i) => value + b[i]);
}

/** Returns the dot product of two vectors. */
export function dot(a: Vector, b: Vector): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** Returns the Euclidean norm. */
export function norm(vector: Vector): number {
  return Math.sqrt(dot(vector, vector));
}

/** Returns the mean of the values. */
export function mean(vector: Vector): number {
  let sum = 0;
  for (const value of vector) sum += value;
  return sum / vector.length;
}

/** Returns one vector with the values of all. */
export function concatenate(...vectors: (Vector | never[])[]): Float64Array {
  const result = new Float64Array(vectors.reduce((sum, { length }) => sum + length, 0));
  let offset = 0;
  for (const vector of vectors) {
    result.set(vector, offset);
    offset += vector.length;
  }
  return result;
}

/** Returns the weighted sum of vectors. */
export function weightedSum(weights: Vector, vectors: Vector[]): Float64Array {
  const sums = new Float64Array(vectors[0].length);
  vectors.forEach((vector, s) => {
    for (let i = 0; i < sums.length; i++) sums[i] += weights[s] * vector[i];
  });
  return sums;
}

/** Returns the softmax of scores. Scores of -Infinity have weight 0, also if all are -Infinity. */
export function softmax(scores: ArrayLike<number>): Float64Array {
  const max = scores[argmax(scores)];
  if (max === -Infinity) return new Float64Array(scores.length);
  const exponentials = Float64Array.from(scores, (score) => Math.exp(score - max));
  const sum = exponentials.reduce((a, b) => a + b, 0);
  return exponentials.map((value) => value / sum);
}

/** Returns the logarithm of the softmax. */
export function logSoftmax(logits: Vector): Float64Array {
  const max = logits[argmax(logits)];
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - max);
  return Float64Array.from(logits, (logit) => logit - max - Math.log(sum));
}

/** Returns the index of the largest value, the first one if several are equal. */
export function argmax(values: ArrayLike<number>): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** Returns the indices of the k largest values, in descending order of value. Equal values keep their order. */
export function topK(values: ArrayLike<number>, k: number): number[] {
  const best: number[] = [];
  for (let i = 0; i < values.length; i++) {
    if (best.length === k && !(values[i] > values[best[k - 1]])) continue;
    let rank = best.length;
    while (rank > 0 && values[i] > values[best[rank - 1]]) rank--;
    best.splice(rank, 0, i);
    if (best.length > k) best.pop();
  }
  return best;
}
