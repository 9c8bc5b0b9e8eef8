// The words along the edges of a canvas: every n-th one, if there are many.

import { svg } from "./dom.mjs";
import { ellipsize } from "./format.mjs";

/** @import { Attributes } from "./dom.mjs" */

export const LABEL_SIZE = 14; // height of a label in pixels
const CHARACTER_WIDTH = 8;
const MAX_WORD_LENGTH = 16;

/**
 * Draws the labels of the columns, rotated by 90 degrees.
 *
 * @param {string[]} words
 * @param {number} size of a cell in pixels.
 * @param {number} interval n.
 */
export function columnLabels(words, size, interval) {
  const height = widthOf(words, interval);
  const labels = everyNth(words, interval, (word, s) => {
    const x = (s + 0.5) * size + LABEL_SIZE / 3;
    return label(word, { transform: `translate(${x} ${height - 4}) rotate(-90)` });
  });
  return svg("svg", { class: "column-labels", width: words.length * size, height }, labels);
}

/**
 * Draws the labels of the rows.
 *
 * @param {string[]} words
 * @param {number} size of a cell in pixels.
 * @param {number} interval n.
 */
export function rowLabels(words, size, interval) {
  const width = widthOf(words, interval);
  const labels = everyNth(words, interval, (word, t) =>
    label(word, { x: width - 4, y: (t + 0.5) * size + LABEL_SIZE / 3, "text-anchor": "end" }),
  );
  return svg("svg", { class: "row-labels", width, height: words.length * size }, labels);
}

/**
 * @param {string[]} words
 * @param {number} n
 * @param {(word: string, i: number) => Element} draw
 */
function everyNth(words, n, draw) {
  return words.map((word, i) => (i % n ? null : draw(word, i)));
}

/**
 * @param {string} word
 * @param {Attributes} attributes
 */
function label(word, attributes) {
  return svg("text", attributes, ellipsize(word, MAX_WORD_LENGTH), svg("title", {}, word));
}

/**
 * Returns the approximate width of the longest label in pixels.
 *
 * @param {string[]} words
 * @param {number} interval
 */
function widthOf(words, interval) {
  const labeled = words.filter((_, i) => i % interval === 0);
  const lengths = labeled.map((word) => [...ellipsize(word, MAX_WORD_LENGTH)].length);
  return CHARACTER_WIDTH * Math.max(2, ...lengths) + 8;
}
