// What lights up when the user points at a word: a target word lights the source words it attends to, and back.

import { parseCell } from "./dom.mjs";

/**
 * @import { Cell } from "./data"
 * @import { Vector } from "./linalg.mjs"
 *
 * @typedef {{t: number, s?: undefined} | {t?: undefined, s: number} | {t: number, s: number}} Place of a target word,
 *   of a source word, or of a cell.
 */

const LEAST = 0.1; // of a weight that lights a word
const PLACES = "[data-target], [data-source], [data-cell]";

/**
 * Lights words of an article, and lines between them, while the user points at one or has the focus on it.
 *
 * @param {Element} article with elements that have `data-target`, `data-source`, or `data-cell`.
 * @param {Vector[]} weights
 * @param {Cell | null} cell what is lit when nothing is pointed at.
 */
export function addHighlight(article, weights, cell) {
  const selected = cell && { t: cell[0], s: cell[1] };
  const lightPointed = (/** @type {Event} */ { target }) => {
    const place = placeOf(target);
    if (place) light(article, weights, place);
  };
  const lightFocused = () => light(article, weights, placeOf(document.activeElement) ?? selected);
  for (const event of ["mouseover", "focusin"]) article.addEventListener(event, lightPointed);
  for (const event of ["mouseout", "focusout"]) article.addEventListener(event, lightFocused);
  light(article, weights, selected);
}

/**
 * Returns the place of an element, or of the one that it is in.
 *
 * @param {EventTarget | null} target
 * @returns {Place | null}
 */
function placeOf(target) {
  const element = target instanceof Element ? target.closest(PLACES) : null;
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
 * Lights what belongs to a place, or nothing.
 *
 * @param {Element} article
 * @param {Vector[]} weights
 * @param {Place | null} pointed
 */
function light(article, weights, pointed) {
  for (const element of article.querySelectorAll("[data-target], [data-source], path[data-cell]")) {
    const place = placeOf(element);
    const share = pointed && place ? shareOf(place, weights, pointed) : 0;
    element.classList.toggle("lit", share >= LEAST);
    element.classList.toggle("dim", pointed !== null && element.tagName === "path" && share < LEAST);
  }
}

/**
 * Returns how much of what is pointed at belongs to a place: 1 for itself, a weight for what it attends to.
 *
 * @param {Place} place
 * @param {Vector[]} weights
 * @param {Place} pointed
 */
function shareOf({ t, s }, weights, pointed) {
  if (t !== undefined && s !== undefined) {
    return Number((pointed.t ?? t) === t && (pointed.s ?? s) === s);
  }
  if (t !== undefined) {
    return pointed.t === undefined ? (weights[t]?.[pointed.s] ?? 0) : Number(t === pointed.t);
  }
  return pointed.s === undefined ? (weights[pointed.t]?.[s] ?? 0) : Number(s === pointed.s);
}
