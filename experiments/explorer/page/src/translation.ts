// Translates a text with a run. The result has only what the page shows, so that the worker can send it.

import type { Arrays } from "./arrays";
import type { AttentionOutput, Override } from "./attention";
import type { LiveRun } from "./data";
import { topK, type Vector } from "./linalg";
import { encode } from "./model";
import { search, type TokenStep } from "./search";
import * as tokenizer from "./tokenizer";

/** A text and the user's changes of its translation. */
export interface TranslationOptions {
  text: string;
  beamSize: number | null; // null for the beam size of the run
  hypothesis: number; // index of the hypothesis that is shown
  hidden: number[]; // source positions that cannot be attended to
  /** Target tokens, and attention weights, that replace those of the model at a target position. */
  forced: Record<number, string>;
  overrides: Record<number, Override>;
}

interface TranslationStep extends AttentionOutput {
  token: string; // the chosen one
  logProbability: number;
  candidates: { token: string; probability: number }[]; // the most probable tokens
  state: Vector; // the next state of the last decoder layer
  features: Vector;
}

/** A translation of a text, or its first steps. */
export interface Translation {
  options: TranslationOptions;
  columns: string[]; // source tokens with tokenizer.EOS, for display
  rows: string[]; // target tokens with tokenizer.EOS, for display
  tokens: string[]; // target tokens without tokenizer.EOS, and their text
  text: string;
  steps: TranslationStep[];
  weights: Vector[] | null; // A row for each step; null without attention
  beamSize: number;
  hypotheses: { tokens: string[]; score: number; isTruncated: boolean }[];
  score: number;
  isComplete: boolean; // whether it has all steps
  isTruncated: boolean; // whether it does not end with tokenizer.EOS
  /** Source tokens, and target tokens that the user has forced, that are not in the vocabulary. */
  unknownTokens: string[];
  numDropped: number; // number of source tokens that are ignored because the source is too long
  keys: Vector[]; // the attention key of each source token
}

const MAX_SOURCE_TOKENS = 400;
const NUM_CANDIDATES = 6;

/** Returns a run's translation of a text, or null for a text without tokens. */
export function translate(run: LiveRun, arrays: Arrays, options: TranslationOptions): Translation | null {
  const allTokens = tokenizer.tokenize(run.source, options.text);
  if (!allTokens.length || tokenizer.isBlank(options.text)) return null;
  const sourceTokens = allTokens.slice(0, MAX_SOURCE_TOKENS);
  const sourceIds = [...tokenizer.toIds(run.source, sourceTokens), tokenizer.EOS_ID];
  const model = { shape: run.shape, arrays };
  const source = encode(model, sourceIds);
  const beamSize = options.beamSize ?? run.beam_size;
  const forced = Object.entries(options.forced).map(([t, token]) => [t, targetId(run, token)]);
  const searchOptions = {
    maxLength: run.max_length,
    beamSize,
    lengthPenalty: run.length_penalty,
    hidden: new Set(options.hidden),
    forced: Object.fromEntries(forced),
    overrides: options.overrides,
  };
  const hypotheses = search(model, source, searchOptions);
  const { steps, score, isTruncated } = hypotheses[options.hypothesis] ?? hypotheses[0];
  const tokensOf = (hypothesis: TokenStep[]) =>
    hypothesis.map(({ token }) => tokenizer.toToken(run.target, token));
  const tokens = tokensOf(isTruncated ? steps : steps.slice(0, -1));
  const weights = steps.flatMap((step) => step.weights ?? []);
  return {
    options,
    columns: [...sourceTokens.map(tokenizer.displayToken), tokenizer.EOS],
    rows: tokensOf(steps).map(tokenizer.displayToken),
    tokens,
    text: tokenizer.detokenize(run.target, tokens),
    steps: steps.map((step) => withoutLogits(run, step)),
    weights: weights.length ? weights : null,
    beamSize,
    hypotheses: hypotheses.map((hypothesis) => ({
      ...hypothesis,
      steps: undefined,
      tokens: tokensOf(hypothesis.steps).map(tokenizer.displayToken),
    })),
    score,
    isComplete: true,
    isTruncated,
    unknownTokens: unknownTokens(run, sourceTokens, options),
    numDropped: allTokens.length - sourceTokens.length,
    keys: source.keys,
  };
}

function targetId(run: LiveRun, token: string): number {
  return token === tokenizer.EOS ? tokenizer.EOS_ID : tokenizer.toIds(run.target, [token])[0];
}

function unknownTokens(run: LiveRun, sourceTokens: string[], { forced }: TranslationOptions): string[] {
  const sourceIds = tokenizer.toIds(run.source, sourceTokens);
  const unknown = [
    ...sourceTokens.filter((_, s) => sourceIds[s] === tokenizer.UNK_ID),
    ...Object.values(forced).filter(
      (token) => token !== tokenizer.UNK && targetId(run, token) === tokenizer.UNK_ID,
    ),
  ];
  return [...new Set(unknown.map(tokenizer.displayToken))];
}

function withoutLogits(run: LiveRun, step: TokenStep): TranslationStep {
  const { token, logProbabilities, logits: _, state, ...rest } = step;
  return {
    ...rest,
    token: tokenizer.toToken(run.target, token),
    logProbability: logProbabilities[token],
    candidates: topK(logProbabilities, NUM_CANDIDATES).map((id) => ({
      token: tokenizer.toToken(run.target, id),
      probability: Math.exp(logProbabilities[id]),
    })),
    state: state.layers[state.layers.length - 1],
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
    text: tokenizer.detokenize(run.target, tokens),
    weights: translation.weights?.slice(0, count) ?? null,
  };
}
