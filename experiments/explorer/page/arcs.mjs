// Arcs between the source words, above, and the words of the translation, below.

import { cellOf, html, svg } from "./dom.mjs";
import { findWords } from "./find.mjs";
import { describeWeight, ellipsize } from "./format.mjs";
import { legend } from "./legend.mjs";
import { argmax } from "./linalg.mjs";
import { strengthsOf } from "./weight_range.mjs";

/**
 * @import { LiveRun, RecordedRun } from "./data"
 * @import { Display, Grid } from "./display.mjs"
 * @import { Attributes } from "./dom.mjs"
 */

const WORD_WIDTH = 72; // pixels between words
const MAX_WORD_LENGTH = 16;
const [MARGIN, RIGHT_MARGIN] = [36, 90]; // the right one has space for rotated words
const [TOP, BOTTOM, HEIGHT] = [92, 360, 460];
const MIDDLE = (TOP + BOTTOM) / 2;
const MIN_STRENGTH = 0.03;
const MAX_STROKE_WIDTH = 9;

/**
 * Draws weights as arcs. Words do not move when more words of the translation are shown.
 *
 * @param {Display<LiveRun | RecordedRun>} display
 * @param {Grid} grid
 */
export function arcs({ id, change }, grid) {
  const { columns, rows, hiddenRows = [] } = grid;
  const numRows = rows.length + hiddenRows.length;
  const innerWidth = Math.max(numRows, columns.length) * WORD_WIDTH;
  const sourceX = (/** @type {number} */ s) => MARGIN + ((s + 0.5) / columns.length) * innerWidth;
  const targetX = (/** @type {number} */ t) => MARGIN + ((t + 0.5) / numRows) * innerWidth;
  const curve = (/** @type {number} */ t, /** @type {number} */ s) =>
    `M ${sourceX(s)} ${TOP} C ${sourceX(s)} ${MIDDLE}, ${targetX(t)} ${MIDDLE}, ${targetX(t)} ${BOTTOM}`;
  // The true alignment is drawn last, on a line in the color of the background.
  const trueLines = grid.links.map(([t, s]) => [
    svg("path", { d: curve(t, s), class: "background" }),
    svg("path", { d: curve(t, s), class: "true" }),
  ]);
  const words = [sourceLabels(grid, id, sourceX), targetLabels(grid, id, targetX)];
  const width = MARGIN + innerWidth + RIGHT_MARGIN;
  const attributes = {
    class: "arcs",
    viewBox: `0 0 ${width} ${HEIGHT}`,
    style: `--width: ${width}px`,
    role: "group",
    "aria-label": `strongest word above for each word below: ${strongestWords(grid)}`,
  };
  const drawing = svg("svg", attributes, arcPaths(grid, curve), trueLines, words);
  drawing.addEventListener("click", (event) => {
    const cell = cellOf(event);
    if (cell) change({ cell });
  });
  const caption = "Each word below attends to the words above.";
  return html(
    "figure",
    {},
    html("figcaption", {}, html("p", {}, caption, " Wider arcs mean more weight."), legend(grid, "arcs")),
    html("div", { class: "scrolled", "data-kept": `${id}-arcs` }, drawing),
  );
}

/**
 * @param {Grid} grid
 * @param {(t: number, s: number) => string} curve
 */
function arcPaths({ weights, rows, columns, links }, curve) {
  const trueCells = new Set(links.map(String));
  const strengths = strengthsOf(weights);
  return rows.map((word, t) =>
    columns.map((source, s) => {
      const [weight, strength] = [weights[t]?.[s] ?? 0, strengths[t]?.[s] ?? 0];
      const isTrue = trueCells.has(`${t},${s}`);
      if (strength < MIN_STRENGTH && !isTrue) return null;
      const attributes = {
        d: curve(t, s),
        "data-cell": `${t},${s}`,
        "stroke-width": (0.5 + MAX_STROKE_WIDTH * strength).toFixed(2),
        class: weight < 0 ? "arc negative" : "arc",
      };
      return svg("path", attributes, svg("title", {}, describeWeight(word, source, weight, isTrue)));
    }),
  );
}

/**
 * @param {Grid} grid
 * @param {string} id
 * @param {(s: number) => number} x
 */
function sourceLabels({ columns, actions, found = "" }, id, x) {
  const marked = findWords(columns, found);
  return columns.map((word, s) => {
    const mark = marked.includes(s) ? "found" : null;
    const attributes = { "data-source": s, "data-key": `${id}-source-${s}`, class: mark };
    const text = label(word, x(s), TOP - 8, -40, attributes);
    if (actions) addAction(text, actions.masked.includes(s), () => actions.hide(s));
    return text;
  });
}

/**
 * @param {Grid} grid
 * @param {string} id
 * @param {(t: number) => number} x
 */
function targetLabels({ rows, cell, actions, found = "" }, id, x) {
  const marked = findWords(rows, found);
  return rows.map((word, t) => {
    const mark = marked.includes(t) ? "found" : null;
    const attributes = { "data-target": t, "data-key": `${id}-target-${t}`, class: mark };
    const text = label(word, x(t), BOTTOM + 18, 40, attributes);
    if (actions) addAction(text, cell?.[0] === t, () => actions.open(t));
    return text;
  });
}

/**
 * @param {string} word
 * @param {number} x
 * @param {number} y
 * @param {number} angle in degrees.
 * @param {Attributes} attributes
 */
function label(word, x, y, angle, attributes) {
  const transform = `rotate(${angle} ${x} ${y})`;
  const text = ellipsize(word, MAX_WORD_LENGTH);
  return svg("text", { x, y, transform, ...attributes }, text, svg("title", {}, word));
}

/**
 * Makes a label a button.
 *
 * @param {SVGElement} text
 * @param {boolean} isPressed
 * @param {() => void} action
 */
function addAction(text, isPressed, action) {
  for (const [name, value] of [
    ["role", "button"],
    ["tabindex", "0"],
    ["aria-pressed", String(isPressed)],
  ]) {
    text.setAttribute(name, value);
  }
  text.addEventListener("click", action);
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    action();
  });
}

/** @param {Grid} grid */
function strongestWords({ weights, rows, columns }) {
  const descriptions = rows.map((word, t) => {
    const s = argmax(weights[t] ?? []);
    return `${word}: ${columns[s]} ${(weights[t]?.[s] ?? 0).toFixed(2)}`;
  });
  return descriptions.join("; ");
}
