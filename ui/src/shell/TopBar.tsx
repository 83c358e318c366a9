import { Link } from "@tanstack/react-router";
import { type ReactNode, useEffect } from "react";
import { useStreamState } from "../api/stream";
import { clock } from "../format/times";
import { Icon } from "../parts/icons";
import { useOverlays } from "./overlays";
import { nextTheme, useTheme } from "./theme";
import { toast } from "./toasts";

export interface Crumb {
  label: ReactNode;
  href?: string;
}

/** The bar at the top of a page: a title or crumbs, what belongs beside them, the page's main acts. */
export function TopBar(props: {
  title: string;
  heading?: ReactNode;
  /** The last one is the page's heading, unless the page has its own. */
  crumbs?: Crumb[];
  ownHeading?: boolean;
  beside?: ReactNode;
  children?: ReactNode;
}) {
  useEffect(() => {
    document.title = `${props.title} · Perdure`;
  }, [props.title]);
  return (
    <header className="top">
      {props.crumbs ? (
        <Crumbs crumbs={props.crumbs} isHeading={!props.ownHeading} />
      ) : (
        <h1>{props.heading ?? props.title}</h1>
      )}
      {props.beside}
      <span className="grow" />
      <div className="row tools">
        <LiveMark />
        <ThemeButton />
        <KeysButton />
        {props.children}
      </div>
    </header>
  );
}

function Crumbs({ crumbs, isHeading }: { crumbs: Crumb[]; isHeading: boolean }) {
  const Here = isHeading ? "h1" : "span";
  return (
    <nav className="crumbs" aria-label="Breadcrumb">
      {crumbs.map((crumb, n) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: crumbs do not move
        <span key={n} className="row crumb">
          {n > 0 && <span className="sep">/</span>}
          {crumb.href ? (
            <Link to={crumb.href as never} activeOptions={{ exact: true }}>
              {crumb.label}
            </Link>
          ) : (
            <Here aria-current="page" className="clip">
              {crumb.label}
            </Here>
          )}
        </span>
      ))}
    </nav>
  );
}

function LiveMark() {
  const state = useStreamState();
  if (state.phase === "lost")
    return (
      <span className="live lost" role="status">
        <i className="dot" />
        Reconnecting, data from {clock(state.heardAt)}
      </span>
    );
  return (
    <span className="live hide-narrow" title="One stream, at most 4 updates a second">
      <i className="dot" />
      {state.phase === "live" ? "Live" : "Connecting"}
    </span>
  );
}

function ThemeButton() {
  const theme = useTheme();
  const label = `Switch theme, now ${theme}`;
  return (
    <button
      type="button"
      className="btn ghost icon"
      aria-label={label}
      title={`${label} (t)`}
      onClick={() => toast(`Theme: ${nextTheme()}`)}
    >
      <Icon name="moon" />
    </button>
  );
}

function KeysButton() {
  const { openKeys } = useOverlays();
  return (
    <button
      type="button"
      className="btn ghost icon hide-narrow"
      aria-label="Keyboard shortcuts"
      title="Keyboard shortcuts (?)"
      onClick={openKeys}
    >
      <Icon name="keys" />
    </button>
  );
}
