/** The form of a schedule: texts as a person types them, and the request that they make. */
import type { Schemas } from "../api/client";
import type { Schedule } from "./data";
import { type Spec, several } from "./when";

export interface Draft {
  name: string;
  workflow: string;
  kind: "cron" | "every" | "at";
  cron: string;
  every: string;
  at: string;
  tz: string;
  overlap: string;
  missed: string;
  window: string;
  jitter: string;
  calendars: string;
  exclude: string;
  start: string;
  end: string;
  input: string;
  timeout: string;
  version: string;
}

export function draftOf(schedule: Schedule | undefined, zone: string): Draft {
  const spec = (schedule?.spec ?? {}) as Spec;
  const crons = several(spec.cron);
  return {
    name: schedule?.name ?? "",
    workflow: schedule?.workflow ?? "",
    kind: !schedule || crons.length > 0 ? "cron" : spec.every !== undefined ? "every" : "at",
    cron: schedule ? crons.join("\n") : "0 8 * * *",
    every: spec.every === undefined ? "" : String(spec.every),
    at: several(spec.at).join("\n"),
    tz: schedule ? (spec.tz ?? "UTC") : zone,
    overlap: spec.overlap ?? "skip",
    missed: spec.missed ?? "last",
    window: spec.window === undefined ? "" : String(spec.window),
    jitter: spec.jitter === undefined ? "" : String(spec.jitter),
    calendars: (spec.calendars ?? []).join(", "),
    exclude: (spec.exclude ?? []).join(", "),
    start: spec.start ?? "",
    end: spec.end ?? "",
    input: schedule && schedule.input !== null ? JSON.stringify(schedule.input, null, 2) : "",
    timeout: schedule?.timeout_s ? String(schedule.timeout_s) : "",
    version: schedule?.version ?? "",
  };
}

/** Every kind of time that has a text counts, so that a schedule with several keeps them. */
export function specOfDraft(draft: Draft): Schemas["SpecRequest"] {
  const spec: Schemas["SpecRequest"] = { tz: draft.tz.trim() || "UTC", overlap: draft.overlap, missed: draft.missed };
  const crons = lines(draft.cron);
  const moments = lines(draft.at);
  if (crons.length > 0) spec.cron = crons.length === 1 ? crons[0] : crons;
  if (draft.every.trim()) spec.every = draft.every.trim();
  if (moments.length > 0) spec.at = moments;
  for (const key of ["window", "jitter", "start", "end"] as const) if (draft[key].trim()) spec[key] = draft[key].trim();
  for (const key of ["calendars", "exclude"] as const) {
    const names = draft[key].split(/[,\n]/).map((n) => n.trim());
    if (names.some(Boolean)) spec[key] = names.filter(Boolean);
  }
  return spec;
}

function lines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

/** Undefined for an empty text; an error where it is no JSON. */
export function inputOf(text: string): { value: unknown } | { problem: string } {
  if (!text.trim()) return { value: null };
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { problem: (error as Error).message };
  }
}

export function requestOf(draft: Draft, before: Schedule | undefined, input: unknown): Schemas["PutScheduleRequest"] {
  const timeout = draft.timeout.trim();
  return {
    workflow: draft.workflow.trim(),
    spec: specOfDraft(draft),
    input,
    timeout: timeout ? (/^[\d.]+$/.test(timeout) ? Number(timeout) : timeout) : null,
    version: draft.version.trim() || null,
    // Not in the form, so kept as they are.
    attributes: (before?.attributes ?? {}) as Schemas["PutScheduleRequest"]["attributes"],
    origin: "api",
  };
}
