// A map of weights: a table whose cells can be read and walked, or, of many, a canvas.

import { cutShort, html, share, svg } from "./dom.mjs";
import { strengthsOf } from "./strengths.mjs";

export const LARGEST_TABLE = 1500; // cells
const LEAST_NUMBER = 0.005; // without a sign, of a weight whose number is shown
const LINE = 14; // pixels of a word beside a canvas
const LONGEST_WORD = 16; // characters of one
const WIDEST_CANVAS = 1000; // pixels, unless there are more columns
const LEAST_OUTLINED = 3; // pixels of a cell
const [ABOVE, BELOW] = [
  [60, 110, 190],
  [190, 30, 130],
];
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * @typedef {object} Weights
 * @property {ArrayLike<number>[]} weights one row for each target word.
 * @property {string[]} rows what stands beside them; of the decoder, the words of the translation.
 * @property {string[]} columns what stands above; the words of the source.
 * @property {[number, number][]} links true ones, (row, column), where they are known.
 * @property {[number, number] | null} cell the one that is looked at.
 * @property {(cell: [number, number], burst?: string) => void} choose called with a cell that a person chooses;
 *   cells that are walked over are one change.
 * @property {string} place of the run on the page, in keys.
 * @property {number} [room] for how many rows there is room: those of the whole translation.
 */

/** Returns a map of weights. */
export function map(given) {
  return given.rows.length * given.columns.length <= LARGEST_TABLE ? tableMap(given) : canvasMap(given);
}

function tableMap({ weights, rows, columns, links, cell, choose, place }) {
  const truth = new Set(links.map(String));
  const [chosenRow, chosenColumn] = cell ?? [0, 0];
  const strengths = strengthsOf(weights);
  const heads = columns.map((word, s) =>
    html("th", { scope: "col", "data-source": s }, html("span", {}, cutShort(word))),
  );
  const body = rows.map((word, t) =>
    html(
      "tr",
      {},
      html("th", { scope: "row", "data-target": t, title: word }, cutShort(word)),
      columns.map((source, s) => {
        const [weight, isTrue] = [weights[t]?.[s] ?? 0, truth.has(`${t},${s}`)];
        return html(
          "td",
          {
            role: "gridcell",
            class: [isTrue ? "true" : "", weight < 0 ? "below" : ""].join(" ").trim() || null,
            style: `--weight: ${(strengths[t]?.[s] ?? 0).toFixed(3)}`,
            "data-cell": `${t},${s}`,
            "data-key": `${place}-map-${t}-${s}`,
            tabindex: t === chosenRow && s === chosenColumn ? 0 : -1,
            "aria-selected": cell ? String(t === chosenRow && s === chosenColumn) : null,
            "aria-label": `${word} looks at ${source}: ${weight.toFixed(3)}${isTrue ? ", a true link" : ""}`,
          },
          Math.abs(weight) >= LEAST_NUMBER ? share(weight) : "",
        );
      }),
    ),
  );
  const pointed = (event) => event.target.closest("[data-cell]")?.dataset.cell.split(",").map(Number);
  const goTo = (table) => (next) => {
    table.querySelector(`[data-cell="${next}"]`).focus();
    choose(next, "walk");
  };
  const table = html(
    "div",
    { class: "scrolled", "data-kept": `${place}-map` },
    html(
      "table",
      {
        class: "map",
        role: "grid",
        "aria-label": "weights: a row for each word of the translation, a column for each of the source",
        onclick: (event) => pointed(event) && choose(pointed(event)),
        onkeydown: (event) =>
          walk(event, pointed(event), [rows.length, columns.length], goTo(event.currentTarget)),
      },
      html("thead", {}, html("tr", {}, html("td"), heads)),
      html("tbody", {}, body),
    ),
  );
  const told = `Numbers are shown from a weight of ${LEAST_NUMBER} on; empty cells have less.`;
  return html("div", {}, table, html("p", { class: "facts" }, told));
}

/** Goes to a neighbour by an arrow key, or to an end of the row; the browser's own shortcuts stay. */
function walk(event, cell, [numRows, numColumns], goTo) {
  if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
  const next = { Home: [cell[0], 0], End: [cell[0], numColumns - 1], Enter: cell }[event.key] ?? cell;
  const [down, right] = STEPS[event.key] ?? [0, 0];
  if (next === cell && !down && !right && event.key !== "Enter") return;
  event.preventDefault();
  const within = (place, count) => Math.min(Math.max(place, 0), count - 1);
  goTo([within(next[0] + down, numRows), within(next[1] + right, numColumns)]);
}

