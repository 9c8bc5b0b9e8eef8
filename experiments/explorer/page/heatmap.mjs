// A map of weights: a table whose cells can be read and walked, or, of many, a canvas.

import { canvasHeatmap } from "./canvas_heatmap.mjs";
import { cellOf, cutShort, html, share } from "./dom.mjs";
import { cellAfterKey } from "./keys.mjs";
import { strengthsOf } from "./strengths.mjs";

/**
 * @import { LiveRun, RecordedRun } from "./data"
 * @import { Display, Grid } from "./display.mjs"
 */

export const LARGEST_TABLE = 1500; // cells
const LEAST_NUMBER = 0.005; // without a sign, of a weight whose number is shown

/**
 * Draws weights as a heatmap.
 *
 * @param {Display<LiveRun | RecordedRun>} display
 * @param {Grid} grid
 */
export function heatmap(display, grid) {
  const { length } = grid.rows;
  return length * grid.columns.length <= LARGEST_TABLE
    ? tableHeatmap(display, grid)
    : canvasHeatmap(display, grid);
}

/**
 * @param {Display<LiveRun | RecordedRun>} display
 * @param {Grid} grid
 */
function tableHeatmap({ id, change }, grid) {
  const heads = grid.columns.map((word, s) =>
    html("th", { scope: "col", "data-source": s }, html("span", {}, cutShort(word))),
  );
  const table = html(
    "table",
    {
      class: "map",
      role: "grid",
      "aria-label": "weights: a row for each word of the translation, a column for each of the source",
    },
    html("thead", {}, html("tr", {}, html("td"), heads)),
    html("tbody", {}, body(grid, id)),
  );
  table.addEventListener("click", (event) => {
    const cell = cellOf(event);
    if (cell) change({ cell });
  });
  table.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    const next = cell && cellAfterKey(event, cell, grid);
    if (!next) return;
    event.preventDefault();
    /** @type {HTMLElement | null} */ (table.querySelector(`[data-cell="${next}"]`))?.focus();
    change({ cell: next }, "walk");
  });
  const note = `Numbers are shown from a weight of ${LEAST_NUMBER} on; empty cells have less.`;
  const scrolled = html("div", { class: "scrolled", "data-kept": `${id}-map` }, table);
  return html("div", {}, scrolled, html("p", { class: "facts" }, note));
}

/**
 * @param {Grid} grid
 * @param {string} id
 */
function body({ weights, rows, columns, links, cell }, id) {
  const truth = new Set(links.map(String));
  const strengths = strengthsOf(weights);
  const focusable = String(cell ?? [0, 0]);
  return rows.map((word, t) => {
    const cells = columns.map((source, s) => {
      const [place, weight, isTrue] = [`${t},${s}`, weights[t]?.[s] ?? 0, truth.has(`${t},${s}`)];
      const attributes = {
        role: "gridcell",
        class: [isTrue ? "true" : "", weight < 0 ? "below" : ""].join(" ").trim() || null,
        style: `--weight: ${(strengths[t]?.[s] ?? 0).toFixed(3)}`,
        "data-cell": place,
        "data-key": `${id}-map-${t}-${s}`,
        tabindex: place === focusable ? 0 : -1,
        "aria-selected": cell ? String(place === focusable) : null,
        "aria-label": `${word} looks at ${source}: ${weight.toFixed(3)}${isTrue ? ", a true link" : ""}`,
      };
      return html("td", attributes, Math.abs(weight) >= LEAST_NUMBER ? share(weight) : "");
    });
    return html("tr", {}, html("th", { scope: "row", "data-target": t, title: word }, cutShort(word)), cells);
  });
}
