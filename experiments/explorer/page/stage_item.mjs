// An item in the list of formulas of a step.

import { html } from "./dom.mjs";
import { formatNumber } from "./format.mjs";
import { norm } from "./linalg.mjs";

/**
 * @import { Stage, Term } from "./explain.mjs"
 * @import { Formula } from "./formulas.mjs"
 * @import { Vector } from "./linalg.mjs"
 */

const NUM_VALUES = 4; // of a vector

/**
 * Draws a formula, its symbols, and its numbers.
 *
 * @param {Formula} formula
 * @param {Stage} [stage] the numbers.
 */
export function stageItem({ name, formula, symbols }, stage) {
  const legend = symbols.map(([symbol, meaning], i) => {
    const separator = i < symbols.length - 1 ? "; " : "";
    return html("span", { class: "symbol" }, inlineMath(symbol), `, ${meaning}${separator}`);
  });
  return html(
    "li",
    {},
    html("b", {}, name),
    html("span", { class: "formula" }, formula),
    html("span", { class: "symbols" }, legend),
    stage?.number === undefined ? null : scalarValue(stage.number, stage.note),
    stage?.vector ? vectorValues(stage.vector) : null,
    stage?.terms?.length ? termTable(stage.terms) : null,
  );
}

/** @param {Element} symbol in MathML. */
function inlineMath(symbol) {
  const math = document.createElementNS(symbol.namespaceURI, "math");
  math.append(symbol);
  return math;
}

/**
 * @param {number} value
 * @param {string} [note]
 */
function scalarValue(value, note) {
  return html("div", { class: "number" }, formatNumber(value, 4), note ? ` (${note})` : null);
}

/** @param {Vector} vector */
function vectorValues(vector) {
  const values = Array.from(vector.slice(0, NUM_VALUES), (value) => formatNumber(value)).join("  ");
  const more = vector.length > NUM_VALUES ? "  …" : "";
  return html(
    "div",
    { class: "number" },
    `[${values}${more}] ${vector.length} numbers, norm ${norm(vector).toFixed(2)}`,
  );
}

/** @param {Term[]} terms */
function termTable(terms) {
  const row = (/** @type {"td" | "th"} */ tag, /** @type {(string | number)[]} */ cells) =>
    html(
      "tr",
      {},
      cells.map((cell) => html(tag, {}, String(cell))),
    );
  return html(
    "details",
    { "data-kept": "terms" },
    html("summary", {}, "units that contribute most"),
    html(
      "table",
      { class: "terms" },
      row("th", ["unit", "query", "key", "factor", "term"]),
      terms.map(({ unit, query, key, factor, term }) =>
        row("td", [
          unit,
          formatNumber(query),
          formatNumber(key),
          formatNumber(factor, 3),
          formatNumber(term, 3),
        ]),
      ),
    ),
  );
}
