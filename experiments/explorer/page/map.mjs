// A map of weights: a table whose cells can be read and walked, or, of many, a canvas.

import { html, share } from "./dom.mjs";

export const LARGEST_TABLE = 1500; // cells
const WIDEST_CANVAS = 1000; // pixels, unless there are more columns
const LEAST_OUTLINED = 3; // pixels of a cell
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * @typedef {object} Weights
 * @property {ArrayLike<number>[]} weights one row for each target word.
 * @property {string[]} rows what stands beside them; of the decoder, the words of the translation.
 * @property {string[]} columns what stands above; the words of the source.
 * @property {[number, number][]} links true ones, (row, column), where they are known.
 * @property {[number, number] | null} cell the one that is looked at.
 * @property {(cell: [number, number]) => void} choose called with a cell that a person chooses.
 * @property {string} place of the run on the page, in keys.
 */

/** Returns a map of weights. */
export function map(given) {
  return given.rows.length * given.columns.length <= LARGEST_TABLE ? tableMap(given) : canvasMap(given);
}

function tableMap({ weights, rows, columns, links, cell, choose, place }) {
  const truth = new Set(links.map(String));
  const [chosenRow, chosenColumn] = cell ?? [0, 0];
  const heads = columns.map((word, s) =>
    html("th", { scope: "col", "data-source": s }, html("span", {}, word)),
  );
  const body = rows.map((word, t) =>
    html(
      "tr",
      {},
      html("th", { scope: "row", "data-target": t }, word),
      columns.map((source, s) => {
        const [weight, isTrue] = [weights[t]?.[s] ?? 0, truth.has(`${t},${s}`)];
        return html(
          "td",
          {
            role: "gridcell",
            class: isTrue ? "true" : null,
            style: `--weight: ${weight.toFixed(3)}`,
            "data-cell": `${t},${s}`,
            "data-key": `${place}-map-${t}-${s}`,
            tabindex: t === chosenRow && s === chosenColumn ? 0 : -1,
            "aria-selected": cell ? String(t === chosenRow && s === chosenColumn) : null,
            "aria-label": `${word} looks at ${source}: ${weight.toFixed(3)}${isTrue ? ", a true link" : ""}`,
          },
          weight >= 0.005 ? share(weight) : "",
        );
      }),
    ),
  );
  const pointed = (event) => event.target.closest("[data-cell]")?.dataset.cell.split(",").map(Number);
  const goTo = (table) => (next) => {
    table.querySelector(`[data-cell="${next}"]`).focus();
    choose(next);
  };
  return html(
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
  return html("div", {}, html("div", { class: "scrolled", "data-kept": `${place}-map` }, canvas), told);
}

/** Returns a picture with a pixel for each weight, the darker the more; of roots, for most weights are small. */
function pictureOf(weights, numRows, numColumns) {
  const picture = html("canvas", { width: numColumns, height: numRows });
  const context = picture.getContext("2d");
  const image = context.createImageData(numColumns, numRows);
  for (let t = 0; t < numRows; t++) {
    for (let s = 0; s < numColumns; s++) {
      const ink = Math.sqrt(Math.min(weights[t]?.[s] ?? 0, 1));
      image.data.set([60, 110, 190, Math.round(255 * ink)], 4 * (t * numColumns + s));
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
