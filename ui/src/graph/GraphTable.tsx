/** The same graph as a table, for those who do not see it drawn or would rather read. */
import { duration } from "../format/durations";
import { count } from "../format/numbers";
import { Status } from "../parts/Status";
import type { FlowEdge, FlowNode } from "./model";

export interface TableNode extends FlowNode {
  took_s?: number | null;
}

export function GraphTable(props: {
  nodes: TableNode[];
  edges: FlowEdge[];
  selected?: string | null;
  onSelect?: (id: string) => void;
}) {
  const before = new Map<string, string[]>();
  for (const edge of props.edges)
    before.set(edge.to, [...(before.get(edge.to) ?? []), edge.label ? `${edge.from} (${edge.label})` : edge.from]);
  const inRun = props.nodes.some((n) => n.status);
  return (
    <div className="scroll grow">
      <table className="grid">
        <thead>
          <tr>
            <th>Task</th>
            {inRun && <th>Status</th>}
            <th>Kind</th>
            <th>After</th>
            {inRun && <th className="num">Tasks</th>}
            {inRun ? <th className="num">Duration</th> : <th>Detail</th>}
          </tr>
        </thead>
        <tbody>
          {props.nodes.map((node) => (
            <tr
              key={node.id}
              aria-selected={node.id === props.selected}
              className={node.id === props.selected ? "sel" : ""}
            >
              <td>
                <button type="button" className="link mono" onClick={() => props.onSelect?.(node.id)}>
                  {node.name ?? node.id}
                </button>
              </td>
              {inRun && <td>{node.status ? <Status status={node.status} /> : "–"}</td>}
              <td className="muted">{node.kind}</td>
              <td className="muted clip">{before.get(node.id)?.join(", ") ?? "–"}</td>
              {inRun && <td className="num">{node.tasks ? count(node.tasks) : "–"}</td>}
              {inRun ? <td className="num">{duration(node.took_s)}</td> : <td className="muted">{node.sub ?? "–"}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
