// A line of facts about a translation.

import { formatCount, formatNumber, formatPercent } from "./format.mjs";

/** @import { TranslationDisplay } from "./display.mjs" */

/**
 * Returns the log-probability of a translation, and what is unusual about it.
 *
 * @param {TranslationDisplay} display
 */
export function describeFacts({ run, translation, state }) {
  const { beamSize, isComplete, steps, rows, score } = translation;
  const { numDroppedTokens, unknownForcedWords, unknownWords, sourceTokens, changes } = translation;
  const logProbability = steps.reduce((sum, step) => sum + step.logProbability, 0);
  const scope = isComplete ? "" : ` of the ${formatCount(rows.length, "step")} shown`;
  const percent = formatPercent(Math.exp(logProbability));
  const facts = [`Log-probability${scope} ${formatNumber(logProbability, 3)} (${percent})`];
  if (beamSize > 1 && isComplete) facts.push(`beam score ${formatNumber(score, 3)}`);
  if (translation.isTruncated) facts.push(`truncated to ${run.max_length} tokens`);
  if (unknownWords.length) facts.push(`unknown words: ${unknownWords.join(" ")}`);
  if (numDroppedTokens)
    facts.push(`the last ${formatCount(numDroppedTokens, "token")} of the source are ignored`);
  if (unknownForcedWords.length) facts.push(`not in the vocabulary: ${unknownForcedWords.join(" ")}`);
  if (beamSize > 1 && state.temperature) facts.push("beam search ignores the temperature");
  if (run.max_train_length && sourceTokens.length - 1 > run.max_train_length) {
    facts.push(`longer than all training sentences (at most ${formatCount(run.max_train_length, "token")})`);
  }
  return [...facts, ...describeMask(sourceTokens.length, changes.masked)].join(" · ");
}

/**
 * @param {number} numTokens of the source, with EOS.
 * @param {number[]} masked
 */
function describeMask(numTokens, masked) {
  if (!masked.length) return [];
  if (masked.length === numTokens) return ["all source words are hidden, so all weights are 0"];
  const areAllWords = masked.length === numTokens - 1 && !masked.includes(numTokens - 1);
  if (areAllWords) return ["all source words are hidden; the decoder can only attend to </s>"];
  return ["the decoder cannot attend to hidden words, but the encoder has read them"];
}
