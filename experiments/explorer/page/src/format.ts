// Formats numbers and tokens.

const MINUS = "−";

/** Returns a number with a minus sign instead of a hyphen. */
export function formatNumber(value: number, digits = 2): string {
  return value.toFixed(digits).replace("-", MINUS);
}

/** Returns a weight with at least two significant digits. */
export function formatExact(weight: number): string {
  const isSmall = weight !== 0 && Math.abs(weight) < 0.01;
  return (isSmall ? weight.toPrecision(2) : weight.toFixed(3)).replace("-", MINUS);
}

/** Returns a weight in few characters: ".07", "1", "−.5", "2.3e+4". */
export function formatWeight(weight: number): string {
  if (weight < 0) return `${MINUS}${formatWeight(-weight)}`;
  if (weight >= 100) return weight.toPrecision(2);
  return weight
    .toFixed(2)
    .replace(/^0/, "")
    .replace(".00", weight < 0.5 ? "0" : "");
}

/** Returns a probability in percent: "94%", "99.7%", "0.32%", "< 0.01%". */
export function formatPercent(probability: number): string {
  const percent = 100 * probability;
  if (percent > 0 && percent < 0.01) return "< 0.01%";
  const numDigits = percent > 99 ? 3 : percent > 0.1 ? 2 : 1;
  return `${Number(percent.toPrecision(numDigits))}%`;
}

/** Returns a count and its noun, such as "1 token" or "1,024 tokens". */
export function formatCount(count: number, singular: string, plural = `${singular}s`): string {
  return `${count.toLocaleString("en")} ${count === 1 ? singular : plural}`;
}

/** Returns a text of at most some visible characters. A longer one ends in an ellipsis. */
export function ellipsize(text: string, maxLength = 40): string {
  if (text.length <= maxLength) return text;
  const prefix = text.slice(0, 10 * maxLength);
  const characters = Array.from(new Intl.Segmenter().segment(prefix), ({ segment }) => segment);
  const isComplete = characters.length <= maxLength && prefix === text;
  return isComplete ? text : `${characters.slice(0, maxLength - 1).join("")}…`;
}
