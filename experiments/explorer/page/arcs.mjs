// Lines between the words of the source, above, and of the translation, below: the wider the more weight.

import { cellOf, cutShort, html, svg } from "./dom.mjs";
import { argmax } from "./linalg.mjs";
import { strengthsOf } from "./strengths.mjs";

/**
 * @import { LiveRun, RecordedRun } from "./data"
 * @import { Display, Grid } from "./display.mjs"
 * @import { Attributes } from "./dom.mjs"
 */

const WORD = 44; // pixels for each word
const LONGEST_WORD = 16; // characters
const [LEFT, RIGHT] = [24, 96];
const [TOP, BOTTOM, HEIGHT] = [92, 224, 324];
const MIDDLE = (TOP + BOTTOM) / 2;
const LEAST = 0.03;

/**
 * Draws weights as arcs, which stay where they are from step to step.
 *
 * @param {Display<LiveRun | RecordedRun>} display
 * @param {Grid} grid
 */
export function arcs({ id, change }, grid) {
  const { weights, rows, columns, links, room = rows.length } = grid;
  const inner = Math.max(room, columns.length) * WORD;
  const sourceAt = (/** @type {number} */ s) => LEFT + ((s + 0.5) / columns.length) * inner;
  const targetAt = (/** @type {number} */ t) => LEFT + ((t + 0.5) / room) * inner;
  const curve = (/** @type {number} */ t, /** @type {number} */ s) =>
    `M ${sourceAt(s)} ${TOP} C ${sourceAt(s)} ${MIDDLE}, ${targetAt(t)} ${MIDDLE}, ${targetAt(t)} ${BOTTOM}`;
  // In front of all arcs, each on a line of the paper's colour, or an arc would hide it.
  const truths = links.map(([t, s]) => [
    svg("path", { d: curve(t, s), class: "paper" }),
    svg("path", { d: curve(t, s), class: "true" }),
  ]);
  const above = columns.map((word, s) => label(word, sourceAt(s), TOP - 8, -40, { "data-source": s }));
  const below = rows.map((word, t) => label(word, targetAt(t), BOTTOM + 16, 40, { "data-target": t }));
  const strongestWords = rows.map((word, t) => `${word}: ${strongest(weights[t] ?? [], columns)}`).join("; ");
  const width = LEFT + inner + RIGHT;
  const attributes = {
    class: "arcs",
    viewBox: `0 0 ${width} ${HEIGHT}`,
    width,
    height: HEIGHT,
    role: "img",
    "aria-label": `each word of the translation and the source word that it looks at most: ${strongestWords}`,
  };
  const picture = svg("svg", attributes, lines(grid, curve), truths, above, below);
  picture.addEventListener("click", (event) => {
    const cell = cellOf(event);
    if (cell) change({ cell });
  });
  return html("div", { class: "scrolled", "data-kept": `${id}-arcs` }, picture);
}

/**
 * @param {Grid} grid
 * @param {(t: number, s: number) => string} curve
 */
function lines({ weights, rows, columns, links }, curve) {
  const truth = new Set(links.map(String));
  const strengths = strengthsOf(weights);
  return rows.map((word, t) =>
    columns.map((source, s) => {
      const weight = weights[t]?.[s] ?? 0;
      const strength = strengths[t]?.[s] ?? 0;
      const isTrue = truth.has(`${t},${s}`);
      if (strength < LEAST && !isTrue) return null;
      const label = `${word} looks at ${source}: ${weight.toFixed(3)}${isTrue ? ", a true link" : ""}`;
      const line = {
        d: curve(t, s),
        "data-cell": `${t},${s}`,
        "stroke-width": (0.5 + 7 * strength).toFixed(2),
        class: weight < 0 ? "arc below" : "arc",
      };
      return svg("path", line, svg("title", {}, label));
    }),
  );
}

/**
 * @param {string} word
 * @param {number} x
 * @param {number} y
 * @param {number} turn
 * @param {Attributes} data
 */
function label(word, x, y, turn, data) {
  const attributes = { x, y, transform: `rotate(${turn} ${x} ${y})`, ...data };
  return svg("text", attributes, cutShort(word, LONGEST_WORD), svg("title", {}, word));
}

/**
 * @param {ArrayLike<number>} weights
 * @param {string[]} columns
 */
function strongest(weights, columns) {
  const best = argmax(weights);
  return `${columns[best]} ${(weights[best] ?? 0).toFixed(2)}`;
}
