/** What the run page reads. */
import type { Schemas } from "../api/client";
import type { StatusWord } from "../parts/icons";

export type Run = Schemas["Run"];
export type RunTask = Schemas["RunTask"];
export type Attempt = Schemas["TaskAttempt"];
export type HistoryEvent = Schemas["HistoryEvent"];
export type LogEntry = Schemas["LogEntry"];
export type Counts = Partial<Record<StatusWord, number>>;

/** `expected` is drawn here: what is still to come. */
export type SegmentKind = Schemas["TaskSegment"]["kind"] | "expected";
export type Segment = Omit<Schemas["TaskSegment"], "kind"> & { kind: SegmentKind };
export type TimelineNode = Omit<Schemas["TimelineLane"], "segments"> & { segments: Segment[] };
export type Timeline = Omit<Schemas["RunTimeline"], "nodes"> & { nodes: TimelineNode[] };

export const TABS = ["timeline", "graph", "history", "logs", "io", "state"] as const;
export type TabId = (typeof TABS)[number];
