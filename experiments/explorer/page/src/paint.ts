// Paints weights on a canvas.

import { type Axis, lengthOf, sizeOf } from "./axis";
import { formatWeight } from "./format";
import { type Grid, largestWeight } from "./grid";

const MIN_BORDERED = 10; // pixels of a cell with a border
const [MIN_NUMBER_WIDTH, MIN_NUMBER_HEIGHT] = [25, 18]; // pixels of a cell with a number
const WIDE_NUMBER = 36; // pixels of a cell with a large number
const MIN_NUMBER = 0.005; // smallest weight with a number
const LIGHT_NUMBER_OPACITY = 0.6; // of a cell with a light number
const MAX_CANVAS_SIZE = 16_000; // device pixels, the limit of browsers

/** Paints the weights of a grid, with numbers in cells that are large enough, and borders around the true alignment. */
export function paintGrid(
  canvas: HTMLCanvasElement,
  { weights, links }: Grid,
  columns: Axis,
  rows: Axis,
): void {
  const [width, height] = [lengthOf(columns), lengthOf(rows)];
  const scale = Math.min(devicePixelRatio, MAX_CANVAS_SIZE / Math.max(width, height));
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.scale(scale, scale);
  context.imageSmoothingEnabled = false;
  const [ink, heatInk] = [colorOf(canvas, "ink"), colorOf(canvas, "heat-ink")];
  const largest = largestWeight(weights);
  const [cellWidth, cellHeight] = [sizeOf(columns, 0), sizeOf(rows, 0)];
  const isBordered = Math.min(cellWidth, cellHeight) >= MIN_BORDERED;

  if (weights.length) {
    const image = weightImage(weights, largest, canvas);
    columns.labels.forEach((_, s) => {
      const [left, bottom] = [columns.edges[s], rows.edges[weights.length]];
      context.drawImage(image, s, 0, 1, weights.length, left, 0, sizeOf(columns, s), bottom);
    });
  }
  if (isBordered) {
    context.fillStyle = colorOf(canvas, "line");
    for (const edge of columns.edges.slice(1, -1)) context.fillRect(edge - 1, 0, 1, height);
    for (const edge of rows.edges.slice(1, -1)) context.fillRect(0, edge - 1, width, 1);
  }
  if (cellWidth >= MIN_NUMBER_WIDTH && cellHeight >= MIN_NUMBER_HEIGHT) {
    context.font = `${cellWidth < WIDE_NUMBER ? 11 : 13}px ${getComputedStyle(canvas).fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    weights.forEach((row, t) => {
      row.forEach((weight, s) => {
        if (Math.abs(weight) < MIN_NUMBER) return;
        context.fillStyle = opacityOf(weight, largest) > LIGHT_NUMBER_OPACITY ? heatInk : ink;
        const [x, y] = [columns.edges[s] + sizeOf(columns, s) / 2, rows.edges[t] + sizeOf(rows, t) / 2];
        context.fillText(formatWeight(weight), x, y + 1);
      });
    });
  }
  context.strokeStyle = colorOf(canvas, "true");
  context.lineWidth = isBordered ? 3 : 1;
  for (const [t, s] of links) {
    const [x, y] = [columns.edges[s] + context.lineWidth / 2, rows.edges[t] + context.lineWidth / 2];
    context.strokeRect(x, y, sizeOf(columns, s) - context.lineWidth, sizeOf(rows, t) - context.lineWidth);
  }
}

/** Returns a color of the style sheet, in light or dark mode, as "rgb(r, g, b)". */
function colorOf(element: HTMLElement, name: string): string {
  element.style.color = `var(--${name})`;
  return getComputedStyle(element).color;
}

/** Returns a picture with one pixel for each weight. */
export function weightImage(rows: ArrayLike<number>[], largest: number, element: HTMLElement) {
  const numColumns = rows[0].length;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [numColumns, rows.length];
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const image = context.createImageData(numColumns, rows.length);
  const [positive, negative] = ["heat", "negative"].map(
    (name) => colorOf(element, name).match(/\d+/g)?.map(Number) ?? [],
  );
  rows.forEach((row, t) => {
    for (let s = 0; s < numColumns; s++) {
      const color = row[s] < 0 ? negative : positive;
      image.data.set([...color, 255 * opacityOf(row[s], largest)], 4 * (t * numColumns + s));
    }
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Returns the opacity of a weight: the square root of its share of the largest one, because most are small. */
function opacityOf(weight: number, largest: number): number {
  return Math.sqrt(Math.min(Math.abs(weight) / largest, 1));
}
