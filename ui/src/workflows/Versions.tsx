/** The versions of a workflow with their runs in flight, and what the last change was. */
import { Link } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { useSession } from "../api/session";
import { shortVersion } from "../format/ids";
import { plural } from "../format/numbers";
import { Icon } from "../parts/icons";
import { MenuButton, type MenuItem } from "../parts/Menu";
import { Failed, Skeleton } from "../parts/states";
import { Time } from "../parts/Time";
import { useGo, useUrl } from "../shell/url";
import { CurrentDialog } from "./acts";
import { CompareDialog } from "./CompareDialog";
import { DiffLines } from "./DiffLines";
import {
  quoted,
  runsHref,
  textOf,
  type UsedVersion,
  useDefinition,
  useVersions,
  type VersionList,
  workflowHref,
} from "./data";
import { diffCounts, lineDiff } from "./lineDiff";

const SHOWN = 6;
/** Lines of the last change that are shown beside the list; all of them are in the comparison. */
const LINES_BESIDE = 24;

export function Versions({ name }: { name: string }) {
  const versions = useVersions(name);
  const url = useUrl();
  const found = versions.data;
  const pair = url.get("compare")?.split("..") ?? null;
  const compare = (from: string, to: string) => url.set({ compare: `${from}..${to}` }, { push: true });
  const before = found ? previousOf(found) : null;
  const other = before ?? found?.items.find((v) => v.version !== found.version)?.version ?? null;
  const all = url.get("versions") === "all";
  return (
    <section className="card" aria-label="Versions">
      <header>
        <h2 className="grow">Versions</h2>
        {found && other && (
          <button type="button" className="btn ghost sm" onClick={() => compare(other, found.version)}>
            Compare
          </button>
        )}
      </header>
      {versions.error && !found && <Failed error={versions.error} retry={() => void versions.refetch()} />}
      {!found && !versions.error && <Skeleton rows={4} height={44} />}
      {found && (
        <ul className="versions">
          {(all ? found.items : found.items.slice(0, SHOWN)).map((version) => (
            <Version key={version.version} list={found} version={version} compare={compare} />
          ))}
        </ul>
      )}
      {found && found.items.length > SHOWN && (
        <button
          type="button"
          className="link small more-rows"
          onClick={() => url.set({ versions: all ? null : "all" })}
        >
          {all ? "Show fewer versions" : `Show ${found.items.length - SHOWN} more`}
        </button>
      )}
      {found && before && <LastChange name={name} from={before} to={found.version} compare={compare} />}
      {found && pair?.length === 2 && (
        <CompareDialog
          name={name}
          versions={found.items.map((v) => v.version)}
          from={pair[0] as string}
          to={pair[1] as string}
          onChange={compare}
          onClose={() => url.set({ compare: null })}
        />
      )}
    </section>
  );
}

/** The version before the current one: the one that was current, else the next older in the list. */
function previousOf(list: VersionList): string | null {
  if (list.previous && list.items.some((v) => v.version === list.previous)) return list.previous;
  const at = list.items.findIndex((v) => v.version === list.version);
  return list.items[at + 1]?.version ?? null;
}

function Version(props: { list: VersionList; version: UsedVersion; compare: (from: string, to: string) => void }) {
  const { list, version } = props;
  const { may } = useSession();
  const go = useGo();
  const [choosing, setChoosing] = useState(false);
  const live = version.runs_pinned + version.runs_other;
  const items: MenuItem[] = [
    {
      label: "Show its definition",
      icon: "file",
      onSelect: () => go(workflowHref(list.name, { tab: "definition", version: version.version })),
    },
  ];
  if (!version.current)
    items.push({
      label: `Compare with ${shortVersion(list.version)}`,
      icon: "fork",
      onSelect: () => props.compare(version.version, list.version),
    });
  if (!version.current && may("develop"))
    items.push({ label: "Make current…", icon: "check", onSelect: () => setChoosing(true) });
  return (
    <li>
      <Link
        className="link mono clip"
        title={version.version}
        to={workflowHref(list.name, { tab: "definition", version: version.version }) as never}
      >
        {shortVersion(version.version)}
      </Link>
      <span>
        <VersionTag list={list} version={version} live={live} />
      </span>
      <span className="livebar">
        {live > 0 ? (
          <Link
            className="link"
            to={runsHref(list.name, [`version = ${quoted(version.version)}`, "status in (pending, running)"]) as never}
          >
            {plural(live, "live run")}
          </Link>
        ) : (
          <span className="faint">no live runs</span>
        )}
      </span>
      <span className="who clip">
        <Time at={version.registered_at} />
        {version.kind === "code" && `, ${version.workers ? plural(version.workers, "worker") : "no worker"}`}
        {version.build_id && `, ${version.build_id}`}
      </span>
      <span className="inline-menu version-menu">
        <MenuButton label={`Acts on ${shortVersion(version.version)}`} className="btn ghost icon sm" items={items}>
          <Icon name="more" size={14} />
        </MenuButton>
      </span>
      {choosing && (
        <CurrentDialog
          workflow={list.name}
          version={version.version}
          current={list.version}
          onClose={() => setChoosing(false)}
        />
      )}
    </li>
  );
}

function VersionTag({ list, version, live }: { list: VersionList; version: UsedVersion; live: number }) {
  if (version.current) return <span className="tag running">current</span>;
  if (list.ramp === version.version) return <span className="tag accent">{list.ramp_percent} % of new runs</span>;
  if (live > 0) return <span className="tag attention">draining</span>;
  return null;
}

function LastChange(props: { name: string; from: string; to: string; compare: (from: string, to: string) => void }) {
  const before = useDefinition(props.name, props.from);
  const after = useDefinition(props.name, props.to);
  const lines = useMemo(
    () => (before.data && after.data ? lineDiff(textOf(before.data), textOf(after.data)) : null),
    [before.data, after.data],
  );
  if (!lines || before.data?.kind === "code" || after.data?.kind === "code") return null;
  const { added, removed } = diffCounts(lines);
  if (added + removed === 0) return null;
  const shown =
    lines.filter((l) => l.kind !== "same").length > LINES_BESIDE ? firstChanges(lines, LINES_BESIDE) : lines;
  return (
    <div className="diff">
      <div className="eyebrow">
        <span className="mono">{shortVersion(props.from)}</span> to{" "}
        <span className="mono">{shortVersion(props.to)}</span>, {plural(added + removed, "line")}
      </div>
      <DiffLines lines={shown} context={1} />
      {shown !== lines && (
        <button type="button" className="link small" onClick={() => props.compare(props.from, props.to)}>
          Show all of it
        </button>
      )}
    </div>
  );
}

function firstChanges<T extends { kind: string }>(lines: T[], most: number): T[] {
  let seen = 0;
  const end = lines.findIndex((line) => {
    seen += line.kind === "same" ? 0 : 1;
    return seen > most;
  });
  return lines.slice(0, end);
}
