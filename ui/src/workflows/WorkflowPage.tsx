/** One workflow: how it does, and what it is. */

import { useParams } from "@tanstack/react-router";
import { useState } from "react";
import { useSession } from "../api/session";
import { shortVersion } from "../format/ids";
import { Actor } from "../parts/Actor";
import { copyText } from "../parts/Copy";
import { Icon } from "../parts/icons";
import { MenuButton, type MenuItem } from "../parts/Menu";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Tabs } from "../parts/Tabs";
import { Time } from "../parts/Time";
import { TopBar } from "../shell/TopBar";
import { useGo, useUrl } from "../shell/url";
import { DeleteDialog, PauseDialog, ResumeDialog, RollBackDialog } from "./acts";
import { Definition } from "./Definition";
import { isMissing, type Pause, usePauses, useVersions, useWorkflow, type Workflow } from "./data";
import { useDraft } from "./editor/draft";
import { Overview } from "./Overview";
import "./workflow.css";

export function WorkflowPage() {
  const { name } = useParams({ strict: false }) as { name: string };
  const workflow = useWorkflow(name);
  const pauses = usePauses();
  const found = workflow.data;
  const pause = pauses.data?.get(name) ?? null;
  return (
    <>
      <TopBar
        title={`${name} · Workflows`}
        crumbs={[{ label: "Workflows", href: "/workflows" }, { label: name }]}
        beside={
          <>
            {found && <span className="tag hide-narrow">{found.kind}</span>}
            {pause && <span className="tag attention">paused</span>}
            {found?.deleted_at && <span className="tag failed">deleted</span>}
          </>
        }
      >
        {found && !found.deleted_at && <Acts workflow={found} isPaused={pause !== null} />}
      </TopBar>
      {found ? (
        <Views workflow={found} pause={pause} />
      ) : workflow.error ? (
        <Problem name={name} error={workflow.error} retry={() => void workflow.refetch()} />
      ) : (
        <Skeleton rows={10} height={48} />
      )}
    </>
  );
}

function Problem({ name, error, retry }: { name: string; error: Error; retry: () => void }) {
  if (!isMissing(error)) return <Failed error={error} retry={retry} />;
  return (
    <Empty title={`There is no workflow ${name}`} command="perdure deploy flow.yaml">
      It was never deployed here, or it is in another namespace. Deploy a flow, or start a worker whose code has it.
    </Empty>
  );
}

function Views({ workflow, pause }: { workflow: Workflow; pause: Pause | null }) {
  const url = useUrl();
  const { namespace } = useSession();
  const [draft] = useDraft(namespace, workflow.name);
  const tab = url.get("tab") === "definition" ? "definition" : "overview";
  return (
    <>
      {pause && (
        <p className="notice attention" role="status">
          <Icon name="pause" />
          <span>
            Paused <Time at={pause.at} />
            {pause.by && (
              <>
                {" "}
                by <Actor subject={pause.by} />
              </>
            )}
            {pause.reason && `: ${pause.reason}`}. Starts are accepted, and wait.
          </span>
        </p>
      )}
      <Tabs
        label="Views of this workflow"
        tabs={[
          { id: "overview", label: "Overview" },
          {
            id: "definition",
            label: <>Definition {draft && <span className="tag attention">draft</span>}</>,
          },
        ]}
        value={tab}
        onChange={(id) =>
          url.set({ tab: id === "overview" ? null : id, version: null, node: null, as: null }, { push: true })
        }
      />
      {tab === "overview" ? <Overview name={workflow.name} /> : <Definition workflow={workflow} />}
    </>
  );
}

type Open = "pause" | "resume" | "rollback" | "delete" | null;

function Acts({ workflow, isPaused }: { workflow: Workflow; isPaused: boolean }) {
  const { may } = useSession();
  const go = useGo();
  const versions = useVersions(workflow.name);
  const [open, setOpen] = useState<Open>(null);
  const close = () => setOpen(null);
  const given = { workflow: workflow.name, onClose: close };
  const list = versions.data;
  const canRollBack = Boolean(list && (list.ramp || list.previous));
  const items: (MenuItem | "-")[] = [
    { label: "Copy as CLI", icon: "copy", onSelect: () => void copyText(`perdure workflow show ${workflow.name}`) },
  ];
  if (may("operate"))
    items.push(
      isPaused
        ? { label: "Resume workflow…", icon: "play", onSelect: () => setOpen("resume") }
        : { label: "Pause workflow…", icon: "pause", onSelect: () => setOpen("pause") },
    );
  if (may("develop")) {
    if (canRollBack)
      items.push({
        label: list?.ramp ? "End the ramp…" : `Roll back to ${shortVersion(list?.previous ?? "")}…`,
        icon: "retry",
        onSelect: () => setOpen("rollback"),
      });
    items.push("-", { label: "Delete workflow…", icon: "x", danger: true, onSelect: () => setOpen("delete") });
  }
  return (
    <>
      <MenuButton label="More acts" className="btn icon" menuClassName="from-right" items={items}>
        <Icon name="more" />
      </MenuButton>
      {may("start") && (
        <button
          type="button"
          className="btn primary"
          onClick={() => go(`/runs?start=${encodeURIComponent(workflow.name)}`)}
        >
          <Icon name="play" />
          Start run
        </button>
      )}
      {open === "pause" && <PauseDialog {...given} />}
      {open === "resume" && <ResumeDialog {...given} />}
      {open === "delete" && (
        <DeleteDialog {...given} active={workflow.runs_active} onDeleted={() => go("/workflows")} />
      )}
      {open === "rollback" && list && (
        <RollBackDialog {...given} current={list.version} previous={list.previous} ramp={list.ramp} />
      )}
    </>
  );
}
