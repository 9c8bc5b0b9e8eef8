// The weights that a heatmap or arcs show.

import type { Cell } from "./data";
import type { Vector } from "./linalg";

export interface Grid {
  /** A row for each target token that is shown; none without attention. */
  weights: Vector[];
  rows: string[];
  /** The number of target tokens that are shown. The others keep their place. */
  numShown: number;
  columns: string[];
  /** What the tokens of the rows and of the columns are. */
  rowName: string;
  columnName: string;
  /** The true alignment, if it is available. */
  links: Cell[];
  /** The selected cell. */
  cell: Cell | null;
  /** Tokens that contain this text are marked. */
  find: string;
  /** What buttons on the tokens do. Without actions, tokens are not buttons. */
  actions?: Actions;
}

export interface Actions {
  hidden: number[];
  forced: number[];
  /** Hides a source token, or shows it again. */
  hide: (s: number) => void;
  /** Selects a target token, or clears the selection. */
  open: (t: number) => void;
}

/** A target token, a source token, or a cell. */
export interface Point {
  t?: number;
  s?: number;
}

/** What the heatmap and the arcs need. */
export interface WeightsProps {
  id: string;
  grid: Grid;
  /** Pixels for the weights. */
  width: number;
  point: Point | null;
  onPoint: (point: Point | null) => void;
  onSelect: (cell: Cell | null) => void;
}

const TOLERANCE = 1e-4; // rounding error of recorded weights
const MIN_STRENGTH = 0.1; // of a token that is highlighted

/** Returns the smallest and the largest weight. */
export function rangeOf(weights: Vector[]): { low: number; high: number } {
  let [low, high] = [Infinity, -Infinity];
  for (const row of weights) {
    for (const weight of row) {
      low = Math.min(low, weight);
      high = Math.max(high, weight);
    }
  }
  return { low, high };
}

/** Returns the weight that is drawn darkest: 1, or the largest absolute value if weights are not in [0, 1]. */
export function largestWeight(weights: Vector[]): number {
  const { low, high } = rangeOf(weights);
  return isUnitRange(low, high) ? 1 : Math.max(-low, high);
}

/** Returns a description of weights that are not in [0, 1]; null for others. */
export function describeRange(weights: Vector[]): string | null {
  const { low, high } = rangeOf(weights);
  if (!weights.length || isUnitRange(low, high)) return null;
  const round = (value: number) => String(Number(value.toPrecision(3))).replace("-", "−");
  const largest = low < -TOLERANCE ? "largest absolute value" : "largest";
  return `Weights range from ${round(low)} to ${round(high)}; the darkest is the ${largest}.`;
}

function isUnitRange(low: number, high: number): boolean {
  return low >= -TOLERANCE && high <= 1 + TOLERANCE;
}

/** Returns a weight in words. */
export function describeCell({ weights, rows, columns, links }: Grid, [t, s]: Cell): string {
  const weight = weights[t]?.[s] ?? 0;
  const isSmall = weight !== 0 && Math.abs(weight) < 0.01;
  const value = (isSmall ? weight.toPrecision(2) : weight.toFixed(3)).replace("-", "−");
  const isTrue = links.some(([target, source]) => target === t && source === s);
  const tokens = `from “${rows[t]}” (${t + 1}) to “${columns[s]}” (${s + 1})`;
  return `${tokens}: ${value}${isTrue ? ", true alignment" : ""}`;
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
  if (!wanted) return [];
  return tokens.flatMap((token, i) => (token.toLowerCase().includes(wanted) ? [i] : []));
}
