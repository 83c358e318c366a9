/** What can be done with the run, by its state and by what the session may do. */
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, body } from "../api/client";
import { useSession } from "../api/session";
import { count } from "../format/numbers";
import { useAct } from "../parts/acts";
import { copyText } from "../parts/Copy";
import { Icon } from "../parts/icons";
import { MenuButton, type MenuItem } from "../parts/Menu";
import { useKeys } from "../shell/keys";
import { toast } from "../shell/toasts";
import { useGo } from "../shell/url";
import { useRunView } from "./context";
import { copyAs } from "./copyAs";
import { keys } from "./data";
import { CancelDialog, DeleteDialog, PauseDialog, TerminateDialog } from "./dialogs/EndDialogs";
import { ForkDialog } from "./dialogs/ForkDialog";
import { SignalDialog, UpdateDialog } from "./dialogs/MessageDialogs";
import { OverrideDialog } from "./dialogs/OverrideDialog";
import { RerunDialog } from "./dialogs/RerunDialog";
import { downloadHistory } from "./download";
import { approvalHref } from "./waits";

type Asked = "signal" | "update" | "fork" | "rerun" | "like" | "override" | "cancel" | "terminate" | "pause" | "delete";

export function Acts({ onRequest }: { onRequest: (word: string | null) => void }) {
  const view = useRunView();
  const { run, active, node, selection } = view;
  const { may } = useSession();
  const [asked, setAsked] = useState<Asked | null>(null);
  const go = useGo();
  const refresh = [keys.run(view.name), ["runs"], ["counts"]];
  const params = { path: { id: run.id } };
  const retry = useAct({
    act: () => body(api.POST("/api/v1/runs/{id}/retry", { params })),
    said: () => "Retrying the failed tasks",
    refresh,
  });
  const resume = useAct({
    act: () => body(api.POST("/api/v1/runs/{id}/resume", { params })),
    said: () => "Resumed",
    refresh,
  });
  const operate = may("operate");
  const start = may("start");
  const failed = (view.timeline?.counts.failed ?? run.tasks.failed ?? 0) as number;
  const canRetry = operate && run.status === "failed" && !run.retry_refused;
  const canResume = operate && active && (!!run.paused_at || !!run.stuck);
  const approval = run.waiting?.waits.find((w) => w.on === "approval");
  const retryNow = () => {
    onRequest("Retrying…");
    retry.mutate(undefined, { onSettled: () => onRequest(null) });
  };
  const label = selection ? (selection.seq === null ? selection.node : `${selection.node} #${selection.seq}`) : "";
  useKeys({
    "shift+r": () => (canRetry ? retryNow() : toast(run.retry_refused ?? "Only a failed run can be retried")),
    c: () => void copyText(cliOf(view)),
  });

  const item = (when: boolean, item: MenuItem): MenuItem[] => (when ? [item] : []);
  const groups: MenuItem[][] = [
    [
      ...item(canRetry, {
        label: failed > 1 ? `Retry ${count(failed)} failed tasks` : "Retry failed",
        icon: "retry",
        hint: "⇧R",
        onSelect: retryNow,
      }),
      ...item(operate && run.status === "failed" && node?.status === "failed", {
        label: `Decide about ${node?.node}…`,
        icon: "fork",
        onSelect: () => setAsked("override"),
      }),
      ...item(operate, {
        label: label ? `Fork from ${label}…` : "Fork…",
        icon: "fork",
        onSelect: () => setAsked("fork"),
      }),
      ...item(start, { label: "Rerun…", icon: "retry", onSelect: () => setAsked("rerun") }),
      ...item(start, { label: "Start like this…", icon: "play", onSelect: () => setAsked("like") }),
      ...item(operate && active, { label: "Send signal…", icon: "signal", onSelect: () => setAsked("signal") }),
      ...item(operate && active, { label: "Send update…", icon: "signal", onSelect: () => setAsked("update") }),
    ],
    [
      { label: "Copy as CLI", icon: "copy", hint: "c", onSelect: () => void copyText(cliOf(view)) },
      {
        label: "Export history",
        icon: "file",
        hint: "JSON",
        onSelect: () => void downloadHistory(run.id, run.key ?? run.id),
      },
    ],
    [
      ...item(operate && active && !run.paused_at, {
        label: "Pause run…",
        icon: "pause",
        onSelect: () => setAsked("pause"),
      }),
      ...item(canResume, { label: "Resume run", icon: "play", onSelect: () => resume.mutate() }),
      ...item(operate && active, {
        label: "Cancel run…",
        icon: "stop",
        danger: true,
        onSelect: () => setAsked("cancel"),
      }),
      ...item(operate && active, {
        label: "Terminate run…",
        icon: "stop",
        danger: true,
        onSelect: () => setAsked("terminate"),
      }),
      ...item(operate && !active, {
        label: "Delete run…",
        icon: "x",
        danger: true,
        onSelect: () => setAsked("delete"),
      }),
    ],
  ];
  const items = groups.filter((g) => g.length > 0).flatMap((g, n) => (n > 0 ? (["-", ...g] as const) : g));
  const close = () => setAsked(null);
  return (
    <>
      {operate && approval && (
        <Link className="btn primary" to={approvalHref(run.id, approval.name ?? "") as never}>
          <Icon name="person" />
          Approve
        </Link>
      )}
      {canResume && (
        <button type="button" className="btn" onClick={() => resume.mutate()} disabled={resume.isPending}>
          <Icon name="play" />
          {resume.isPending ? "Resuming…" : "Resume"}
        </button>
      )}
      {operate && active && (
        <button type="button" className="btn hide-narrow" onClick={() => setAsked("signal")}>
          <Icon name="signal" />
          Signal
        </button>
      )}
      {canRetry && (
        <button type="button" className="btn hide-narrow" onClick={retryNow} disabled={retry.isPending}>
          <Icon name="retry" />
          {retry.isPending ? "Retrying…" : "Retry failed"}{" "}
          {failed > 0 && <span className="count">{count(failed)}</span>}
        </button>
      )}
      <MenuButton label="More actions" items={items}>
        <Icon name="more" />
      </MenuButton>
      {asked === "signal" && <SignalDialog run={run} onClose={close} />}
      {asked === "update" && <UpdateDialog run={run} onClose={close} />}
      {asked === "fork" && <ForkDialog onClose={close} onDone={(id) => go(`/runs/${id}`)} />}
      {(asked === "rerun" || asked === "like") && (
        <RerunDialog run={run} edit={asked === "like"} onClose={close} onDone={(id) => go(`/runs/${id}`)} />
      )}
      {asked === "override" && node && <OverrideDialog run={run} node={node.node} onClose={close} />}
      {asked === "cancel" && <CancelDialog run={run} onClose={close} onRequest={onRequest} />}
      {asked === "terminate" && <TerminateDialog run={run} onClose={close} onRequest={onRequest} />}
      {asked === "pause" && <PauseDialog run={run} onClose={close} onRequest={onRequest} />}
      {asked === "delete" && <DeleteDialog run={run} onClose={close} onDone={() => go("/runs")} />}
    </>
  );
}

function cliOf(view: ReturnType<typeof useRunView>): string {
  const { run, selection } = view;
  const task =
    selection && run.status !== "failed" ? { label: selection.node, name: selection.node, seq: selection.seq } : null;
  return copyAs("CLI", { origin: location.origin, namespace: "", run, task });
}
