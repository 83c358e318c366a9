/** What a person can run elsewhere: the command line, curl, and a test. Every value of a user is quoted for where it goes. */

export type CopyKind = "CLI" | "curl" | "pytest";
export const COPY_KINDS: CopyKind[] = ["CLI", "curl", "pytest"];

/** For a POSIX shell. Plain words stay as they are. */
export function shell(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** As a Python literal. */
export function python(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "None";
  if (typeof value === "string") return pythonText(value);
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  const entries = Object.entries(value as Record<string, unknown>).map(([k, v]) => `${pythonText(k)}: ${python(v)}`);
  return `{${entries.join(", ")}}`;
}

/** JSON's escapes are Python's, apart from surrogates, which JSON.stringify writes out when they are alone. */
function pythonText(text: string): string {
  return JSON.stringify(text).replace(
    /[\u007f-\u009f\u2028\u2029\ud800-\udfff]/gu,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

export function pythonName(text: string): string {
  const name = text.replace(/[^A-Za-z0-9_]+/g, "_").replace(/^_+|_+$/g, "");
  return /^[A-Za-z_]/.test(name) ? name : `t_${name}`;
}

/** Arguments of a recorded call: those by position are under `*`. */
export function callOf(input: unknown): { args: unknown[]; kwargs: Record<string, unknown> } {
  if (input === null || input === undefined) return { args: [], kwargs: {} };
  if (typeof input !== "object" || Array.isArray(input)) return { args: [input], kwargs: {} };
  const { "*": args, "**": offered, ...named } = input as Record<string, unknown>;
  const kwargs = { ...(offered as Record<string, unknown> | undefined), ...named };
  return { args: Array.isArray(args) ? args : [], kwargs };
}

function pythonCall(name: string, input: unknown): string {
  const { args, kwargs } = callOf(input);
  const byName = Object.entries(kwargs).map(([k, v]) =>
    /^[A-Za-z_]\w*$/.test(k) ? `${k}=${python(v)}` : `**{${pythonText(k)}: ${python(v)}}`,
  );
  return `${name}(${[...args.map(python), ...byName].join(", ")})`;
}

export interface CopySubject {
  origin: string;
  namespace: string;
  run: { id: string; key: string | null; workflow: string; status: string; input: unknown };
  /** The selected task, when there is one. */
  task: { label: string; name: string; seq: number | null; input?: unknown; output?: unknown } | null;
}

/** What is copied: a failed run is retried; of anything else the attempts of the task, or the run, are shown. */
export function actOf(subject: CopySubject): "retry" | "attempts" | "show" {
  if (subject.run.status === "failed") return "retry";
  return subject.task ? "attempts" : "show";
}

export function copyAs(kind: CopyKind, subject: CopySubject): string {
  if (kind === "CLI") return cli(subject);
  return kind === "curl" ? curl(subject) : pytest(subject);
}

function runName(run: CopySubject["run"]): string {
  return run.key ? `key:${run.key}` : run.id;
}

function taskName(task: NonNullable<CopySubject["task"]>): string {
  return task.seq === null ? task.name : String(task.seq);
}

function cli(subject: CopySubject): string {
  const act = actOf(subject);
  const words = ["perdure", act, runName(subject.run)];
  if (act === "attempts" && subject.task) words.push(taskName(subject.task));
  if (subject.namespace && subject.namespace !== "default") words.push("-n", subject.namespace);
  return words.map(shell).join(" ");
}

function curl(subject: CopySubject): string {
  const act = actOf(subject);
  const base = `${subject.origin}/api/v1/runs/${encodeURIComponent(subject.run.id)}`;
  const path = {
    retry: "/retry",
    attempts: `/tasks/${encodeURIComponent(subject.task ? taskName(subject.task) : "")}/attempts`,
    show: "",
  }[act];
  const lines = [
    `curl ${act === "retry" ? "-X POST " : ""}${shell(base + path)}`,
    `  -H "Authorization: Bearer $PERDURE_API_KEY"`,
  ];
  if (subject.namespace && subject.namespace !== "default")
    lines.push(`  -H ${shell(`Perdure-Namespace: ${subject.namespace}`)}`);
  return lines.join(" \\\n");
}

function pytest(subject: CopySubject): string {
  const { run, task } = subject;
  if (task) {
    const name = pythonName(task.name);
    const call = pythonCall(name, task.input);
    const body = task.output === undefined ? `    await ${call}` : `    assert await ${call} == ${python(task.output)}`;
    return `async def test_${pythonName(task.label)}() -> None:\n${body}`;
  }
  const workflow = pythonName(run.workflow);
  const { args, kwargs } = callOf(run.input);
  const given = [...args.map(python), ...Object.entries(kwargs).map(([k, v]) => `${pythonName(k)}=${python(v)}`)];
  return [
    "from perdure import TestEnv",
    "",
    "",
    `async def test_${workflow}() -> None:`,
    "    async with TestEnv() as env:",
    `        await env.run(${[workflow, ...given].join(", ")})`,
  ].join("\n");
}
