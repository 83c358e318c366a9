import { Dialog } from "../parts/Dialog";
import { MOD } from "./Nav";

const KEYS: [string, ...string[]][] = [
  ["Command palette", MOD.trim(), "K"],
  ["This sheet", "?"],
  ["Next / previous", "j", "k"],
  ["Open", "↵"],
  ["Filter", "f"],
  ["Select row", "x"],
  ["Select all matching", "⇧", "x"],
  ["Back", "esc"],
  ["Go to runs", "g", "r"],
  ["Go to workflows", "g", "w"],
  ["Go to schedules", "g", "s"],
  ["Go to approvals", "g", "a"],
  ["Go to workers", "g", "k"],
  ["Go to limits", "g", "l"],
  ["Timeline … State", "1", "…", "6"],
  ["Next failed task", "n"],
  ["Retry failed", "⇧", "R"],
  ["Copy as CLI", "c"],
  ["Follow logs", "⇧", "F"],
  ["Switch theme", "t"],
];

export function KeySheet({ onClose }: { onClose: () => void }) {
  return (
    <Dialog label="Keyboard shortcuts" onClose={onClose}>
      <div className="keys">
        <div className="row">
          <h2 className="h2 grow">Keyboard</h2>
          <button type="button" className="btn ghost sm" onClick={onClose}>
            Close
          </button>
        </div>
        <dl>
          {KEYS.map(([what, ...keys]) => (
            <div key={what}>
              <dt>{what}</dt>
              <dd>
                {keys.map((key) => (
                  <kbd key={key}>{key}</kbd>
                ))}
              </dd>
            </div>
          ))}
        </dl>
      </div>
    </Dialog>
  );
}
