// Places the tokens of a row or a column of labels.

import { ellipsize } from "./format";

/** Where tokens are, in pixels along the axis. */
export interface Axis {
  tokens: string[];
  labels: string[];
  /** The first edge of each token, and the last edge of the last one. */
  edges: number[];
  /** Whether labels are rotated by 90 degrees. */
  isUpright: boolean;
  /** The width of the longest label. */
  labelWidth: number;
  /** One label in this many has a place. */
  interval: number;
}

export interface AxisOptions {
  /** Pixels for all tokens. */
  available: number;
  /** Pixels of a token with a label. */
  minSize: number;
  maxSize: number;
  /** With more tokens, only some have a label. */
  maxLabels: number;
}

const PADDING = 12; // pixels of a horizontal label
const MIN_WIDTH = 36; // pixels of a token with a horizontal label
const MAX_EXTRA = 36; // pixels by which such a token may be wider than necessary

/** Places tokens from left to right: with horizontal labels if they fit, else with upright ones. */
export function columnAxis(tokens: string[], options: AxisOptions): Axis {
  const labels = tokens.map((token) => ellipsize(token, 24));
  const widths = labels.map((label) => Math.max(measureText(label) + PADDING, MIN_WIDTH));
  const extra = (options.available - widths.reduce((sum, width) => sum + width, 0)) / tokens.length;
  if (extra < 0) return uniformAxis(tokens, labels, true, options);
  const edges = [0];
  for (const width of widths)
    edges.push(edges[edges.length - 1] + Math.floor(width + Math.min(extra, MAX_EXTRA)));
  return { tokens, labels, edges, isUpright: false, labelWidth: Math.max(...widths), interval: 1 };
}

/** Places tokens from top to bottom. */
export function rowAxis(tokens: string[], options: AxisOptions): Axis {
  const labels = tokens.map((token) => ellipsize(token));
  return uniformAxis(tokens, labels, false, options);
}

function uniformAxis(tokens: string[], labels: string[], isUpright: boolean, options: AxisOptions): Axis {
  const { available, minSize, maxSize, maxLabels } = options;
  const fitted = Math.floor(available / tokens.length);
  const size = Math.min(Math.max(fitted, tokens.length > maxLabels ? 1 : minSize), maxSize);
  return {
    tokens,
    labels,
    edges: Array.from({ length: tokens.length + 1 }, (_, i) => i * size),
    isUpright,
    labelWidth: Math.max(...labels.map(measureText)) + PADDING,
    interval: Math.ceil(minSize / size),
  };
}

/** Returns the token at a pixel; the nearest one outside the axis. */
export function tokenAt({ edges }: Axis, pixel: number): number {
  const next = edges.findIndex((edge) => edge > pixel);
  return next < 0 ? edges.length - 2 : Math.max(next - 1, 0);
}

/** Returns the number of pixels of an axis. */
export function lengthOf({ edges }: Axis): number {
  return edges[edges.length - 1];
}

/** Returns the number of pixels of a token. */
export function sizeOf({ edges }: Axis, i: number): number {
  return edges[i + 1] - edges[i];
}

/** Returns the middle of a token. */
export function middleOf({ edges }: Axis, i: number): number {
  return (edges[i] + edges[i + 1]) / 2;
}

/** Returns the pixels of labels above or below weights. */
export function headerHeight(axis: Axis): number {
  return axis.isUpright ? Math.ceil(axis.labelWidth) : 30;
}

const ruler = globalThis.document?.createElement("canvas").getContext("2d");

function measureText(text: string): number {
  if (!ruler) return 0;
  ruler.font = `13px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}
