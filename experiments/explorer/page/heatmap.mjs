// A heatmap of weights: a table, or a canvas if there are many cells.

import { canvasHeatmap } from "./canvas_heatmap.mjs";
import { cellOf, html, toggleButton } from "./dom.mjs";
import { findWords } from "./find.mjs";
import { describeWeight, ellipsize, formatWeight } from "./format.mjs";
import { cellAfterKey } from "./keys.mjs";
import { legend } from "./legend.mjs";
import { strengthsOf } from "./weight_range.mjs";

/**
 * @import { LiveRun, RecordedRun } from "./data"
 * @import { Display, Grid } from "./display.mjs"
 */

const MAX_TABLE_CELLS = 1500;
const MIN_LABELED_WEIGHT = 0.005;
const [MANY_CHARACTERS, SOME_CHARACTERS] = [90, 45]; // of all column labels

/**
 * Returns whether the heatmap of a grid is a table.
 *
 * @param {Grid} grid
 */
export function isTable({ rows, columns, hiddenRows = [] }) {
  return (rows.length + hiddenRows.length) * columns.length <= MAX_TABLE_CELLS;
}

/**
 * Draws a heatmap.
 *
 * @param {Display<LiveRun | RecordedRun>} display
 * @param {Grid} grid
 */
export function heatmap(display, grid) {
  if (!isTable(grid)) return canvasHeatmap(display, grid);
  const caption = "Each cell shows how much the row's word attends to the column's word.";
  return html(
    "figure",
    {},
    html("figcaption", {}, html("p", {}, caption), legend(grid, "heatmap")),
    html("div", { class: "scrolled", "data-kept": `${display.id}-heatmap` }, table(display, grid)),
  );
}

/**
 * @param {Display<LiveRun | RecordedRun>} display
 * @param {Grid} grid
 */
function table({ id, change }, grid) {
  const { columns, rows, hiddenRows = [] } = grid;
  const element = html(
    "table",
    {
      class: `heatmap ${labelClass(columns)}`,
      style: `--columns: ${columns.length}; --rows: ${rows.length + hiddenRows.length}`,
      role: "grid",
      "aria-label": "attention weights: each row's word attends to the words of the columns",
    },
    html("thead", {}, axes(grid), html("tr", {}, grid.actions ? null : html("td"), columnHeaders(grid, id))),
    html("tbody", {}, tableRows(grid, id), hiddenTableRows(grid)),
  );
  element.addEventListener("click", (event) => {
    const cell = cellOf(event);
    if (cell) change({ cell });
  });
  element.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    const next = cell && cellAfterKey(event, cell, grid);
    if (!next) return;
    event.preventDefault();
    /** @type {HTMLElement | null} */ (element.querySelector(`[data-cell="${next}"]`))?.focus();
    change({ cell: next }, "move");
  });
  return element;
}

/**
 * Returns whether column labels are upright always, in a narrow window, or never.
 *
 * @param {string[]} columns
 */
function labelClass(columns) {
  const numCharacters = columns.reduce((sum, word) => sum + Math.max(word.length + 2, 5), 0);
  if (numCharacters > MANY_CHARACTERS) return "upright";
  return numCharacters > SOME_CHARACTERS ? "upright-if-narrow" : "";
}

/**
 * Draws a row with the names of the axes.
 *
 * @param {Grid} grid
 */
function axes({ columns, actions }) {
  if (!actions) return null;
  return html(
    "tr",
    {},
    html("td", { class: "axis corner", rowspan: 2 }, "Translation (click a word for details)"),
    html("td", { class: "axis", colspan: columns.length }, "Source (click a word to hide it)"),
  );
}

/**
 * @param {Grid} grid
 * @param {string} id
 */
function columnHeaders({ columns, actions, found = "" }, id) {
  const marked = findWords(columns, found);
  return columns.map((word, s) => {
    const mark = marked.includes(s) ? "found" : null;
    const attributes = { scope: "col", "data-source": s, title: word, class: mark };
    if (!actions) return html("th", attributes, html("span", {}, ellipsize(word)));
    const isHidden = actions.masked.includes(s);
    const button = toggleButton(`${id}-source-${s}`, isHidden, () => actions.hide(s), ellipsize(word));
    button.title = isHidden ? `stop hiding “${word}”` : `hide “${word}” from attention`;
    return html("th", attributes, button);
  });
}

/**
 * @param {Grid} grid
 * @param {string} id
 */
function tableRows({ weights, rows, columns, links, cell, actions, found = "" }, id) {
  const marked = findWords(rows, found);
  const trueCells = new Set(links.map(String));
  const strengths = strengthsOf(weights);
  const focusable = String(cell ?? [0, 0]);
  return rows.map((word, t) => {
    const cells = columns.map((source, s) => {
      const [position, weight, isTrue] = [`${t},${s}`, weights[t]?.[s] ?? 0, trueCells.has(`${t},${s}`)];
      const attributes = {
        role: "gridcell",
        class: [isTrue ? "true" : "", weight < 0 ? "negative" : ""].join(" ").trim() || null,
        style: `--weight: ${(strengths[t]?.[s] ?? 0).toFixed(3)}`,
        "data-cell": position,
        "data-key": `${id}-cell-${t}-${s}`,
        tabindex: position === focusable ? 0 : -1,
        "aria-selected": cell ? String(position === focusable) : null,
        "aria-label": describeWeight(word, source, weight, isTrue),
      };
      return html("td", attributes, Math.abs(weight) >= MIN_LABELED_WEIGHT ? formatWeight(weight) : "");
    });
    const open = () => actions?.open(t);
    const label = actions
      ? toggleButton(`${id}-target-${t}`, cell?.[0] === t, open, ellipsize(word))
      : html("span", {}, ellipsize(word));
    const mark = marked.includes(t) ? "found" : null;
    const attributes = { scope: "row", "data-target": t, title: word, class: mark };
    return html("tr", {}, html("th", attributes, label), cells);
  });
}

/**
 * Draws empty rows for the words that are not shown yet, so that nothing moves when they are shown.
 *
 * @param {Grid} grid
 */
function hiddenTableRows({ hiddenRows = [], columns, actions }) {
  return hiddenRows.map((word) => {
    const label = html(actions ? "button" : "span", { disabled: true }, ellipsize(word));
    const cells = columns.map(() => html("td", { class: "empty" }));
    return html("tr", { "aria-hidden": "true" }, html("th", { class: "later" }, label), cells);
  });
}
