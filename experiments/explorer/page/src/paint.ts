// Paints weights on a canvas.

import { type Axis, lengthOf, sizeOf } from "./axis";
import { formatWeight } from "./format";
import { findTokens, type Grid, largestWeight } from "./grid";

const MIN_GRID_SIZE = 10; // pixels of a cell with a border
const [MIN_NUMBER_WIDTH, MIN_NUMBER_HEIGHT] = [30, 18]; // pixels of a cell with a number
const MIN_SHOWN_WEIGHT = 0.005;
const LIGHT_NUMBER_OPACITY = 0.6; // of a cell with a light number
const MAX_CANVAS_SIZE = 16_000; // device pixels, the limit of browsers

/** Paints the weights of a grid, with numbers in cells that are large enough, and borders around the true alignment. */
export function paintGrid(canvas: HTMLCanvasElement, grid: Grid, columns: Axis, rows: Axis): void {
  const [width, height] = [lengthOf(columns), lengthOf(rows)];
  const scale = Math.min(devicePixelRatio, MAX_CANVAS_SIZE / Math.max(width, height));
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = contextOf(canvas);
  context.scale(scale, scale);
  context.imageSmoothingEnabled = false;
  const colors = colorsOf(canvas);
  const largest = largestWeight(grid.weights);
  if (grid.weights.length) {
    const image = weightImage(grid.weights, grid.columns.length, largest, colors);
    const numRows = grid.weights.length;
    grid.columns.forEach((_, s) => {
      context.drawImage(
        image,
        s,
        0,
        1,
        numRows,
        columns.edges[s],
        0,
        sizeOf(columns, s),
        rows.edges[numRows],
      );
    });
  }
  const [cellWidth, cellHeight] = [sizeOf(columns, 0), sizeOf(rows, 0)];
  if (Math.min(cellWidth, cellHeight) >= MIN_GRID_SIZE) paintBorders(context, columns, rows, colors.line);
  if (cellWidth >= MIN_NUMBER_WIDTH && cellHeight >= MIN_NUMBER_HEIGHT) {
    paintNumbers(context, grid, columns, rows, largest, colors);
  }
  paintFound(context, grid, columns, rows, colors.true);
  context.strokeStyle = colors.true;
  context.lineWidth = Math.min(cellWidth, cellHeight) >= MIN_GRID_SIZE ? 3 : 1;
  for (const [t, s] of grid.links) {
    const inset = context.lineWidth / 2;
    const [x, y] = [columns.edges[s] + inset, rows.edges[t] + inset];
    context.strokeRect(x, y, sizeOf(columns, s) - 2 * inset, sizeOf(rows, t) - 2 * inset);
  }
}

type Colors = Record<"heat" | "heat-ink" | "negative" | "true" | "line" | "ink", string>;

/** Returns the colors of the style sheet, which depend on light or dark mode. */
export function colorsOf(element: Element): Colors {
  const style = getComputedStyle(element);
  const names = ["heat", "heat-ink", "negative", "true", "line", "ink"];
  return Object.fromEntries(
    names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
  ) as Colors;
}

/**
 * Returns a picture with one pixel for each weight. The opacity is the square root of the weight over the largest one,
 * because most weights are small.
 */
export function weightImage(
  rows: ArrayLike<number>[],
  numColumns: number,
  largest: number,
  colors: Colors,
): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = numColumns;
  canvas.height = rows.length;
  const context = contextOf(canvas);
  const image = context.createImageData(numColumns, rows.length);
  const [positive, negative] = [rgb(colors.heat), rgb(colors.negative)];
  rows.forEach((row, t) => {
    for (let s = 0; s < numColumns; s++) {
      const color = row[s] < 0 ? negative : positive;
      image.data.set([...color, 255 * opacityOf(row[s], largest)], 4 * (t * numColumns + s));
    }
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Returns the opacity of a weight. */
export function opacityOf(weight: number, largest: number): number {
  return Math.sqrt(Math.min(Math.abs(weight) / largest, 1));
}

/** Returns the context of a canvas. */
function contextOf(canvas: HTMLCanvasElement): CanvasRenderingContext2D {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser does not support canvas");
  return context;
}

function rgb(color: string): number[] {
  return [1, 3, 5].map((first) => Number.parseInt(color.slice(first, first + 2), 16));
}

function paintBorders(context: CanvasRenderingContext2D, columns: Axis, rows: Axis, color: string): void {
  context.fillStyle = color;
  for (const edge of columns.edges.slice(1)) context.fillRect(edge - 1, 0, 1, lengthOf(rows));
  for (const edge of rows.edges.slice(1)) context.fillRect(0, edge - 1, lengthOf(columns), 1);
}

function paintNumbers(
  context: CanvasRenderingContext2D,
  { weights }: Grid,
  columns: Axis,
  rows: Axis,
  largest: number,
  colors: Colors,
): void {
  context.font = `13px ${getComputedStyle(context.canvas).fontFamily}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  weights.forEach((row, t) => {
    row.forEach((weight, s) => {
      if (Math.abs(weight) < MIN_SHOWN_WEIGHT) return;
      context.fillStyle = opacityOf(weight, largest) > LIGHT_NUMBER_OPACITY ? colors["heat-ink"] : colors.ink;
      const [x, y] = [(columns.edges[s] + columns.edges[s + 1]) / 2, (rows.edges[t] + rows.edges[t + 1]) / 2];
      context.fillText(formatWeight(weight), x, y + 1);
    });
  });
}

function paintFound(
  context: CanvasRenderingContext2D,
  grid: Grid,
  columns: Axis,
  rows: Axis,
  color: string,
): void {
  context.strokeStyle = color;
  context.lineWidth = 1;
  for (const t of findTokens(grid.rows, grid.find)) {
    context.strokeRect(-1, rows.edges[t] + 0.5, lengthOf(columns) + 2, sizeOf(rows, t) - 1);
  }
  for (const s of findTokens(grid.columns, grid.find)) {
    context.strokeRect(columns.edges[s] + 0.5, -1, sizeOf(columns, s) - 1, lengthOf(rows) + 2);
  }
}
