// Highlights the words that a word attends to, and the words that attend to it.

import { parseCell } from "./dom.mjs";

/**
 * @import { Cell } from "./data"
 * @import { Vector } from "./linalg.mjs"
 *
 * @typedef {{t: number, s?: undefined} | {t?: undefined, s: number} | {t: number, s: number}} Position of a target
 *   word, of a source word, or of a cell.
 */

const MIN_WEIGHT = 0.1; // of a highlighted word
const POSITIONED = "[data-target], [data-source], [data-cell]";
const HIGHLIGHTED = "[data-target], [data-source], path[data-cell]";

/**
 * Highlights words and arcs when the user hovers over a word or cell, or focuses it.
 *
 * @param {Element} article with elements that have `data-target`, `data-source` or `data-cell`.
 * @param {Vector[]} weights
 * @param {Cell | null} cell the selected one, which is highlighted by default.
 * @param {Position | null} fallback highlighted by default if no cell is selected.
 */
export function addHighlight(article, weights, cell, fallback = null) {
  const initial = cell ? { t: cell[0], s: cell[1] } : fallback;
  const highlightTarget = (/** @type {Event} */ { target }) => {
    const position = positionOf(target);
    if (position) highlight(article, weights, position);
  };
  const highlightFocus = () => highlight(article, weights, positionOf(document.activeElement) ?? initial);
  for (const event of ["mouseover", "focusin"]) article.addEventListener(event, highlightTarget);
  for (const event of ["mouseout", "focusout"]) article.addEventListener(event, highlightFocus);
  highlight(article, weights, initial);
}

/**
 * Returns the position of an element or of its closest ancestor that has one.
 *
 * @param {EventTarget | null} target
 * @returns {Position | null}
 */
function positionOf(target) {
  const element = target instanceof Element ? target.closest(POSITIONED) : null;
  if (!element) return null;
  const cell = element.getAttribute("data-cell");
  if (cell) {
    const [t, s] = parseCell(cell);
    return { t, s };
  }
  const t = element.getAttribute("data-target");
  return t === null ? { s: Number(element.getAttribute("data-source")) } : { t: Number(t) };
}

/**
 * @param {Element} article
 * @param {Vector[]} weights
 * @param {Position | null} center
 */
function highlight(article, weights, center) {
  for (const element of article.querySelectorAll(HIGHLIGHTED)) {
    const position = positionOf(element);
    const strength = center && position ? strengthOf(position, weights, center) : 0;
    element.classList.toggle("highlighted", strength >= MIN_WEIGHT);
    element.classList.toggle(
      "dimmed",
      center !== null && element.tagName === "path" && strength < MIN_WEIGHT,
    );
  }
}

/**
 * Returns 1 for the position of the center, the weight for a word that attends to it or that it attends to, else 0.
 *
 * @param {Position} position
 * @param {Vector[]} weights
 * @param {Position} center
 */
function strengthOf({ t, s }, weights, center) {
  if (t !== undefined && s !== undefined) {
    return Number((center.t ?? t) === t && (center.s ?? s) === s);
  }
  if (t !== undefined) {
    return center.t === undefined ? (weights[t]?.[center.s] ?? 0) : Number(t === center.t);
  }
  return center.s === undefined ? (weights[center.t]?.[s] ?? 0) : Number(s === center.s);
}
