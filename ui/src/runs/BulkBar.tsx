/** What can be done to the selected runs. */
import { useQuery } from "@tanstack/react-query";
import { count } from "../format/numbers";
import { Icon, type IconName } from "../parts/icons";
import { MenuButton } from "../parts/Menu";
import { ACTIONS, type Selection } from "./bulk";
import { isPureQuery, type RunsRequest } from "./chips";
import { type BulkAction, countQuery, type RunsCount } from "./data";

const FIRST: [BulkAction, IconName][] = [
  ["retry", "retry"],
  ["signal", "signal"],
  ["cancel", "stop"],
  ["terminate", "x"],
];

export function matching(found: RunsCount): string {
  return found.exact ? count(found.count) : `${count(found.count)}+`;
}

export function BulkBar(props: {
  selection: Selection;
  request: RunsRequest;
  onAll: () => void;
  onClear: () => void;
  onAct: (action: BulkAction) => void;
}) {
  const { selection, request } = props;
  const total = useQuery({ ...countQuery(request), enabled: isPureQuery(request) }).data;
  const n = selection.all ? (total ? `All ${matching(total)}` : "All matching") : count(selection.ids.size);
  return (
    <div className="bulk" role="toolbar" aria-label="Bulk actions">
      <b aria-live="polite">{n} selected</b>
      {!selection.all && isPureQuery(request) && total && total.count > selection.ids.size && (
        <button type="button" className="bulk-all" title="Select all matching (⇧x)" onClick={props.onAll}>
          Select all {matching(total)} matching
        </button>
      )}
      <i />
      {FIRST.map(([action, icon]) => (
        <button key={action} type="button" onClick={() => props.onAct(action)}>
          <Icon name={icon} size={14} />
          {action === "retry" ? "Retry failed" : `${ACTIONS[action].verb}…`}
        </button>
      ))}
      <span className="inline-menu">
        <MenuButton
          label="More actions"
          className="more"
          menuClassName="up bulk-menu"
          items={[
            { label: "Pause…", icon: "pause", onSelect: () => props.onAct("pause") },
            { label: "Resume…", icon: "play", onSelect: () => props.onAct("resume") },
            "-",
            { label: "Delete…", icon: "x", danger: true, onSelect: () => props.onAct("delete") },
          ]}
        >
          <Icon name="more" size={14} />
        </MenuButton>
      </span>
      <i />
      <button type="button" aria-label="Clear selection" title="Clear selection (esc)" onClick={props.onClear}>
        <Icon name="x" size={14} />
      </button>
    </div>
  );
}
