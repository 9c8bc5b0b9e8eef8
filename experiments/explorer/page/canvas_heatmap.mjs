// A heatmap with too many cells for a table. A line of text describes the cell under the pointer.

import { columnLabels, LABEL_SIZE, rowLabels } from "./canvas_labels.mjs";
import { html } from "./dom.mjs";
import { findWords } from "./find.mjs";
import { describeWeight } from "./format.mjs";
import { cellAfterKey } from "./keys.mjs";
import { legend } from "./legend.mjs";
import { strengthsOf } from "./weight_range.mjs";

/**
 * @import { Cell, LiveRun, RecordedRun } from "./data"
 * @import { Display, Grid } from "./display.mjs"
 */

const MAX_WIDTH = 1000; // pixels, unless there are more columns
const MIN_OUTLINED_SIZE = 3; // pixels of a cell
const COLOR = [60, 110, 190];
const NEGATIVE_COLOR = [190, 30, 130];
const TRUE_COLOR = "#d06a10";
const CURSOR_COLOR = "#808080";

/**
 * Draws weights on a canvas.
 *
 * @param {Display<LiveRun | RecordedRun>} display
 * @param {Grid} grid
 */
export function canvasHeatmap({ id, change }, grid) {
  const { rows, columns } = grid;
  const size = Math.max(1, Math.floor(MAX_WIDTH / columns.length));
  const canvas = html("canvas", {
    width: columns.length * size,
    height: rows.length * size,
    tabindex: 0,
    role: "application",
    "data-key": `${id}-heatmap`,
    "aria-label": `heatmap of ${rows.length} by ${columns.length} weights; arrow keys move, Enter selects`,
  });
  const description = html("p", { class: "description", "aria-live": "polite" });
  const image = drawWeights(grid);
  let current = grid.cell ?? [0, 0];
  const moveTo = (/** @type {Cell} */ cell) => {
    current = cell;
    description.textContent = describeCell(grid, cell);
    paint(canvas, image, size, grid, cell);
  };
  canvas.addEventListener("mousemove", (event) => moveTo(cellAt(event, canvas, grid)));
  canvas.addEventListener("click", (event) => change({ cell: cellAt(event, canvas, grid) }));
  canvas.addEventListener("keydown", (event) => {
    const next = cellAfterKey(event, current, grid);
    if (!next) return;
    event.preventDefault();
    if (event.key === "Enter") change({ cell: next });
    else moveTo(next);
  });
  moveTo(current);
  const interval = Math.ceil(LABEL_SIZE / size);
  const labels = interval === 1 ? "" : ` One word in ${interval} is labeled.`;
  const caption = `Each cell shows how much the row's word attends to the column's word.${labels}`;
  const parts = [columnLabels(columns, size, interval), rowLabels(rows, size, interval), canvas];
  return html(
    "figure",
    {},
    html("figcaption", {}, html("p", {}, caption), legend(grid, "heatmap")),
    description,
    html("div", { class: "scrolled", "data-kept": `${id}-heatmap` }, html("div", { class: "framed" }, parts)),
  );
}

/**
 * @param {Grid} grid
 * @param {Cell} cell
 */
function describeCell({ weights, rows, columns, links }, [t, s]) {
  const isTrue = links.some(([target, source]) => target === t && source === s);
  const [target, source] = [`${t + 1}. ${rows[t]}`, `${s + 1}. ${columns[s]}`];
  return describeWeight(target, source, weights[t]?.[s] ?? 0, isTrue, 4);
}

/**
 * Returns the cell under the pointer.
 *
 * @param {MouseEvent} event
 * @param {HTMLCanvasElement} canvas
 * @param {Grid} grid
 * @returns {Cell}
 */
function cellAt({ clientX, clientY }, canvas, { rows, columns }) {
  const box = canvas.getBoundingClientRect();
  const index = (/** @type {number} */ fraction, /** @type {number} */ count) =>
    Math.min(Math.max(Math.floor(fraction * count), 0), count - 1);
  return [
    index((clientY - box.top) / box.height, rows.length),
    index((clientX - box.left) / box.width, columns.length),
  ];
}

/**
 * Draws one pixel for each weight. The opacity is the square root of the strength, because most weights are small.
 *
 * @param {Grid} grid
 */
function drawWeights({ weights, rows, columns }) {
  const [numRows, numColumns] = [rows.length, columns.length];
  const strengths = strengthsOf(weights);
  const canvas = html("canvas", { width: numColumns, height: numRows });
  const context = contextOf(canvas);
  const image = context.createImageData(numColumns, numRows);
  for (let t = 0; t < numRows; t++) {
    for (let s = 0; s < numColumns; s++) {
      const opacity = Math.sqrt(strengths[t]?.[s] ?? 0);
      const color = weights[t]?.[s] < 0 ? NEGATIVE_COLOR : COLOR;
      image.data.set([...color, Math.round(255 * opacity)], 4 * (t * numColumns + s));
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** @param {HTMLCanvasElement} canvas */
function contextOf(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser does not support canvas");
  return context;
}

/**
 * Paints the weights, the true alignment, lines along the rows and columns of found words, and lines along the row and
 * the column of the current cell.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLCanvasElement} image one pixel for each weight.
 * @param {number} size of a cell in pixels.
 * @param {Grid} grid
 * @param {Cell} cell
 */
function paint(canvas, image, size, { rows, columns, links, found = "" }, [t, s]) {
  const context = contextOf(canvas);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  context.strokeStyle = TRUE_COLOR;
  for (const [target, source] of size < MIN_OUTLINED_SIZE ? [] : links) {
    context.strokeRect(source * size + 0.5, target * size + 0.5, size - 1, size - 1);
  }
  for (const row of findWords(rows, found)) {
    context.strokeRect(-1, row * size - 0.5, canvas.width + 2, size + 1);
  }
  for (const column of findWords(columns, found)) {
    context.strokeRect(column * size - 0.5, -1, size + 1, canvas.height + 2);
  }
  context.strokeStyle = CURSOR_COLOR;
  context.strokeRect(-1, t * size - 0.5, canvas.width + 2, size + 1);
  context.strokeRect(s * size - 0.5, -1, size + 1, canvas.height + 2);
}
