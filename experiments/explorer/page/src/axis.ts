// Places tokens along the columns or the rows of weights.

import { ellipsize } from "./format";

export interface Axis {
  labels: string[];
  edges: number[]; // the first pixel of each token, and the end of the last one
  isUpright: boolean; // whether labels are rotated by 90 degrees
  labelWidth: number; // pixels of the longest label
  interval: number; // one label in this many has a place
}

/** Sizes in pixels: of all tokens, and of one token. With more than `maxLabels` tokens, only some have a label. */
interface AxisOptions {
  available: number;
  minSize: number;
  maxSize: number;
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
  if (extra < 0) return uniformAxis(labels, true, options);
  const edges = [0];
  for (const width of widths)
    edges.push(edges[edges.length - 1] + Math.floor(width + Math.min(extra, MAX_EXTRA)));
  return { labels, edges, isUpright: false, labelWidth: Math.max(...widths), interval: 1 };
}

/** Places tokens from top to bottom. */
export function rowAxis(tokens: string[], options: AxisOptions): Axis {
  const labels = tokens.map((token) => ellipsize(token));
  return uniformAxis(labels, false, options);
}

function uniformAxis(labels: string[], isUpright: boolean, options: AxisOptions): Axis {
  const minSize = labels.length > options.maxLabels ? 1 : options.minSize;
  const size = Math.min(Math.max(Math.floor(options.available / labels.length), minSize), options.maxSize);
  const edges = Array.from({ length: labels.length + 1 }, (_, i) => i * size);
  const labelWidth = Math.max(...labels.map(measureText)) + PADDING;
  return { labels, edges, isUpright, labelWidth, interval: Math.ceil(options.minSize / size) };
}

const ruler = globalThis.document?.createElement("canvas").getContext("2d");

function measureText(text: string): number {
  if (!ruler) return 0;
  ruler.font = `13px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}

/** Returns the token at a pixel; the nearest one outside the axis. */
export function tokenAt({ edges }: Axis, pixel: number): number {
  return Math.max(
    edges.slice(0, -1).findLastIndex((edge) => edge <= pixel),
    0,
  );
}

/** Returns the pixels of an axis. */
export function lengthOf({ edges }: Axis): number {
  return edges[edges.length - 1];
}

/** Returns the pixels of a token. */
export function sizeOf({ edges }: Axis, i: number): number {
  return edges[i + 1] - edges[i];
}

/** Returns the pixels of the labels above or below weights. */
export function headerHeight(axis: Axis): number {
  return axis.isUpright ? Math.ceil(axis.labelWidth) : 30;
}
