// Greedy search and beam search, as in attention/decoding.

import type { Override } from "./attention";
import { argmax, logSoftmax, topK, type Vector } from "./linalg";
import { decodeStep, initialState, type Model, type Source, type StepOutput } from "./model";
import { BOS_ID, EOS_ID, PAD_ID } from "./tokenizer";

interface SearchOptions {
  maxLength: number;
  beamSize: number;
  lengthPenalty: number;
  /** The user's changes: source positions that cannot be attended to; token ids and weights by target position. */
  hidden: Set<number>;
  forced: Record<number, number>;
  overrides: Record<number, Override>;
}

/** A step and the token that was chosen. */
export interface TokenStep extends StepOutput {
  token: number;
  logProbabilities: Vector;
}

interface Hypothesis {
  steps: TokenStep[];
  score: number; // the log-probability; in beam search, over a power of the length
  isTruncated: boolean; // whether it does not end with EOS
}

/** Returns the finished hypotheses by score, followed by truncated ones. */
export function search(model: Model, source: Source, options: SearchOptions): Hypothesis[] {
  return options.beamSize > 1 ? beamSearch(model, source, options) : [greedySearch(model, source, options)];
}

function greedySearch(model: Model, source: Source, options: SearchOptions): Hypothesis {
  const steps: TokenStep[] = [];
  let last: LastStep = { state: initialState(model, source), token: BOS_ID };
  let score = 0;
  for (let t = 0; t < options.maxLength && last.token !== EOS_ID; t++) {
    const prediction = predict(model, source, options, last, t);
    const token = options.forced[t] ?? argmax(prediction.logits);
    score += prediction.logProbabilities[token];
    steps.push({ ...prediction, token });
    last = steps[t];
  }
  return { steps, score, isTruncated: last.token !== EOS_ID };
}

/** A hypothesis and its log-probability. */
type Beam = Hypothesis & { logProbability: number };

function beamSearch(model: Model, source: Source, options: SearchOptions): Hypothesis[] {
  const { maxLength, beamSize, lengthPenalty } = options;
  const first = { state: initialState(model, source), token: BOS_ID };
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
    const prediction = predict(model, source, options, steps.at(-1) ?? first, t);
    const forced = options.forced[t];
    const tokens = forced === undefined ? [...topK(prediction.logits, beamSize + 2), EOS_ID] : [forced];
    const beams = [...new Set(tokens)].map((token) => {
      const logProbability = sum + prediction.logProbabilities[token];
      const continued = { steps: [...steps, { ...prediction, token }], isTruncated: token !== EOS_ID };
      return { ...continued, logProbability, score: scoreOf(logProbability, t + 1) };
    });
    return beams.filter(({ logProbability }) => logProbability > -Infinity);
  }
}

/** What the next step needs. */
type LastStep = Pick<TokenStep, "state" | "token">;

/** Computes the log-probabilities of the token after another one. PAD and BOS have -Infinity. */
function predict(model: Model, source: Source, options: SearchOptions, last: LastStep, t: number) {
  const change = { hidden: options.hidden, override: options.overrides[t] };
  const output = decodeStep(model, last.state, last.token, source, change);
  output.logits[PAD_ID] = output.logits[BOS_ID] = -Infinity;
  return { ...output, logProbabilities: logSoftmax(output.logits) };
}
