// Weights as a heatmap or as arcs, with a legend and a description of what is pointed at.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Arcs } from "./arcs";
import type { Cell } from "./data";
import { describeCell, describeRange, type Grid, type Point } from "./grid";
import { Heatmap, MAX_LABELS } from "./heatmap";

interface FigureProps {
  id: string;
  grid: Grid;
  view: "heatmap" | "arcs";
  fallback?: Point | null; // highlighted if nothing is pointed at and no cell is selected
  onSelect: (cell: Cell) => void;
}

/** Shows weights. The heatmap replaces arcs of many tokens. */
export function AttentionFigure({ id, grid, view, fallback = null, onSelect }: FigureProps) {
  const figure = useRef<HTMLElement>(null);
  const [width, setWidth] = useState(0);
  const [pointed, onPoint] = useState<Point | null>(null);
  useLayoutEffect(() => {
    const update = () => setWidth(figure.current?.clientWidth ?? 0);
    const observer = new ResizeObserver(update);
    observer.observe(figure.current as HTMLElement);
    update();
    return () => observer.disconnect();
  }, []);
  const hasArcs = view === "arcs" && Math.max(grid.rows.length, grid.columns.length) <= MAX_LABELS;
  const Weights = hasArcs ? Arcs : Heatmap;
  const selected = grid.cell && { t: grid.cell[0], s: grid.cell[1] };
  const described = pointed ?? selected;
  return (
    <figure ref={figure}>
      <figcaption>
        <span class={described ? "description" : "description hint"}>{describePoint(grid, described)}</span>
        <Legend {...{ grid, view, hasArcs }} />
      </figcaption>
      {width > 0 && <Weights {...{ id, grid, width, onPoint, onSelect }} point={described ?? fallback} />}
    </figure>
  );
}

function describePoint(grid: Grid, point: Point | null): string {
  const { t, s } = point ?? {};
  if (t !== undefined && s !== undefined) return describeCell(grid, [t, s]);
  if (t !== undefined) return `from “${grid.rows[t]}” (${t + 1})`;
  return s === undefined ? "Point at a token or a weight." : `to “${grid.columns[s]}” (${s + 1})`;
}

function Legend({ grid, view, hasArcs }: Pick<FigureProps, "grid" | "view"> & { hasArcs: boolean }) {
  const range = describeRange(grid.weights);
  const hasNegative = range?.startsWith("weights from −");
  return (
    <span class="legend">
      {view === "arcs" && !hasArcs && <span>{`arcs show at most ${MAX_LABELS} tokens`}</span>}
      {hasArcs && <span>wider arcs have more weight</span>}
      {range && <span>{range}</span>}
      {!range && !hasArcs && (
        <span>
          weight 0 <i class="scale" /> 1
        </span>
      )}
      {hasNegative && (
        <span>
          <i class="negative" /> negative
        </span>
      )}
      {grid.links.length > 0 && (
        <span>
          <i class={hasArcs ? "dashed" : "true"} /> true alignment
        </span>
      )}
    </span>
  );
}
