// The attention of the decoder: scores, weights and context, as in attention/scores.

import type { Arrays } from "./arrays";
import type { Attention } from "./data";
import { add, dot, norm, softmax, type Vector, vecMat, weightedSum } from "./linalg";
import type { Model, Source } from "./model";

/** Query, scores and weights are null for a model without attention. */
export interface AttentionOutput {
  query: Vector | null;
  scores: number[] | null;
  weights: Vector | null;
  context: Vector;
}

/** Uniform weights, or weight 1 on one source position. */
export type Override = "uniform" | number;

/** The user's changes of the attention of one step. */
export interface AttentionChange {
  hidden: Set<number>; // source positions that cannot be attended to
  override?: Override; // replaces the computed weights
}

const SCORES: Record<Attention, (arrays: Arrays, query: Vector, keys: Vector[]) => number[]> = {
  additive: ({ vectors }, query, keys) =>
    keys.map((key) => dot(vectors["decoder/attention_layer/score_vector"], add(query, key).map(Math.tanh))),
  dot_product: (_, query, keys) => keys.map((key) => dot(query, key)),
  scaled_dot_product: (_, query, keys) => keys.map((key) => dot(query, key) / Math.sqrt(query.length)),
  cosine: ({ vectors }, query, keys) => {
    const unitQuery = normalize(query);
    return keys.map((key) => vectors["decoder/attention_layer/scale"][0] * dot(unitQuery, normalize(key)));
  },
  bilinear: ({ matrices }, query, keys) => {
    const projectedQuery = vecMat(query, matrices["decoder/attention_layer/matrix"]);
    return keys.map((key) => dot(projectedQuery, key));
  },
};

/** Attends to the source from a state of the decoder. */
export function attend(
  model: Model,
  state: Vector,
  source: Source,
  change: AttentionChange,
): AttentionOutput {
  const { arrays, shape } = model;
  if (shape.attention === "none") {
    return { query: null, scores: null, weights: null, context: source.finalState };
  }
  const kernel = arrays.matrices["decoder/attention_layer/query/kernel"];
  const query = kernel ? vecMat(state, kernel) : state;
  const scores = SCORES[shape.attention](arrays, query, source.keys);
  const weights = weightsOf(scores, change);
  return { query, scores, weights, context: weightedSum(weights, source.memory) };
}

function weightsOf(scores: number[], { hidden, override }: AttentionChange): Vector {
  if (typeof override === "number" && override < scores.length) {
    return Float64Array.from(scores, (_, s) => Number(s === override));
  }
  return softmax(scores.map((score, s) => (hidden.has(s) ? -Infinity : override === "uniform" ? 0 : score)));
}

function normalize(vector: Vector): Vector {
  const length = norm(vector);
  return length ? vector.map((value) => value / length) : vector;
}
