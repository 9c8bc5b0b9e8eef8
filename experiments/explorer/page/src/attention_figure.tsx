// The weights as a heatmap or as arcs, with a legend and a description of the cell that is pointed at.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Arcs } from "./arcs";
import type { Cell } from "./data";
import { describeCell, describeRange, type Grid, type Point } from "./grid";
import { Heatmap, MAX_LABELS } from "./heatmap";

interface AttentionFigureProps {
  id: string;
  grid: Grid;
  view: "heatmap" | "arcs";
  /** Highlighted if nothing is pointed at and no cell is selected. */
  fallback?: Point | null;
  onSelect: (cell: Cell | null) => void;
}

export function AttentionFigure({ id, grid, view, fallback = null, onSelect }: AttentionFigureProps) {
  const figure = useRef<HTMLElement>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([{ contentRect }]) => setWidth(contentRect.width));
    observer.observe(figure.current as HTMLElement);
    setWidth(figure.current?.clientWidth ?? 0);
    return () => observer.disconnect();
  }, []);
  const [pointed, setPointed] = useState<Point | null>(null);
  const { cell, rows, columns } = grid;
  const selected = cell && { t: cell[0], s: cell[1] };
  const areManyTokens = Math.max(rows.length, columns.length) > MAX_LABELS;
  const hasArcs = view === "arcs" && !areManyTokens;
  const Weights = hasArcs ? Arcs : Heatmap;
  return (
    <figure ref={figure}>
      <figcaption>
        <p>
          {hasArcs
            ? "Each token below attends to the tokens above. Wider and darker arcs have more weight."
            : "Each cell shows how much the row's token attends to the column's token."}
          {view === "arcs" && areManyTokens && ` Arcs show at most ${MAX_LABELS} tokens.`}
        </p>
        <Legend grid={grid} hasArcs={hasArcs} />
      </figcaption>
      <Description grid={grid} point={pointed ?? selected} />
      {width > 0 && (
        <Weights
          {...{ id, grid, width, onSelect }}
          point={pointed ?? selected ?? fallback}
          onPoint={setPointed}
        />
      )}
    </figure>
  );
}

function Description({ grid, point }: { grid: Grid; point: Point | null }) {
  const { t, s } = point ?? {};
  if (t !== undefined && s !== undefined && t < grid.rows.length) {
    return <p class="description">{describeCell(grid, [t, s])}</p>;
  }
  if (t !== undefined) return <p class="description">{`from “${grid.rows[t]}” (${t + 1})`}</p>;
  if (s !== undefined) return <p class="description">{`to “${grid.columns[s]}” (${s + 1})`}</p>;
  return <p class="description hint">Point at a token or a weight.</p>;
}

function Legend({ grid, hasArcs }: { grid: Grid; hasArcs: boolean }) {
  const range = describeRange(grid.weights);
  const hasNegative = grid.weights.some((row) => row.some((weight) => weight < 0));
  return (
    <ul class="legend">
      {!range && !hasArcs && (
        <li>
          weight 0 <span class="scale" /> 1
        </li>
      )}
      {range && <li>{range}</li>}
      {hasNegative && (
        <li>
          <span class="swatch negative" /> negative weight
        </li>
      )}
      {grid.links.length > 0 && (
        <li>
          <span class={hasArcs ? "swatch dashed" : "swatch true"} /> true alignment
        </li>
      )}
    </ul>
  );
}
