// A heat-map with too many cells for a table. A line of text describes the cell under the pointer.

import { cutShort, html, svg } from "./dom.mjs";
import { cellAfterKey } from "./keys.mjs";
import { strengthsOf } from "./strengths.mjs";

/**
 * @import { Cell, LiveRun, RecordedRun } from "./data"
 * @import { Display, Grid } from "./display.mjs"
 * @import { Attributes } from "./dom.mjs"
 */

const LINE = 14; // height of a word label, in pixels
const LONGEST_WORD = 16; // characters of one
const WIDEST_CANVAS = 1000; // pixels, unless there are more columns
const LEAST_OUTLINED = 3; // pixels of a cell
const [ABOVE, BELOW] = [
  [60, 110, 190],
  [190, 30, 130],
];

/**
 * Draws weights on a canvas.
 *
 * @param {Display<LiveRun | RecordedRun>} display
 * @param {Grid} grid
 */
export function canvasHeatmap({ id, change }, grid) {
  const { rows, columns } = grid;
  const size = Math.max(1, Math.floor(WIDEST_CANVAS / columns.length));
  const canvas = html("canvas", {
    width: columns.length * size,
    height: rows.length * size,
    tabindex: 0,
    role: "application",
    "data-key": `${id}-map`,
    "aria-label":
      `a map of ${rows.length} by ${columns.length} weights; walk by the arrow keys, ` +
      "the line below tells of each, Enter chooses it",
  });
  const description = html("p", { class: "told", "aria-live": "polite" });
  const picture = pictureOf(grid);
  let at = grid.cell ?? [0, 0];
  const tell = (/** @type {Cell} */ cell) => {
    at = cell;
    description.textContent = describe(grid, cell);
    paint(canvas, picture, size, grid.links, cell);
  };
  canvas.addEventListener("mousemove", (event) => tell(pointed(event, canvas, grid)));
  canvas.addEventListener("click", (event) => change({ cell: pointed(event, canvas, grid) }));
  canvas.addEventListener("keydown", (event) => {
    const next = cellAfterKey(event, at, grid);
    if (!next) return;
    event.preventDefault();
    if (event.key === "Enter") change({ cell: next });
    else tell(next);
  });
  tell(at);
  const step = Math.ceil(LINE / size);
  const which = step === 1 ? "" : `One word in ${step} is written beside it. `;
  const about = `A map of so many cells has no numbers. ${which}Point at a cell, or walk by the arrow keys, to read its words and its weight.`;
  const framed = [wordsAbove(columns, size, step), wordsBeside(rows, size, step), canvas];
  const scrolled = html(
    "div",
    { class: "scrolled", "data-kept": `${id}-map` },
    html("div", { class: "framed" }, framed),
  );
  return html("div", {}, description, scrolled, html("p", { class: "facts" }, about));
}

/**
 * Returns the words and the weight of a cell.
 *
 * @param {Grid} grid
 * @param {Cell} cell
 */
function describe({ weights, rows, columns, links }, [t, s]) {
  const weight = (weights[t]?.[s] ?? 0).toFixed(4);
  const isTrue = links.some(([target, source]) => target === t && source === s);
  return `${t + 1}. ${rows[t]} looks at ${s + 1}. ${columns[s]}: ${weight}${isTrue ? ", a true link" : ""}`;
}

/**
 * Returns the cell at which the pointer is.
 *
 * @param {MouseEvent} event
 * @param {HTMLCanvasElement} canvas
 * @param {Grid} grid
 * @returns {Cell}
 */
function pointed({ clientX, clientY }, canvas, { rows, columns }) {
  const box = canvas.getBoundingClientRect();
  const within = (/** @type {number} */ share, /** @type {number} */ count) =>
    Math.min(Math.max(Math.floor(share * count), 0), count - 1);
  return [
    within((clientY - box.top) / box.height, rows.length),
    within((clientX - box.left) / box.width, columns.length),
  ];
}

/**
 * Draws every n-th word of the columns, upright.
 *
 * @param {string[]} words
 * @param {number} size of a cell, in pixels.
 * @param {number} step n.
 */
function wordsAbove(words, size, step) {
  const height = lengthOf(words, step);
  const labels = everyNth(words, step, (word, s) => {
    const x = (s + 0.5) * size + LINE / 3;
    return label(word, { transform: `translate(${x} ${height - 4}) rotate(-90)` });
  });
  return svg("svg", { class: "above", width: words.length * size, height }, labels);
}

/**
 * Draws every n-th word of the rows.
 *
 * @param {string[]} words
 * @param {number} size of a cell, in pixels.
 * @param {number} step n.
 */
function wordsBeside(words, size, step) {
  const width = lengthOf(words, step);
  const labels = everyNth(words, step, (word, t) =>
    label(word, { x: width - 4, y: (t + 0.5) * size + LINE / 3, "text-anchor": "end" }),
  );
  return svg("svg", { class: "beside", width, height: words.length * size }, labels);
}

/**
 * @param {string[]} words
 * @param {number} step
 * @param {(word: string, i: number) => Element} draw
 */
function everyNth(words, step, draw) {
  return words.map((word, i) => (i % step ? null : draw(word, i)));
}

/**
 * @param {string} word
 * @param {Attributes} attributes
 */
function label(word, attributes) {
  return svg("text", attributes, cutShort(word, LONGEST_WORD), svg("title", {}, word));
}

/**
 * Returns for how many pixels the words that are written need room.
 *
 * @param {string[]} words
 * @param {number} step
 */
function lengthOf(words, step) {
  const written = words.filter((_, i) => i % step === 0);
  return 8 * Math.max(2, ...written.map((word) => [...cutShort(word, LONGEST_WORD)].length)) + 8;
}

/**
 * Draws a pixel for each weight, the darker the more; of square roots, for most weights are small.
 *
 * @param {Grid} grid
 */
function pictureOf({ weights, rows, columns }) {
  const [numRows, numColumns] = [rows.length, columns.length];
  const strengths = strengthsOf(weights);
  const picture = html("canvas", { width: numColumns, height: numRows });
  const context = contextOf(picture);
  const image = context.createImageData(numColumns, numRows);
  for (let t = 0; t < numRows; t++) {
    for (let s = 0; s < numColumns; s++) {
      const ink = Math.sqrt(strengths[t]?.[s] ?? 0);
      const colour = weights[t]?.[s] < 0 ? BELOW : ABOVE;
      image.data.set([...colour, Math.round(255 * ink)], 4 * (t * numColumns + s));
    }
  }
  context.putImageData(image, 0, 0);
  return picture;
}

/** @param {HTMLCanvasElement} canvas */
function contextOf(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("the browser draws on no canvas");
  return context;
}

/**
 * Paints the picture, the true links, and lines along the row and the column of a cell.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLCanvasElement} picture
 * @param {number} size of a cell, in pixels.
 * @param {Cell[]} links
 * @param {Cell} cell
 */
function paint(canvas, picture, size, links, [t, s]) {
  const context = contextOf(canvas);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  context.strokeStyle = "#d06a10";
  for (const [target, source] of links) {
    if (size >= LEAST_OUTLINED)
      context.strokeRect(source * size + 0.5, target * size + 0.5, size - 1, size - 1);
  }
  context.strokeStyle = "#808080"; // the lines of the row and the column, on light paper as on dark
  context.strokeRect(-1, t * size - 0.5, canvas.width + 2, size + 1);
  context.strokeRect(s * size - 0.5, -1, size + 1, canvas.height + 2);
}
