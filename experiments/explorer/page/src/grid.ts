// The weights that a heatmap or arcs show.

import type { Cell } from "./data";
import { formatExact } from "./format";
import { argmax, type Vector } from "./linalg";

export interface Grid {
  rows: string[];
  columns: string[];
  rowName: string; // what the tokens of the rows and of the columns are
  columnName: string;
  weights: Vector[]; // A row for each target token that is shown; none without attention
  /** The number of target tokens that are shown. The others keep their place. */
  numShown: number;
  links: Cell[]; // the true alignment, if it is available
  cell: Cell | null; // the selected cell
  find: string; // tokens that contain this text are marked
  actions?: Actions;
}

/** What the buttons on tokens do. Without actions, tokens are not buttons. */
interface Actions {
  hidden: number[];
  forced: number[];
  hide: (s: number) => void;
  open: (t: number) => void;
}

/** A target token, a source token, or a cell. */
export type Point = { t?: number; s?: number };

/** What heatmaps and arcs need. */
export interface WeightsProps {
  id: string;
  grid: Grid;
  width: number; // pixels for the weights
  point: Point | null;
  onPoint: (point: Point | null) => void;
  onSelect: (cell: Cell) => void;
}

const TOLERANCE = 1e-4; // rounding error of recorded weights
const MIN_STRENGTH = 0.1; // of a token that is highlighted

const ranges = new WeakMap<Vector[], [low: number, high: number] | null>();

/** Returns the smallest and the largest weight, or null if all are in [0, 1]. */
function wideRange(weights: Vector[]): [low: number, high: number] | null {
  const known = ranges.get(weights);
  if (known !== undefined) return known;
  const low = Math.min(...weights.map((row) => Math.min(...row)));
  const high = Math.max(...weights.map((row) => Math.max(...row)));
  const range: [number, number] | null = low >= -TOLERANCE && high <= 1 + TOLERANCE ? null : [low, high];
  ranges.set(weights, range);
  return range;
}

/** Returns the weight with the full color: 1, or the largest absolute value if weights are not in [0, 1]. */
export function largestWeight(weights: Vector[]): number {
  return Math.max(...(wideRange(weights) ?? [1]).map(Math.abs));
}

/** Returns a description of weights that are not in [0, 1]; null for others. */
export function describeRange(weights: Vector[]): string | null {
  const range = wideRange(weights)?.map((value) => String(Number(value.toPrecision(3))).replace("-", "−"));
  if (!range) return null;
  return `weights from ${range[0]} to ${range[1]}; full color: ${Number(largestWeight(weights).toPrecision(3))}`;
}

/** Returns a weight in words. */
export function describeCell({ weights, rows, columns, links }: Grid, [t, s]: Cell): string {
  const isTrue = links.some(([target, source]) => target === t && source === s);
  const tokens = `from “${rows[t]}” (${t + 1}) to “${columns[s]}” (${s + 1})`;
  return `${tokens}: ${formatExact(weights[t]?.[s] ?? 0)}${isTrue ? ", true alignment" : ""}`;
}

/** Returns which tokens are highlighted at a point: that token, and those with much weight from or to it. */
export function highlightedTokens(grid: Grid, kind: "rows" | "columns", point: Point | null): boolean[] {
  const { t, s } = point ?? {};
  const min = MIN_STRENGTH * largestWeight(grid.weights);
  const isHigh = (row?: number, column?: number) =>
    Math.abs(grid.weights[row ?? -1]?.[column ?? -1] ?? 0) >= min;
  if (kind === "rows") return grid.rows.map((_, i) => (t === undefined ? isHigh(i, s) : i === t));
  return grid.columns.map((_, i) => (s === undefined ? isHigh(t, i) : i === s));
}

/** Returns the positions of the tokens that contain a text, in any case; none for an empty text. */
export function findTokens(tokens: string[], text: string): number[] {
  const wanted = text.trim().toLowerCase();
  return tokens.flatMap((token, i) => (wanted && token.toLowerCase().includes(wanted) ? [i] : []));
}

/**
 * Returns the alignment error rate, as in experiments/evaluation/metrics.py: from 0 (the same links) to 1 (no common
 * link); null without links. The last column is the end of the source, which is not counted.
 */
export function alignmentErrorRate(rows: ArrayLike<number>[], links: Cell[]): number | null {
  if (!links.length) return null;
  const predicted = rows.flatMap((row, t) => {
    const s = argmax(row);
    return s < row.length - 1 && row[s] > 0 ? `${t},${s}` : [];
  });
  const trueLinks = new Set(links.map(String));
  const numCommon = predicted.filter((link) => trueLinks.has(link)).length;
  return 1 - (2 * numCommon) / (predicted.length + trueLinks.size);
}
