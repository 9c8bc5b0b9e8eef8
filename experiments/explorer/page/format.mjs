// Formats numbers and words.

const MINUS = "−";

/**
 * Returns a number with a minus sign instead of a hyphen.
 *
 * @param {number} value
 */
export function formatNumber(value, digits = 2) {
  return value.toFixed(digits).replace("-", MINUS);
}

/**
 * Returns a weight in few characters: ".07", "1", "<.01", "−.5", "2.3e+4".
 *
 * @param {number} weight
 * @returns {string}
 */
export function formatWeight(weight) {
  if (weight < 0) return `${MINUS}${formatWeight(-weight)}`;
  if (weight > 0 && weight < 0.005) return "<.01";
  if (weight >= 100) return weight.toPrecision(2);
  return weight
    .toFixed(2)
    .replace(/^0/, "")
    .replace(".00", weight < 0.5 ? "0" : "");
}

/**
 * Returns a probability in percent: "94%", "99.7%", "0.32%", "0.02%", "< 0.01%".
 *
 * @param {number} probability
 */
export function formatPercent(probability) {
  const percent = 100 * probability;
  if (percent > 0 && percent < 0.01) return "< 0.01%";
  const numDigits = percent > 99 ? 3 : percent > 0.1 ? 2 : 1;
  return `${Number(percent.toPrecision(numDigits))}%`;
}

/**
 * @param {number} count
 * @param {string} singular
 * @param {string} plural
 */
export function formatCount(count, singular, plural = `${singular}s`) {
  return `${count} ${count === 1 ? singular : plural}`;
}

/**
 * Returns a word of at most some visible characters. A longer one ends in an ellipsis.
 *
 * @param {string} word
 */
export function ellipsize(word, maxLength = 40) {
  if (word.length <= maxLength) return word;
  const prefix = word.slice(0, 10 * maxLength);
  const characters = Array.from(new Intl.Segmenter().segment(prefix), ({ segment }) => segment);
  const isComplete = characters.length <= maxLength && prefix === word;
  return isComplete ? word : `${characters.slice(0, maxLength - 1).join("")}…`;
}

/**
 * Returns a weight in words.
 *
 * @param {string} target
 * @param {string} source
 * @param {number} weight
 * @param {boolean} isTrue
 */
export function describeWeight(target, source, weight, isTrue, digits = 3) {
  return `${target} attends to ${source}: ${weight.toFixed(digits)}${isTrue ? ", true alignment" : ""}`;
}
