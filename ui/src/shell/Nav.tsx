import { Link, useRouterState } from "@tanstack/react-router";
import { useCounts } from "../api/counts";
import { useSession } from "../api/session";
import { type RunCount, useViewCounts, useViews } from "../api/views";
import { count } from "../format/numbers";
import { Icon, type IconName, Logo } from "../parts/icons";
import { MenuButton, type MenuItem } from "../parts/Menu";
import { useOverlays } from "./overlays";

interface Entry {
  path: string;
  icon: IconName;
  label: string;
  n?: number;
  hot?: "you" | "hot";
  wide?: boolean;
}

export function Nav() {
  const counts = useCounts();
  const views = useViews().data ?? [];
  const matching = useViewCounts(views.map((view) => view.name));
  const { openPalette } = useOverlays();
  const { may } = useSession();
  const main: Entry[] = [
    { path: "/runs", icon: "runs", label: "Runs", n: counts?.active },
    { path: "/workflows", icon: "flow", label: "Workflows" },
    { path: "/schedules", icon: "clock", label: "Schedules" },
    { path: "/approvals", icon: "person", label: "Approvals", n: counts?.approvals, hot: "you" },
    { path: "/workers", icon: "worker", label: "Workers" },
    { path: "/limits", icon: "limit", label: "Limits", wide: true },
  ];
  const operate: Entry[] = [
    { path: "/dead-letters", icon: "warn", label: "Dead letters", n: counts?.dead_letters, hot: "hot", wide: true },
    { path: "/events", icon: "signal", label: "Events", wide: true },
    ...(may("admin") ? [{ path: "/audit", icon: "audit", label: "Audit", wide: true } as Entry] : []),
    { path: "/settings", icon: "gear", label: "Settings", wide: true },
  ];
  return (
    <nav className="nav" aria-label="Main">
      <NamespaceSwitch />
      <button
        type="button"
        className="nav-search"
        onClick={openPalette}
        aria-label={`Search or jump ${MOD}K`}
        aria-keyshortcuts="Meta+K Control+K"
      >
        <Icon name="search" size={14} />
        <span className="grow">Search or jump</span> <kbd>{MOD}K</kbd>
      </button>
      {main.map((entry) => (
        <NavLink key={entry.path} {...entry} />
      ))}
      {views.length > 0 && <h2>Saved views</h2>}
      {views.map((view) => (
        <ViewLink key={view.name} name={view.name} matching={matching[view.name]} />
      ))}
      <h2>Operate</h2>
      {operate.map((entry) => (
        <NavLink key={entry.path} {...entry} />
      ))}
      <div className="nav-foot">
        {counts && (
          <div className="nav-health" title={`${count(counts.workers)} workers connected`}>
            <i className={`dot ${counts.engines === 0 ? "down" : ""}`} />
            {count(counts.engines)} {counts.engines === 1 ? "engine" : "engines"}
            {counts.commit_p50_ms !== null && ` · commit ${Math.max(1, Math.round(counts.commit_p50_ms))} ms`}
          </div>
        )}
        <Me />
      </div>
    </nav>
  );
}

export const MOD = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl ";

function NavLink({ path, icon, label, n, hot, wide }: Entry) {
  const here = useRouterState({ select: (s) => s.location.pathname });
  const current = here === path || here.startsWith(`${path}/`);
  return (
    <Link to={path} className={wide ? "wide" : undefined} aria-current={current ? "page" : undefined} title={label}>
      <Icon name={icon} />
      <span>{label}</span>
      {n !== undefined && n > 0 && <b className={`n ${hot ?? ""}`}>{count(n)}</b>}
    </Link>
  );
}

function ViewLink({ name, matching }: { name: string; matching: RunCount | undefined }) {
  const search = useRouterState({ select: (s) => s.location.searchStr });
  const current = new URLSearchParams(search).get("view") === name;
  return (
    <Link
      to={`/runs?view=${encodeURIComponent(name)}` as never}
      className="view"
      aria-current={current ? "page" : undefined}
      title={name}
    >
      <Icon name="star" />
      <span className="clip">{name}</span>
      {matching && matching.count > 0 && (
        <b className={`n ${/fail/i.test(name) ? "hot" : ""}`}>
          {count(matching.count)}
          {matching.exact ? "" : "+"}
        </b>
      )}
    </Link>
  );
}

function NamespaceSwitch() {
  const { session, namespace, chooseNamespace } = useSession();
  const shown = (
    <>
      <Logo />
      <span className="grow">
        <b className="clip">{namespace}</b>
        <small>Perdure namespace</small>
      </span>
    </>
  );
  if (session.namespaces.length < 2) return <div className="nav-space">{shown}</div>;
  const items: MenuItem[] = session.namespaces.map((name) => ({
    label: name,
    checked: name === namespace,
    onSelect: () => chooseNamespace(name),
  }));
  return (
    <MenuButton className="nav-space" label={`Namespace ${namespace}, switch`} menuClassName="nav-menu" items={items}>
      {shown}
      <Icon name="updown" size={14} />
    </MenuButton>
  );
}

function initials(name: string): string {
  const parts = name.split(/[\s._:@-]+/).filter(Boolean);
  return ((parts[0]?.[0] ?? "?") + (parts.length > 1 ? (parts[1]?.[0] ?? "") : "")).toUpperCase();
}

function Me() {
  const { session, signOut } = useSession();
  const name = session.name ?? session.subject ?? "";
  const items: (MenuItem | "-")[] = [{ label: `${session.subject}, ${session.role}`, disabled: true }];
  if (!session.sign_in.dev) items.push("-", { label: "Sign out", onSelect: () => void signOut() });
  return (
    <MenuButton className="nav-me" label={`Signed in as ${initials(name)} ${name}`} menuClassName="up" items={items}>
      <span className="avatar">{initials(name)}</span> <span className="grow clip">{name}</span>
    </MenuButton>
  );
}
