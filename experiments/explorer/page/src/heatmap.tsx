// A heatmap of weights, of any size. The arrow keys move the selected cell, which a screen reader reads.

import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { type Axis, columnAxis, headerHeight, lengthOf, rowAxis, sizeOf, tokenAt } from "./axis";
import type { Cell } from "./data";
import { describeCell, type Grid, type WeightsProps } from "./grid";
import { Labels, nextPosition } from "./labels";
import { paintGrid } from "./paint";

export const MAX_LABELS = 120; // with more tokens, the heatmap fits the window, and only some tokens have labels
const ROW = { minSize: 22, maxSize: 40 }; // pixels
const COLUMN = { minSize: 17, maxSize: 64 }; // pixels with an upright label
const [PHONE_WIDTH, TOUCH_SIZE] = [640, 30]; // pixels of the largest phone, and of its tokens
const [MAX_LABEL_SHARE, MIN_LABEL_WIDTH] = [0.3, 90]; // of the labels of rows
const HEIGHT_AROUND = 390; // pixels of the window above and below the heatmap
const [SCROLLBAR, AXIS_NAME, PADDING] = [16, 26, 12]; // pixels

/** Shows weights as colors and, in large cells, as numbers. */
export function Heatmap(props: WeightsProps) {
  const { grid, width, point, onPoint } = props;
  const axes = useMemo(() => axesOf(grid, width), [grid.rows, grid.columns, width]);
  const { columns, rows, labelWidth } = axes;
  const hint = grid.actions ? ", press to hide" : "";
  const scroll = labelWidth + lengthOf(columns) + PADDING > width ? ", scroll for more →" : "";
  return (
    <div
      class="map"
      style={`--label-width: ${labelWidth}px; grid-template-columns: auto ${lengthOf(columns)}px`}
    >
      <div class="corner">from: {grid.rowName}</div>
      <div class="head">
        <span class="axis-name">{`to: ${grid.columnName}${hint}${scroll}`}</span>
        <Labels kind="columns" axis={columns} side="top" {...{ grid, point, onPoint }} />
      </div>
      <Labels kind="rows" axis={rows} side="left" {...{ grid, point, onPoint }} />
      <Cells {...props} {...{ columns, rows, labelWidth }} />
    </div>
  );
}

/** Places the tokens. The labels of the rows have `labelWidth` pixels. */
function axesOf(grid: Grid, width: number): { columns: Axis; rows: Axis; labelWidth: number } {
  const touch = window.innerWidth <= PHONE_WIDTH ? { minSize: TOUCH_SIZE } : {};
  const maxLabels = grid.actions ? Infinity : MAX_LABELS;
  const height = Math.max(window.innerHeight - HEIGHT_AROUND, 0);
  const rows = rowAxis(grid.rows, { ...ROW, ...touch, available: height, maxLabels });
  const labelWidth = Math.ceil(Math.max(MIN_LABEL_WIDTH, Math.min(rows.labelWidth, MAX_LABEL_SHARE * width)));
  const available = width - labelWidth - PADDING - SCROLLBAR;
  const columns = columnAxis(grid.columns, { ...COLUMN, ...touch, available, maxLabels });
  if (grid.rows.length <= maxLabels) return { columns, rows, labelWidth };
  const square = Math.max(lengthOf(columns), height); // or the whole window, if there are few columns
  return { columns, rows: rowAxis(grid.rows, { ...ROW, available: square, maxLabels }), labelWidth };
}

type CellsProps = WeightsProps & { columns: Axis; rows: Axis; labelWidth: number };

function Cells({ id, grid, columns, rows, point, onPoint, onSelect, labelWidth }: CellsProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { weights, links, cell, numShown } = grid;
  useLayoutEffect(() => {
    if (canvas.current) paintGrid(canvas.current, grid, columns, rows);
  }, [weights, String(links), columns, rows]);
  const cellAt = ({ offsetX: x, offsetY: y }: MouseEvent): Cell => {
    return [Math.min(tokenAt(rows, y), numShown - 1), tokenAt(columns, x)];
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const next = cellAfterKey(event, grid);
    if (!next) return;
    event.preventDefault();
    onSelect(next);
  };
  const onPointerMove = (event: PointerEvent) => {
    const [t, s] = cellAt(event);
    if (numShown && (t !== point?.t || s !== point?.s)) onPoint({ t, s });
  };
  const size = `width: ${lengthOf(columns)}px; height: ${lengthOf(rows)}px`;
  const boxOf = (t: number, s: number) => `
    left: ${columns.edges[s]}px; width: ${sizeOf(columns, s)}px;
    top: ${rows.edges[t]}px; height: ${sizeOf(rows, t)}px;
    scroll-margin: ${headerHeight(columns) + AXIS_NAME}px 16px 16px ${labelWidth + 4}px`;
  return (
    <div
      class="cells"
      role="grid"
      tabIndex={0}
      aria-label={`weights from ${grid.rowName} to ${grid.columnName}; arrow keys select a cell`}
      aria-rowcount={rows.labels.length}
      aria-colcount={columns.labels.length}
      aria-activedescendant={cell ? `${id}-${cell.join("-")}` : undefined}
      style={size}
      onKeyDown={onKeyDown}
    >
      <canvas
        ref={canvas}
        style={size}
        onPointerMove={onPointerMove}
        onPointerLeave={() => onPoint(null)}
        onClick={(event) => numShown && onSelect(cellAt(event))}
      />
      {point?.t !== undefined && point.s !== undefined && (
        <div class="pointed" style={boxOf(point.t, point.s)} />
      )}
      {cell && <SelectedCell key={cell.join()} {...{ id, grid, cell }} style={boxOf(...cell)} />}
    </div>
  );
}

type SelectedCellProps = { id: string; grid: Grid; cell: Cell; style: string };

/** The element that a screen reader reads. It is scrolled into view when it is selected. */
function SelectedCell({ id, grid, cell, style }: SelectedCellProps) {
  const element = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => element.current?.scrollIntoView({ block: "nearest", inline: "nearest" }), []);
  const attributes = { id: `${id}-${cell.join("-")}`, style, "aria-label": describeCell(grid, cell) };
  return (
    <div role="row" aria-rowindex={cell[0] + 1}>
      <div ref={element} role="gridcell" aria-selected aria-colindex={cell[1] + 1} {...attributes} />
    </div>
  );
}

/** Returns the cell to which a key moves; null for other keys. The first key selects the first cell. */
function cellAfterKey({ key, altKey, ctrlKey, metaKey }: KeyboardEvent, grid: Grid): Cell | null {
  if (altKey || ctrlKey || metaKey || !grid.numShown) return null;
  const [t, s] = grid.cell ?? [0, 0];
  const isVertical = key === "ArrowUp" || key === "ArrowDown";
  const next = nextPosition(key, isVertical ? t : s, isVertical ? grid.numShown : grid.columns.length);
  if (next === null) return null;
  if (!grid.cell) return [0, 0];
  return isVertical ? [next, s] : [t, next];
}