/** A map of more cells than a page holds as elements; a line under it says what stands where. */
function canvasMap({ weights, rows, columns, links, cell, choose, place }) {
  const size = Math.max(1, Math.floor(WIDEST_CANVAS / columns.length));
  const canvas = html("canvas", {
    width: columns.length * size,
    height: rows.length * size,
    tabindex: 0,
    role: "application",
    "data-key": `${place}-map`,
    "aria-label":
      `a map of ${rows.length} by ${columns.length} weights; walk by the arrow keys, ` +
      "the line below tells of each, Enter chooses it",
  });
  const told = html("p", { class: "told", "aria-live": "polite" });
  const picture = pictureOf(weights, rows.length, columns.length);
  let at = cell ?? [0, 0];
  const tell = (next) => {
    at = next;
    const [t, s] = at;
    const isTrue = links.some(([target, source]) => target === t && source === s);
    const weight = (weights[t]?.[s] ?? 0).toFixed(4);
    told.textContent =
      `${t + 1}. ${rows[t]} looks at ${s + 1}. ${columns[s]}: ${weight}` + (isTrue ? ", a true link" : "");
    paint(canvas, picture, size, links, at);
  };
  const pointed = (event) => {
    const box = canvas.getBoundingClientRect();
    const placed = (distance, length, count) =>
      Math.min(Math.max(Math.floor((distance / length) * count), 0), count - 1);
    return [
      placed(event.clientY - box.top, box.height, rows.length),
      placed(event.clientX - box.left, box.width, columns.length),
    ];
  };
  canvas.addEventListener("mousemove", (event) => tell(pointed(event)));
  canvas.addEventListener("click", (event) => choose(pointed(event)));
  canvas.addEventListener("keydown", (event) =>
    walk(event, at, [rows.length, columns.length], (next) =>
      event.key === "Enter" ? choose(next) : tell(next),
    ),
  );
  tell(at);
  const step = Math.ceil(LINE / size);
  const which = step === 1 ? "" : `One word in ${step} is written beside it. `;
  const about = `A map of so many cells has no numbers. ${which}Point at a cell, or walk by the arrow keys, to read its words and its weight.`;
  const framed = html("div", { class: "framed" }, wordsAbove(columns, size, step), wordsBeside(rows, size, step), canvas);
  const scrolled = html("div", { class: "scrolled", "data-kept": `${place}-map` }, framed);
  return html("div", {}, told, scrolled, html("p", { class: "facts" }, about));
}

/** Returns every n-th word of the columns of a canvas, upright; see `wordsBeside`. */
function wordsAbove(words, size, step) {
  const height = lengthOf(words, step);
  const turned = (word, s) =>
    label(word, { transform: `translate(${(s + 0.5) * size + LINE / 3} ${height - 4}) rotate(-90)` });
  return svg("svg", { class: "above", width: words.length * size, height }, everyNth(words, step, turned));
}

/** Returns every n-th word of the rows of a canvas whose cells have a size in pixels. */
function wordsBeside(words, size, step) {
  const width = lengthOf(words, step);
  const level = (word, t) =>
    label(word, { x: width - 4, y: (t + 0.5) * size + LINE / 3, "text-anchor": "end" });
  return svg("svg", { class: "beside", width, height: words.length * size }, everyNth(words, step, level));
}

function everyNth(words, step, make) {
  return words.map((word, i) => (i % step ? null : make(word, i)));
}

function label(word, attributes) {
  return svg("text", attributes, cutShort(word, LONGEST_WORD), svg("title", {}, word));
}

/** Returns for how many pixels the words that are written need room. */
function lengthOf(words, step) {
  const lengths = words.filter((_, i) => i % step === 0).map((word) => [...cutShort(word, LONGEST_WORD)].length);
  return 8 * Math.max(2, ...lengths) + 8;
}

/** Returns a picture with a pixel for each weight, the darker the more; of roots, for most weights are small. */
function pictureOf(weights, numRows, numColumns) {
  const strengths = strengthsOf(weights);
  const picture = html("canvas", { width: numColumns, height: numRows });
  const context = picture.getContext("2d");
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

function paint(canvas, picture, size, links, [t, s]) {
  const context = canvas.getContext("2d");
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
