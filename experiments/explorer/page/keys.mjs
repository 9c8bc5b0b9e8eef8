// The keys that move in a heatmap.

/** @import { Cell } from "./data" */

/**
 * Returns the cell to which a key moves: a neighbor for an arrow key, the first or last column for Home and End, the
 * same cell for Enter. Returns null for other keys, and for shortcuts of the browser.
 *
 * @param {KeyboardEvent} event
 * @param {Cell} cell
 * @param {{rows: string[], columns: string[]}} grid
 * @returns {Cell | null}
 */
export function cellAfterKey(event, [t, s], { rows, columns }) {
  if (event.altKey || event.ctrlKey || event.metaKey) return null;
  switch (event.key) {
    case "ArrowUp":
      return [Math.max(t - 1, 0), s];
    case "ArrowDown":
      return [Math.min(t + 1, rows.length - 1), s];
    case "ArrowLeft":
      return [t, Math.max(s - 1, 0)];
    case "ArrowRight":
      return [t, Math.min(s + 1, columns.length - 1)];
    case "Home":
      return [t, 0];
    case "End":
      return [t, columns.length - 1];
    case "Enter":
      return [t, s];
    default:
      return null;
  }
}
