/** How many runs there are, the columns, and the keys. */
import { useQuery } from "@tanstack/react-query";
import { count } from "../format/numbers";
import { Icon } from "../parts/icons";
import { MenuButton } from "../parts/Menu";
import { MOD } from "../shell/Nav";
import { useUrl } from "../shell/url";
import { matching } from "./BulkBar";
import { offeredColumns, toggleColumn, writeColumns } from "./columns";
import { countQuery } from "./data";
import type { Runs } from "./useRuns";

export function Foot(props: { runs: Runs; attributes: string[]; columns: string[]; canOperate: boolean }) {
  const { runs } = props;
  const url = useUrl();
  const total = useQuery({ ...countQuery(runs.request), enabled: !runs.error }).data;
  const offered = offeredColumns(props.attributes);
  const order = offered.map((column) => column.id);
  const shown = runs.rows.length;
  return (
    <footer className="foot">
      <span role="status">
        {count(shown)}
        {total && (runs.more || total.count > shown) ? ` of ${matching(total)}` : ""}{" "}
        {shown === 1 && !runs.more ? "run" : "runs"}, newest first
      </span>
      <span className="inline-menu">
        <MenuButton
          label="Choose columns"
          className="btn ghost sm"
          menuClassName="up columns-menu"
          items={[
            ...offered.map((column) => ({
              label: column.label,
              checked: props.columns.includes(column.id),
              onSelect: () => url.set({ columns: writeColumns(toggleColumn(props.columns, column.id, order)) }),
            })),
            "-",
            { label: "Columns as they were", onSelect: () => url.set({ columns: null }) },
          ]}
        >
          <Icon name="table" size={14} />
          Columns
        </MenuButton>
      </span>
      <span className="grow" />
      <span className="hints hide-narrow">
        <kbd>j</kbd>
        <kbd>k</kbd> move {props.canOperate && <kbd>x</kbd>} {props.canOperate && "select "}
        <kbd>↵</kbd> open <kbd>f</kbd> filter <kbd>{MOD}K</kbd> commands <kbd>?</kbd> all keys
      </span>
    </footer>
  );
}
