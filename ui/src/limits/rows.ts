/** Limits as rows: what is limited, how much of it is held and by which runs, who waits. */
import type { Schemas } from "../api/client";

export type Holder = Schemas["HolderOfLimit"];

/** What is held of a limit, whether an operator set it or code declared it. */
export type LimitUse = Schemas["LimitInUse"];

/** A rule of an operator, with who holds it. */
export type LimitItem = Partial<Omit<Schemas["Limits"], "scope" | "kind">> & {
  scope: string;
  name: string | null;
  held?: number | null;
  waiting?: number | null;
  holders?: Holder[] | null;
};

export interface LimitRow {
  id: string;
  scope: string;
  name: string;
  kind: string;
  limit: number | null;
  held: number | null;
  waiting: number | null;
  holders: Holder[];
  /** The rule behind it; null for a limit of code. */
  item: LimitItem | null;
}

export function nameOf(item: { scope: string; name: string | null }): string {
  if (item.name === null) return item.scope === "namespace" ? "the namespace" : item.scope;
  return item.scope === "key" ? item.name.replace(/^key\//, "") : item.name;
}

/** "per second", "per 1 m", "per 90 s" */
export function rateWords(perS: number): string {
  if (perS === 1) return "per second";
  if (perS === 60) return "per minute";
  if (perS === 3600) return "per hour";
  if (perS === 86_400) return "per day";
  return `per ${Number.isInteger(perS) ? perS : perS.toFixed(2)} s`;
}

/** Rules first, then what code declared and something holds or waits for. */
export function rowsOf(items: LimitItem[], uses: LimitUse[] = []): LimitRow[] {
  const rules = items.flatMap(partsOf);
  const covered = new Set(rules.map((row) => `${row.scope}/${row.item?.name ?? ""}`));
  return [...rules, ...uses.filter((use) => !covered.has(`${use.scope}/${use.name ?? ""}`)).map(rowOfUse)];
}

function rowOfUse(use: LimitUse): LimitRow {
  return {
    ...use,
    id: `use/${use.key}`,
    name: nameOf(use),
    kind: use.kind === "rate" ? "rate" : use.scope === "key" ? "slots of a key" : "slots",
    holders: [...use.holders].sort((a, b) => b.held - a.held),
    item: null,
  };
}

function partsOf(item: LimitItem): LimitRow[] {
  const row = (kind: string, limit: number | null, shares: boolean): LimitRow => ({
    id: `${item.scope}/${item.name ?? ""}/${kind}`,
    scope: item.scope,
    name: nameOf(item),
    kind,
    limit,
    held: shares ? (item.held ?? null) : null,
    waiting: shares ? (item.waiting ?? null) : null,
    holders: shares ? [...(item.holders ?? [])].sort((a, b) => b.held - a.held) : [],
    item,
  });
  const rows: LimitRow[] = [];
  const isSlots = item.concurrency !== null && item.concurrency !== undefined;
  if (isSlots) rows.push(row("slots", item.concurrency as number, true));
  // The held units of a rule with both are those of its slots.
  if (item.rate) rows.push(row(rateWords(item.rate.per_s), item.rate.count, !isSlots));
  return rows;
}

export interface Share {
  holder: Holder | null;
  size: number;
  kind: "a" | "b" | "other" | "free";
}

/** The bar of a limit: each holder its part, the rest free. */
export function sharesOf(row: LimitRow): Share[] {
  const shares: Share[] = row.holders.map((holder, n) => ({
    holder,
    size: holder.held,
    kind: n % 2 === 0 ? "a" : "b",
  }));
  const known = row.holders.reduce((total, h) => total + h.held, 0);
  const held = row.held ?? known;
  if (held > known) shares.push({ holder: null, size: held - known, kind: "other" });
  if (row.limit !== null && row.limit > held) shares.push({ holder: null, size: row.limit - held, kind: "free" });
  return shares;
}

export function isFull(row: LimitRow): boolean {
  return row.limit !== null && row.held !== null && row.held >= row.limit;
}

export function pausedOf(items: LimitItem[]): LimitItem[] {
  return items.filter((item) => item.paused_at);
}
