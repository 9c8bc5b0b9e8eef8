// Translates a text with a run. The result has only what the page shows, so that the worker can send it.

import type { Arrays } from "./arrays";
import type { Override } from "./attention";
import type { LiveRun } from "./data";
import { topK, type Vector } from "./linalg";
import { encode } from "./model";
import { search, type TokenStep } from "./search";
import {
  detokenize,
  displayToken,
  EOS,
  EOS_ID,
  escapeInvisible,
  isBlank,
  toIds,
  tokenize,
  toToken,
  UNK,
  UNK_ID,
} from "./tokenizer";

/** A text and the user's changes of its translation. */
export interface TranslationOptions {
  text: string;
  /** Null for the beam size of the run. */
  beamSize: number | null;
  /** Index of the hypothesis that is shown. */
  hypothesis: number;
  /** Source positions that cannot be attended to. */
  hidden: number[];
  /** Target tokens, and attention weights, that replace those of the model at a target position. */
  forced: Record<number, string>;
  overrides: Record<number, Override>;
}

export interface TranslationStep {
  /** The chosen token. */
  token: string;
  logProbability: number;
  /** The most probable tokens. */
  candidates: { token: string; probability: number }[];
  /** Query, scores and weights are null without attention. */
  query: Vector | null;
  scores: number[] | null;
  weights: Vector | null;
  context: Vector;
  /** The next state of the last decoder layer. */
  state: Vector;
  features: Vector;
}

/** A translation of a text, or its first steps. */
export interface Translation {
  options: TranslationOptions;
  /** Source tokens with EOS, for display. */
  columns: string[];
  /** Target tokens with EOS, for display. */
  rows: string[];
  /** Target tokens without EOS, and their text. */
  tokens: string[];
  text: string;
  steps: TranslationStep[];
  /** A row for each step; null without attention. */
  weights: Vector[] | null;
  beamSize: number;
  hypotheses: { tokens: string[]; score: number; isTruncated: boolean }[];
  score: number;
  /** Whether it has all steps. */
  isComplete: boolean;
  /** Whether it does not end with EOS. */
  isTruncated: boolean;
  /** Source tokens, and target tokens that the user has forced, that are not in the vocabulary. */
  unknownTokens: string[];
  /** Number of source tokens that are ignored because the source is too long. */
  numDropped: number;
  /** The attention key of each source token. */
  keys: Vector[];
}

const MAX_SOURCE_TOKENS = 400;
const NUM_CANDIDATES = 6;

/** Returns a run's translation of a text, or null for a text without tokens. */
export function translate(run: LiveRun, arrays: Arrays, options: TranslationOptions): Translation | null {
  const allTokens = tokenize(run.source, options.text);
  if (!allTokens.length || isBlank(options.text)) return null;
  const sourceTokens = allTokens.slice(0, MAX_SOURCE_TOKENS);
  const sourceIds = [...toIds(run.source, sourceTokens), EOS_ID];
  const model = { shape: run.shape, arrays };
  const source = encode(model, sourceIds);
  const beamSize = options.beamSize ?? run.beam_size;
  const searchOptions = {
    maxLength: run.max_length,
    beamSize,
    lengthPenalty: run.length_penalty,
    hidden: new Set(options.hidden),
    forced: byPosition(options.forced, (token) => targetId(run, token)),
    overrides: byPosition(options.overrides, (override) => override),
  };
  const hypotheses = search(model, source, searchOptions);
  const { steps, score, isTruncated } = hypotheses[options.hypothesis] ?? hypotheses[0];
  const tokensOf = (hypothesis: TokenStep[]) => hypothesis.map(({ token }) => toToken(run.target, token));
  const tokens = tokensOf(isTruncated ? steps : steps.slice(0, -1));
  const weights = steps.flatMap((step) => step.weights ?? []);
  return {
    options,
    columns: [...sourceTokens.map(displayToken), EOS],
    rows: tokensOf(steps).map(displayToken),
    tokens,
    text: detokenize(run.target, tokens),
    steps: steps.map((step) => withoutLogits(run, step)),
    weights: weights.length ? weights : null,
    beamSize,
    hypotheses: hypotheses.map((hypothesis) => ({
      ...hypothesis,
      steps: undefined,
      tokens: tokensOf(hypothesis.steps).map(displayToken),
    })),
    score,
    isComplete: true,
    isTruncated,
    unknownTokens: unknownTokens(run, sourceTokens, options),
    numDropped: allTokens.length - sourceTokens.length,
    keys: source.keys,
  };
}

function byPosition<Value, Result>(values: Record<number, Value>, convert: (value: Value) => Result) {
  return new Map(Object.entries(values).map(([t, value]): [number, Result] => [Number(t), convert(value)]));
}

function targetId(run: LiveRun, token: string): number {
  return token === EOS ? EOS_ID : toIds(run.target, [token])[0];
}

function unknownTokens(run: LiveRun, sourceTokens: string[], { forced }: TranslationOptions): string[] {
  const sourceIds = toIds(run.source, sourceTokens);
  const unknown = [
    ...sourceTokens.filter((_, s) => sourceIds[s] === UNK_ID),
    ...Object.values(forced).filter((token) => token !== UNK && targetId(run, token) === UNK_ID),
  ];
  return [...new Set(unknown.map((token) => escapeInvisible(displayToken(token))))];
}

function withoutLogits(run: LiveRun, step: TokenStep): TranslationStep {
  const { token, logProbabilities, query, scores, weights, context, state, features } = step;
  return {
    token: toToken(run.target, token),
    logProbability: logProbabilities[token],
    candidates: topK(logProbabilities, NUM_CANDIDATES).map((id) => ({
      token: toToken(run.target, id),
      probability: Math.exp(logProbabilities[id]),
    })),
    query,
    scores,
    weights,
    context,
    state: state.layers[state.layers.length - 1],
    features,
  };
}

/** Returns the first steps of a translation. */
export function firstSteps(run: LiveRun, translation: Translation, count: number): Translation {
  if (count >= translation.rows.length) return translation;
  const tokens = translation.tokens.slice(0, count);
  return {
    ...translation,
    isComplete: false,
    isTruncated: false,
    steps: translation.steps.slice(0, count),
    tokens,
    rows: translation.rows.slice(0, count),
    text: detokenize(run.target, tokens),
    weights: translation.weights?.slice(0, count) ?? null,
  };
}
