// The tokens along an axis. They are one stop of the Tab key, and arrow keys move among them.

import { useRef, useState } from "preact/hooks";
import { type Axis, headerHeight, lengthOf, sizeOf } from "./axis";
import { findTokens, type Grid, highlightedTokens, type Point } from "./grid";

interface LabelsProps {
  grid: Grid;
  kind: "rows" | "columns";
  axis: Axis;
  side: "left" | "top" | "bottom"; // which side of the weights the labels are on
  margin?: number; // pixels before the first token
  point: Point | null;
  onPoint: (point: Point | null) => void;
}

const MIN_SIZE = 16; // pixels of a label

/** Shows each label that has a place, and those that are marked. They are buttons if the grid has actions. */
export function Labels({ grid, kind, axis, side, margin = 0, point, onPoint }: LabelsProps) {
  const list = useRef<HTMLDivElement>(null);
  const [focused, setFocused] = useState(0);
  const { actions, [kind]: tokens } = grid;
  const isRow = kind === "rows";
  const numShown = isRow ? grid.numShown : tokens.length;
  const focusable = Math.min(focused, numShown - 1);
  const isHigh = highlightedTokens(grid, kind, point);
  const found = new Set(findTokens(tokens, grid.find));
  const pressed = isRow ? [grid.cell?.[0]] : actions?.hidden;
  const hint = isRow ? "press to show its step" : "press to hide it, or to show it again";
  const pointAt = (i: number) => onPoint(isRow ? { t: i } : { s: i });
  const onKeyDown = (event: KeyboardEvent) => {
    const next = nextPosition(event.key, focusable, numShown);
    if (next === null) return;
    event.preventDefault();
    list.current?.querySelector<HTMLElement>(`[data-position="${next}"]`)?.focus();
  };
  const labelOf = (label: string, i: number) => {
    if (i % axis.interval && !isHigh[i] && !found.has(i)) return null;
    const forced = isRow && actions?.forced.includes(i);
    const marks = { highlighted: isHigh[i], found: found.has(i), later: i >= numShown, forced };
    const [start, size] = [axis.edges[i], Math.max(sizeOf(axis, i), MIN_SIZE)];
    const attributes = {
      class: Object.keys(marks)
        .filter((name) => marks[name as keyof typeof marks])
        .join(" "),
      style: side === "left" ? `top: ${start}px; height: ${size}px` : `left: ${start}px; width: ${size}px`,
      title: actions ? `${tokens[i]}: ${hint}` : tokens[i],
      "data-position": i,
      onPointerEnter: () => pointAt(i),
    };
    if (!actions) return <span {...attributes}>{label}</span>;
    return (
      <button
        key={i}
        type="button"
        {...attributes}
        tabIndex={i === focusable ? 0 : -1}
        aria-pressed={pressed?.includes(i)}
        onClick={() => (isRow ? actions.open(i) : actions.hide(i))}
        onFocusIn={() => [setFocused(i), pointAt(i)]}
        onFocusOut={() => onPoint(null)}
      >
        {label}
      </button>
    );
  };
  const sizes = `margin-left: ${margin}px; width: ${lengthOf(axis)}px; height: ${headerHeight(axis)}px`;
  return (
    <div
      ref={list}
      class={`labels ${side} ${axis.isUpright ? "upright" : ""}`}
      role={actions && "toolbar"}
      aria-label={actions && `${isRow ? grid.rowName : grid.columnName} tokens`}
      aria-hidden={!actions}
      style={side === "left" ? `height: ${lengthOf(axis)}px` : sizes}
      onKeyDown={onKeyDown}
      onPointerLeave={() => onPoint(null)}
    >
      {axis.labels.map(labelOf)}
    </div>
  );
}

/** Returns the position to which a key moves; null for other keys. */
export function nextPosition(key: string, current: number, count: number): number | null {
  if (key === "ArrowLeft" || key === "ArrowUp") return Math.max(current - 1, 0);
  if (key === "ArrowRight" || key === "ArrowDown") return Math.min(current + 1, count - 1);
  if (key === "Home") return 0;
  return key === "End" ? count - 1 : null;
}
