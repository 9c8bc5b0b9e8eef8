// Arcs between source tokens, above, and target tokens, below.

import { type Axis, columnAxis, lengthOf } from "./axis";
import type { Cell } from "./data";
import { describeCell, type Grid, largestWeight, type WeightsProps } from "./grid";
import { Labels } from "./labels";

const HEIGHT = 260; // pixels of an arc
const AXIS = { minSize: 17, maxSize: 90, maxLabels: Infinity };
const MIN_STRENGTH = 0.03; // of an arc that is drawn
const MAX_STROKE = 9; // pixels
const TRUE_OFFSET = 3; // pixels between an arc and the line of the true alignment beside it

/** Shows weights as the width and the opacity of arcs. */
export function Arcs({ grid, width, point, onPoint, onSelect }: WeightsProps) {
  const [columns, rows] = [grid.columns, grid.rows].map((tokens) =>
    columnAxis(tokens, { ...AXIS, available: width }),
  );
  const total = Math.max(lengthOf(columns), lengthOf(rows));
  const marginOf = (axis: Axis) => (total - lengthOf(axis)) / 2;
  const middleOf = (axis: Axis, i: number) => marginOf(axis) + (axis.edges[i] + axis.edges[i + 1]) / 2;
  const curve = ([t, s]: Cell, offset = 0) => {
    const [start, end] = [middleOf(columns, s) + offset, middleOf(rows, t) + offset];
    return `M ${start} 0 C ${start} ${HEIGHT / 2}, ${end} ${HEIGHT / 2}, ${end} ${HEIGHT}`;
  };
  const arcs = strongArcs(grid);
  const isAtPoint = ([t, s]: Cell) => (point?.t ?? t) === t && (point?.s ?? s) === s;
  const label = `weights: ${arcs.map(({ cell }) => describeCell(grid, cell)).join("; ")}`;
  return (
    <div class="map">
      <div style={`width: ${total}px`}>
        <span class="axis-name">to: {grid.columnName}</span>
        <Labels
          kind="columns"
          axis={columns}
          side="top"
          margin={marginOf(columns)}
          {...{ grid, point, onPoint }}
        />
        <svg width={total} height={HEIGHT} role="img" aria-label={label}>
          {arcs.map(({ cell, strength, isNegative, isTrue }) => {
            const stroke = 0.5 + MAX_STROKE * strength;
            const opacity = (0.25 + 0.65 * strength) * (point && !isAtPoint(cell) ? 0.25 : 1);
            return (
              <g key={cell.join()}>
                <path
                  d={curve(cell)}
                  class={isNegative ? "arc negative" : "arc"}
                  stroke-width={stroke.toFixed(2)}
                  opacity={opacity.toFixed(2)}
                  data-cell={cell.join()}
                  onPointerEnter={() => onPoint({ t: cell[0], s: cell[1] })}
                  onPointerLeave={() => onPoint(null)}
                  onClick={() => onSelect(cell)}
                />
                {isTrue && <path d={curve(cell, stroke / 2 + TRUE_OFFSET)} class="true-line" />}
              </g>
            );
          })}
        </svg>
        <Labels kind="rows" axis={rows} side="bottom" margin={marginOf(rows)} {...{ grid, point, onPoint }} />
        <span class="axis-name">from: {grid.rowName}</span>
      </div>
    </div>
  );
}

/** Returns the arcs of the true alignment, and those with a weight that can be seen. */
function strongArcs({ weights, links }: Grid) {
  const largest = largestWeight(weights);
  const trueCells = new Set(links.map(String));
  const arcs = weights.flatMap((row, t) =>
    Array.from(row, (weight, s) => ({
      cell: [t, s] as Cell,
      strength: Math.min(Math.abs(weight) / largest, 1),
      isNegative: weight < 0,
      isTrue: trueCells.has(`${t},${s}`),
    })),
  );
  return arcs.filter(({ strength, isTrue }) => strength >= MIN_STRENGTH || isTrue);
}
