// Greedy search and beam search, as in attention/decoding.

import type { Override } from "./attention";
import { argmax, logSoftmax, topK, type Vector } from "./linalg";
import {
  type DecoderState,
  decodeStep,
  initialState,
  type Model,
  type Source,
  type StepOutput,
} from "./model";
import { BOS_ID, EOS_ID, PAD_ID } from "./tokenizer";

export interface SearchOptions {
  maxLength: number;
  beamSize: number;
  lengthPenalty: number;
  /** The user's changes: source positions that cannot be attended to; token ids and weights by target position. */
  hidden: Set<number>;
  forced: Map<number, number>;
  overrides: Map<number, Override>;
}

/** A step and the token that was chosen. */
export interface TokenStep extends StepOutput {
  token: number;
  logProbabilities: Vector;
}

export interface Hypothesis {
  steps: TokenStep[];
  /** The log-probability; in beam search, over a power of the length. */
  score: number;
  /** Whether it does not end with EOS. */
  isTruncated: boolean;
}

/** Returns the finished hypotheses by score, followed by truncated ones. */
export function search(model: Model, source: Source, options: SearchOptions): Hypothesis[] {
  return options.beamSize > 1 ? beamSearch(model, source, options) : [greedySearch(model, source, options)];
}

function greedySearch(model: Model, source: Source, options: SearchOptions): Hypothesis {
  const steps: TokenStep[] = [];
  let [state, token, score] = [initialState(model, source), BOS_ID, 0];
  for (let t = 0; t < options.maxLength && token !== EOS_ID; t++) {
    const prediction = predict(model, state, token, source, options, t);
    token = options.forced.get(t) ?? argmax(prediction.logits);
    score += prediction.logProbabilities[token];
    state = prediction.state;
    steps.push({ token, ...prediction });
  }
  return { steps, score, isTruncated: token !== EOS_ID };
}

/** A hypothesis and its log-probability. */
interface Beam extends Hypothesis {
  logProbability: number;
}

function beamSearch(model: Model, source: Source, options: SearchOptions): Hypothesis[] {
  const { maxLength, beamSize, lengthPenalty } = options;
  const initial = initialState(model, source);
  let alive: Beam[] = [{ steps: [], logProbability: 0, score: 0, isTruncated: true }];
  let finished: Beam[] = [];
  let isExhaustive = true; // no hypothesis has been pruned
  for (let t = 0; t < maxLength && alive.length && !isDone(); t++) {
    const extended = alive.flatMap((beam) => extend(beam, t));
    extended.sort((a, b) => b.logProbability - a.logProbability);
    const unfinished = extended.filter(({ isTruncated }) => isTruncated);
    isExhaustive &&= t === maxLength - 1 || unfinished.length <= beamSize;
    const threshold = isExhaustive ? -Infinity : (unfinished[beamSize - 1]?.logProbability ?? -Infinity);
    const newlyFinished = extended.filter((beam) => !beam.isTruncated && beam.logProbability >= threshold);
    finished = [...finished, ...newlyFinished].sort((a, b) => b.score - a.score).slice(0, beamSize);
    alive = unfinished.slice(0, beamSize);
  }
  return [...finished, ...alive.filter(({ steps }) => steps.length === maxLength)];

  function scoreOf(logProbability: number, length: number): number {
    return logProbability / ((5 + length) / 6) ** lengthPenalty;
  }

  /** Log-probabilities are negative, so the longest length gives the best score that an alive beam can reach. */
  function isDone(): boolean {
    const best = Math.max(...alive.map(({ logProbability }) => logProbability));
    return finished.length > 0 && finished[0].score >= scoreOf(best, maxLength);
  }

  /** Returns the continuations of a beam: the beamSize + 2 most probable ones, and EOS. */
  function extend({ steps, logProbability: sum }: Beam, t: number): Beam[] {
    const last = steps.at(-1);
    const prediction = predict(model, last?.state ?? initial, last?.token ?? BOS_ID, source, options, t);
    const forced = options.forced.get(t);
    const tokens = forced === undefined ? [...topK(prediction.logits, beamSize + 2), EOS_ID] : [forced];
    const beams = [...new Set(tokens)].map((token) => {
      const logProbability = sum + prediction.logProbabilities[token];
      const score = scoreOf(logProbability, t + 1);
      return {
        steps: [...steps, { token, ...prediction }],
        logProbability,
        score,
        isTruncated: token !== EOS_ID,
      };
    });
    return beams.filter(({ logProbability }) => logProbability > -Infinity);
  }
}

/** Computes the log-probabilities of the next token. PAD and BOS have -Infinity. */
function predict(
  model: Model,
  state: DecoderState,
  token: number,
  source: Source,
  { hidden, overrides }: SearchOptions,
  t: number,
): Omit<TokenStep, "token"> {
  const output = decodeStep(model, state, token, source, { hidden, override: overrides.get(t) });
  output.logits[PAD_ID] = output.logits[BOS_ID] = -Infinity;
  return { ...output, logProbabilities: logSoftmax(output.logits) };
}
