// The search for a token.

/**
 * Returns the positions of the words that contain a text, in any case; none for an empty text.
 *
 * @param {string[]} words
 * @param {string} text
 */
export function findWords(words, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  return words.flatMap((word, i) => (word.toLowerCase().includes(wanted) ? [i] : []));
}

/**
 * Describes where a text was found.
 *
 * @param {string} text
 * @param {string[]} rows
 * @param {string[]} columns
 */
export function describeFound(text, rows, columns) {
  if (!text.trim()) return null;
  const [inRows, inColumns] = [findWords(rows, text), findWords(columns, text)];
  const list = (/** @type {number[]} */ found) => found.map((i) => i + 1).join(", ") || "none";
  return `“${text.trim()}” in rows: ${list(inRows)}; in columns: ${list(inColumns)}.`;
}
