// A heatmap of weights, of any size. The arrow keys move the selected cell, which a screen reader reads.

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { type Axis, columnAxis, headerHeight, lengthOf, rowAxis, sizeOf, tokenAt } from "./axis";
import type { Cell } from "./data";
import { describeCell, type Grid, type WeightsProps } from "./grid";
import { Labels, nextPosition, px } from "./labels";
import { paintGrid } from "./paint";

export const MAX_LABELS = 120; // with more tokens, the heatmap fits the window, and only some tokens have labels
const [ROW_SIZE, MAX_ROW_SIZE] = [22, 40]; // pixels
const [COLUMN_SIZE, MAX_COLUMN_SIZE] = [17, 64]; // pixels with an upright label
const [NARROW, TOUCH_SIZE] = [560, 30]; // pixels of a narrow heatmap, and of its tokens
const [MAX_LABEL_SHARE, MIN_LABEL_WIDTH] = [0.3, 80]; // of the labels of rows
const HEIGHT_AROUND = 400; // pixels of the window above and below the heatmap
const [SCROLLBAR, AXIS_NAME_HEIGHT] = [18, 26]; // pixels

/** Shows weights as colors and, in large cells, as numbers. */
export function Heatmap(props: WeightsProps) {
  const { grid, width, point, onPoint } = props;
  const { columns, rows } = axesOf(grid, width);
  const labelWidth = rowLabelWidth(rows, width);
  return (
    <div class="map" style={{ gridTemplateColumns: `${labelWidth}px ${lengthOf(columns)}px` }}>
      <div class="corner">from: {grid.rowName}</div>
      <div class="head">
        <span class="axis-name">
          to: {grid.columnName}
          {grid.actions && " (press a token to hide it)"}
        </span>
        <Labels kind="columns" axis={columns} side="top" {...{ grid, point, onPoint }} />
      </div>
      <Labels kind="rows" axis={rows} side="left" {...{ grid, point, onPoint }} />
      <Cells {...props} {...{ columns, rows, labelWidth }} />
    </div>
  );
}

function axesOf(grid: Grid, width: number): { columns: Axis; rows: Axis } {
  const isNarrow = width < NARROW;
  const maxLabels = grid.actions ? Infinity : MAX_LABELS;
  const available = Math.max(window.innerHeight - HEIGHT_AROUND, 0);
  const rowSizes = { minSize: isNarrow ? TOUCH_SIZE : ROW_SIZE, maxSize: MAX_ROW_SIZE, maxLabels };
  const rows = rowAxis(grid.rows, { available, ...rowSizes });
  const columns = columnAxis(grid.columns, {
    available: width - rowLabelWidth(rows, width) - (lengthOf(rows) > available ? SCROLLBAR : 0),
    minSize: isNarrow ? TOUCH_SIZE : COLUMN_SIZE,
    maxSize: MAX_COLUMN_SIZE,
    maxLabels,
  });
  if (Math.max(grid.rows.length, grid.columns.length) <= maxLabels) return { columns, rows };
  return {
    columns,
    rows: rowAxis(grid.rows, { ...rowSizes, available: Infinity, maxSize: sizeOf(columns, 0) }),
  };
}

function rowLabelWidth(rows: Axis, width: number): number {
  return Math.ceil(Math.min(rows.labelWidth, Math.max(MAX_LABEL_SHARE * width, MIN_LABEL_WIDTH)));
}

/** The labels of the rows have this width in pixels. */
type CellsProps = WeightsProps & { columns: Axis; rows: Axis; labelWidth: number };

function Cells({ id, grid, columns, rows, point, onPoint, onSelect, labelWidth }: CellsProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { weights, links, find, cell } = grid;
  useLayoutEffect(() => {
    if (canvas.current) paintGrid(canvas.current, grid, columns, rows);
  }, [weights, String(links), find, String(columns.edges), String(rows.edges)]);
  const cellAt = ({ offsetX, offsetY }: MouseEvent): Cell => [
    Math.min(tokenAt(rows, offsetY), grid.numShown - 1),
    tokenAt(columns, offsetX),
  ];
  const size = { width: px(lengthOf(columns)), height: px(lengthOf(rows)) };
  const boxOf = (t: number, s: number) => ({
    left: px(columns.edges[s]),
    top: px(rows.edges[t]),
    width: px(sizeOf(columns, s)),
    height: px(sizeOf(rows, t)),
    scrollMargin: `${headerHeight(columns) + AXIS_NAME_HEIGHT}px 4px 4px ${labelWidth + 4}px`,
  });
  return (
    <div
      class="cells"
      role="grid"
      tabIndex={0}
      aria-label={`weights from ${grid.rowName} to ${grid.columnName}; arrow keys select a cell`}
      aria-rowcount={rows.tokens.length}
      aria-colcount={columns.tokens.length}
      aria-activedescendant={cell ? `${id}-${cell.join("-")}` : undefined}
      style={size}
      onKeyDown={(event) => {
        const next = cellAfterKey(event, grid);
        if (!next) return;
        event.preventDefault();
        onSelect(next);
      }}
    >
      <canvas
        ref={canvas}
        style={size}
        onPointerMove={(event) => {
          const [t, s] = cellAt(event);
          if (t >= 0 && (t !== point?.t || s !== point?.s)) onPoint({ t, s });
        }}
        onPointerLeave={() => onPoint(null)}
        onClick={(event) => grid.numShown && onSelect(cellAt(event))}
      />
      {point?.t !== undefined && point.s !== undefined && (
        <div class="pointed" style={boxOf(point.t, point.s)} />
      )}
      {cell && (
        <SelectedCell
          key={cell.join()}
          id={`${id}-${cell.join("-")}`}
          cell={cell}
          label={describeCell(grid, cell)}
          style={boxOf(...cell)}
        />
      )}
    </div>
  );
}

type SelectedCellProps = { id: string; cell: Cell; label: string; style: Record<string, string> };

/** The element that a screen reader reads. It is scrolled into view when it is selected. */
function SelectedCell({ id, cell: [t, s], label, style }: SelectedCellProps) {
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => element.current?.scrollIntoView({ block: "nearest", inline: "nearest" }), []);
  return (
    <div role="row" aria-rowindex={t + 1}>
      <div
        ref={element}
        role="gridcell"
        aria-selected
        aria-colindex={s + 1}
        aria-label={label}
        {...{ id, style }}
      />
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
