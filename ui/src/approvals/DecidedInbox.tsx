/** What was decided or has expired lately, the latest first. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { api, body } from "../api/client";
import { plural } from "../format/numbers";
import { Actor } from "../parts/Actor";
import { showSelected } from "../parts/rows";
import { Empty, Failed, Skeleton } from "../parts/states";
import { Segments } from "../parts/Tabs";
import { Relative } from "../parts/Time";
import { useKeys } from "../shell/keys";
import { useUrl } from "../shell/url";
import { ApprovalDetail } from "./ApprovalDetail";
import { StatusOf } from "./ApprovalsPage";
import { type Approval, deciders, questionKey } from "./inbox";

const PAGE = 50;

export function DecidedInbox() {
  const url = useUrl();
  const isOwn = url.get("by") !== "all";
  const query = useInfiniteQuery({
    queryKey: ["approvals", "decided", isOwn],
    queryFn: ({ pageParam }) =>
      body(
        api.GET("/api/v1/approvals", {
          params: {
            query: {
              state: "decided",
              decided_by: isOwn ? "@me" : undefined,
              limit: PAGE,
              cursor: pageParam || undefined,
            },
          },
        }),
      ),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
  });
  const all = query.data?.pages.flatMap((page) => page.items) ?? [];
  const asked = url.get("item");
  const selected = all.find((a) => questionKey(a) === asked) ?? all[0];
  const step = (by: number) => {
    const next = all[Math.max(0, Math.min(all.length - 1, all.indexOf(selected as Approval) + by))];
    if (next) url.set({ item: questionKey(next) });
    showSelected();
  };
  useKeys({ j: () => step(1), k: () => step(-1) });
  return (
    <div className={`split inbox ${query.isError ? "stale" : ""}`}>
      <nav className="items scroll" aria-label="Decided">
        <div className="items-head">
          <Segments
            label="Decided by"
            value={isOwn ? "me" : "all"}
            onChange={(id) => url.set({ by: id === "all" ? "all" : null, item: null })}
            options={[
              { id: "me", label: "By you" },
              { id: "all", label: "All" },
            ]}
          />
        </div>
        {all.map((approval) => (
          <DecidedItem
            key={questionKey(approval)}
            approval={approval}
            isCurrent={approval === selected}
            onOpen={() => url.set({ item: questionKey(approval) })}
          />
        ))}
        {query.hasNextPage && (
          <div className="list-foot">
            <button
              type="button"
              className="btn sm"
              onClick={() => void query.fetchNextPage()}
              disabled={query.isFetchingNextPage}
            >
              {query.isFetchingNextPage ? "Loading…" : "Earlier ones"}
            </button>
          </div>
        )}
      </nav>
      <div className="detail scroll">
        {selected ? (
          <ApprovalDetail key={questionKey(selected)} approval={selected} isGone />
        ) : query.isPending ? (
          <Skeleton rows={4} height={52} />
        ) : query.error ? (
          <Failed error={query.error} retry={() => void query.refetch()} />
        ) : (
          <Empty
            title={isOwn ? "You decided nothing lately" : "Nothing was decided lately"}
            command={`perdure approval list --decided${isOwn ? " --mine me" : ""}`}
          >
            Approvals are listed here for 30 days after they were decided or have expired. The audit log keeps every
            answer.
          </Empty>
        )}
      </div>
    </div>
  );
}

function DecidedItem(props: { approval: Approval; isCurrent: boolean; onOpen: () => void }) {
  const { approval } = props;
  const names = deciders(approval);
  return (
    <button type="button" className="item" aria-current={props.isCurrent ? "true" : undefined} onClick={props.onOpen}>
      <b className="clip">{approval.title}</b>
      <span className="left">{approval.decided_at && <Relative at={approval.decided_at} />}</span>
      <span className="why row">
        <StatusOf approval={approval} isGone />
        {names[0] && (
          <span className="clip">
            by <Actor subject={names[0]} />
            {names.length > 1 && ` and ${plural(names.length - 1, "other")}`}
          </span>
        )}
        <span className="faint clip">{approval.workflow}</span>
      </span>
    </button>
  );
}
