/** The table of runs. With many rows only those on screen are in the page. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { type KeyboardEvent, type MouseEvent, memo, type RefObject, useEffect } from "react";
import { ms } from "../format/times";
import type { Column, RowFacts } from "./columns";
import type { Row } from "./live";
import type { RunSummary } from "./matching";

/** Below this all rows are in the page: find-in-page works, and screen readers see the whole table. */
const VIRTUAL_ROWS = 100;
const ROW_PX = 32;
const NARROW_ROW_PX = 57;
const OVERSCAN = 12;

interface Props {
  rows: Row[];
  columns: Column[];
  facts: RowFacts;
  scroll: RefObject<HTMLElement | null>;
  at: string | null;
  selected: ReadonlySet<string>;
  allSelected: boolean;
  /** Without it nothing can be chosen. */
  onPick?: (id: string, on: boolean, event?: { shift: boolean }) => void;
  onPickAll?: (on: boolean) => void;
  onAt: (id: string) => void;
  onOpen: (run: RunSummary) => void;
  watch: (runs: readonly RunSummary[]) => void;
}

export function RunTable(props: Props) {
  const { rows, columns, watch } = props;
  const isNarrow = window.matchMedia("(max-width: 699px)").matches;
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => props.scroll.current,
    estimateSize: () => (isNarrow ? NARROW_ROW_PX : ROW_PX),
    getItemKey: (n) => rows[n]?.run.id ?? n,
    overscan: OVERSCAN,
    enabled: rows.length > VIRTUAL_ROWS,
  });
  const isVirtual = rows.length > VIRTUAL_ROWS;
  const items = virtual.getVirtualItems();
  const [first, last] = isVirtual ? [items[0]?.index ?? 0, items.at(-1)?.index ?? 0] : [0, rows.length - 1];
  const shown = rows.slice(first, last + 1);
  const above = isVirtual ? (items[0]?.start ?? 0) : 0;
  const below = isVirtual ? Math.max(0, virtual.getTotalSize() - (items.at(-1)?.end ?? 0)) : 0;
  useEffect(() => watch(shown.map((row) => row.run)));
  const chosen = props.allSelected ? rows.length : rows.filter((row) => props.selected.has(row.run.id)).length;
  // Times of other days are longer than clocks.
  const midnight = new Date().setHours(0, 0, 0, 0);
  const isOlder = rows.some((row) => ms(row.run.created_at) < midnight);
  const span = columns.length + (props.onPick ? 1 : 0);
  return (
    <table
      className={`grid runs ${isOlder ? "older" : ""}`}
      aria-label="Runs"
      aria-rowcount={isVirtual ? rows.length + 1 : undefined}
    >
      <thead>
        <tr>
          {props.onPick && (
            <th className="c-check">
              <input
                type="checkbox"
                className="check"
                aria-label="Select all that are loaded"
                checked={rows.length > 0 && chosen === rows.length}
                ref={(box) => {
                  if (box) box.indeterminate = chosen > 0 && chosen < rows.length;
                }}
                onChange={(event) => props.onPickAll?.(event.target.checked)}
              />
            </th>
          )}
          {columns.map((column) => (
            <th key={column.id} className={column.className.replace(" mono", "").replace(" muted", "")} scope="col">
              {column.head ?? column.label}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {above > 0 && <Gap height={above} span={span} />}
        {shown.map((row, n) => (
          <RunRow
            key={row.run.id}
            row={row}
            index={first + n}
            measure={isVirtual ? virtual.measureElement : null}
            columns={columns}
            facts={props.facts}
            isAt={row.run.id === props.at}
            isSelected={props.allSelected || props.selected.has(row.run.id)}
            onPick={props.onPick}
            onAt={props.onAt}
            onOpen={props.onOpen}
          />
        ))}
        {below > 0 && <Gap height={below} span={span} />}
      </tbody>
    </table>
  );
}

function Gap({ height, span }: { height: number; span: number }) {
  return (
    <tr className="gap" style={{ height }}>
      <td colSpan={span} style={{ height }} />
    </tr>
  );
}

const RunRow = memo(function RunRow(props: {
  row: Row;
  index: number;
  measure: ((element: Element | null) => void) | null;
  columns: Column[];
  facts: RowFacts;
  isAt: boolean;
  isSelected: boolean;
  onPick?: Props["onPick"];
  onAt: Props["onAt"];
  onOpen: Props["onOpen"];
}) {
  const { run, gone, fresh } = props.row;
  const clicked = (event: MouseEvent) => {
    if (isControl(event.target)) return;
    props.onAt(run.id);
    if (!window.matchMedia("(max-width: 699px)").matches) return;
    // Narrow rows have no checkbox: the status mark takes its place.
    if (props.onPick && (event.target as Element).closest(".c-status")) props.onPick(run.id, !props.isSelected);
    else props.onOpen(run);
  };
  const name = [props.isAt && "at", gone && "gone", fresh && "fresh"].filter(Boolean).join(" ");
  return (
    <tr
      ref={props.measure}
      data-index={props.index}
      aria-rowindex={props.measure ? props.index + 2 : undefined}
      aria-selected={props.onPick ? props.isSelected : undefined}
      className={name || undefined}
      title={gone ? "Does not match the query any more" : undefined}
      onClick={clicked}
      onDoubleClick={(event) => !isControl(event.target) && props.onOpen(run)}
      onFocus={() => props.onAt(run.id)}
    >
      {props.onPick && (
        <td className="c-check">
          <input
            type="checkbox"
            className="check"
            aria-label={`Select ${run.workflow} ${run.id}`}
            checked={props.isSelected}
            onChange={() => {}}
            onClick={(event) => props.onPick?.(run.id, !props.isSelected, { shift: event.shiftKey })}
            onKeyDown={(event: KeyboardEvent) => event.key === "Enter" && props.onOpen(run)}
          />
        </td>
      )}
      {props.columns.map((column) => (
        <td key={column.id} className={column.className}>
          {column.cell(run, props.facts)}
        </td>
      ))}
    </tr>
  );
});

function isControl(target: EventTarget): boolean {
  return target instanceof Element && target.closest("a, button, input") !== null;
}
