// @vitest-environment jsdom
import { act, useRef, useState } from "react";
import { createRoot } from "react-dom/client";
import { afterEach, describe, expect, it, vi } from "vitest";
import { ApiError } from "../api/client";
import { QueryBar } from "./QueryBar";

(globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;
let text = "";
const changes: string[] = [];

function Host({ first, error }: { first: string; error: Error | null }) {
  const [query, setQuery] = useState(first);
  const box = useRef<HTMLInputElement>(null);
  text = query;
  const change = (next: string) => {
    changes.push(next);
    setQuery(next);
  };
  return <QueryBar text={query} onChange={change} error={error} attributes={[]} input={box} />;
}

async function draw(first: string, error: Error | null = null): Promise<HTMLElement> {
  const host = document.createElement("div");
  document.body.append(host);
  changes.length = 0;
  await act(async () => createRoot(host).render(<Host first={first} error={error} />));
  return host;
}

async function type(host: HTMLElement, value: string): Promise<void> {
  const box = host.querySelector("input") as HTMLInputElement;
  await act(async () => {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value")?.set?.call(box, value);
    box.dispatchEvent(new Event("input", { bubbles: true }));
  });
}

async function pass(ms: number): Promise<void> {
  await act(async () => vi.advanceTimersByTime(ms));
}

async function enter(host: HTMLElement): Promise<void> {
  await act(async () =>
    host.querySelector("form")?.dispatchEvent(new Event("submit", { bubbles: true, cancelable: true })),
  );
}

afterEach(() => {
  document.body.replaceChildren();
  vi.useRealTimers();
});

describe("the query box", () => {
  it("applies a whole query by itself, and what is half typed on Enter only", async () => {
    vi.useFakeTimers();
    const host = await draw("");
    await type(host, "status = ");
    await pass(5000);
    await type(host, "status = failed");
    await pass(300);
    expect(changes).toEqual([]);
    await pass(1000);
    expect(changes).toEqual(["status = failed"]);
    await type(host, "status = fai");
    await pass(5000);
    await type(host, "declined");
    await pass(5000);
    expect(text).toBe("status = failed");
    await enter(host);
    expect(text).toBe("declined");
  });

  it("shows chips of what is typed, and takes one away", async () => {
    const host = await draw("status = failed and workflow = order");
    const chips = () => [...host.querySelectorAll(".chip-text")].map((chip) => chip.textContent);
    expect(chips()).toEqual(["Status failed", "Workflow order"]);
    await act(async () => host.querySelector<HTMLElement>('[aria-label="Remove filter Status failed"]')?.click());
    expect(text).toBe("workflow = order");
    expect(chips()).toEqual(["Workflow order"]);
    expect(host.querySelector("input")?.value).toBe("workflow = order");
  });

  it("shows the server's words and the place of a mistake, until another text is typed", async () => {
    const detail = "query, character 1: there is no field 'stauts'; did you mean 'status'?\n  stauts = 1\n  ^";
    const problem = { type: "", title: "", status: 422, code: "invalid_input", detail, instance: "", problems: null };
    const host = await draw("stauts = 1", new ApiError(problem));
    const shown = () => host.querySelector("[role=alert]");
    expect(shown()?.textContent).toContain("did you mean 'status'?");
    expect(shown()?.querySelector("pre")?.textContent).toBe("stauts = 1\n^");
    expect(host.querySelector("input")?.getAttribute("aria-describedby")).toBe(shown()?.id);
    await type(host, "status = 1");
    expect(shown()).toBeNull();
  });
});
