import type { ElkNode } from "elkjs/lib/elk-api";
import { describe, expect, it } from "vitest";
import { fromFlow } from "./fromFlow";
import { fromElk, toElk } from "./layout";
import { curve, doneOf, type FlowNode, layoutKey, neighbour, ring, roomOf, sizeOf } from "./model";
import { fitView, reveal, zoomed } from "./view";

const node = (id: string, more: Partial<FlowNode> = {}): FlowNode => ({ id, kind: "task", ...more });

describe("the layout's key", () => {
  it("is the same whatever happens in a live run", () => {
    const before = [node("a", { live: true }), node("b", { kind: "fanout", live: true })];
    const after = [
      node("a", { live: true, status: "success", sub: "2 attempts, 1 m 44 s" }),
      node("b", { kind: "fanout", live: true, status: "running", tasks: 1272, counts: { success: 3 } }),
    ];
    expect(layoutKey(after, [{ from: "a", to: "b", done: true }])).toBe(layoutKey(before, [{ from: "a", to: "b" }]));
  });
  it("differs for another name, kind, edge or label", () => {
    const key = layoutKey([node("a"), node("b")], [{ from: "a", to: "b" }]);
    expect(layoutKey([node("a"), node("c")], [{ from: "a", to: "b" }])).not.toBe(key);
    expect(layoutKey([node("a"), node("b", { kind: "timer" })], [{ from: "a", to: "b" }])).not.toBe(key);
    expect(layoutKey([node("a"), node("b")], [])).not.toBe(key);
    expect(layoutKey([node("a"), node("b")], [{ from: "a", to: "b", label: "else" }])).not.toBe(key);
  });
});

describe("sizes", () => {
  it("grow with names, up to a cut", () => {
    expect(sizeOf(node("x")).w).toBe(140);
    expect(sizeOf(node("a-name-of-thirty-characters-12")).w).toBeGreaterThan(200);
    expect(sizeOf(node("y".repeat(300)))).toEqual(sizeOf(node("y".repeat(30))));
  });
  it("keep a diamond in the middle of the room for its name", () => {
    const choice = node("route", { kind: "choice" });
    expect(roomOf(choice).w).toBeGreaterThan(sizeOf(choice).w + 70);
  });
});

describe("ELK", () => {
  const nodes = [node("a"), node("b", { parent: "g" }), node("g", { kind: "group" })];
  it("gets bodies as nested nodes and no edge to what is not there", () => {
    const given = toElk(nodes, [
      { from: "a", to: "b" },
      { from: "a", to: "gone" },
    ]);
    expect(given.children?.map((c) => c.id)).toEqual(["a", "g"]);
    expect(given.children?.[1]?.children?.map((c) => c.id)).toEqual(["b"]);
    expect(given.edges?.map((e) => e.id)).toEqual(["edge:0"]);
  });
  it("gives boxes, and routes that touch the middle of sides", () => {
    const answer: ElkNode = {
      id: "graph:root",
      width: 300,
      height: 200,
      children: [
        { id: "a", x: 10, y: 10, width: 140, height: 36 },
        { id: "b", x: 10, y: 90, width: 140, height: 36 },
      ],
      edges: [
        {
          id: "edge:0",
          sources: ["a"],
          targets: ["b"],
          sections: [{ id: "s", startPoint: { x: 20, y: 46 }, endPoint: { x: 30, y: 90 } }],
        },
      ],
    };
    const found = fromElk(answer, [node("a"), node("b")], [{ from: "a", to: "b" }]);
    expect(found.boxes.get("b")).toEqual({ x: 10, y: 90, w: 140, h: 36 });
    expect(found.routes.get(0)?.points).toEqual([
      { x: 80, y: 46 },
      { x: 80, y: 90 },
    ]);
  });
});

describe("drawing", () => {
  it("curves between ranks and is straight in a column", () => {
    expect(
      curve([
        { x: 10, y: 0 },
        { x: 10, y: 40 },
      ]),
    ).toBe("M10 0 V40");
    expect(
      curve([
        { x: 0, y: 0 },
        { x: 50, y: 40 },
      ]),
    ).toBe("M0 0 C0 20 50 20 50 40");
  });
  it("shows even one failure among many in the ring, and never more than all", () => {
    const parts = ring({ success: 99_999, failed: 1 }, 100_000);
    expect(parts.map((p) => p.status)).toEqual(["success", "failed"]);
    expect(parts.reduce((sum, p) => sum + p.length, 0)).toBeLessThanOrEqual(1);
    expect(doneOf({ success: 3, failed: 1, running: 9 })).toBe(4);
  });
  it("walks to the nearest node in a direction", () => {
    const boxes = new Map([
      ["top", { x: 100, y: 0, w: 50, h: 20 }],
      ["left", { x: 0, y: 60, w: 50, h: 20 }],
      ["right", { x: 200, y: 60, w: 50, h: 20 }],
      ["below", { x: 100, y: 120, w: 50, h: 20 }],
    ]);
    expect(neighbour(boxes, "left", "ArrowRight")).toBe("right");
    expect(neighbour(boxes, "top", "ArrowDown")).toBe("below");
    expect(neighbour(boxes, "top", "ArrowUp")).toBeNull();
  });
});

describe("the view", () => {
  it("fits without enlarging, and stays readable", () => {
    expect(fitView({ w: 400, h: 100 }, { w: 800, h: 600 }).k).toBe(1);
    expect(fitView({ w: 8000, h: 100 }, { w: 800, h: 600 }).k).toBe(0.8);
    expect(fitView({ w: 1600, h: 100 }, { w: 800, h: 600 }, true).k).toBe(0.5);
  });
  it("keeps the point under the pointer", () => {
    const view = zoomed({ x: 10, y: 20, k: 1 }, 2, 110, 120);
    expect(view).toEqual({ x: -90, y: -80, k: 2 });
  });
  it("moves only as far as needed to show a box", () => {
    const canvas = { w: 500, h: 500 };
    expect(reveal({ x: 0, y: 0, k: 1 }, { x: 100, y: 100, w: 50, h: 20 }, canvas)).toEqual({ x: 0, y: 0, k: 1 });
    expect(reveal({ x: 0, y: 0, k: 1 }, { x: 100, y: 700, w: 50, h: 20 }, canvas)).toEqual({ x: 0, y: -244, k: 1 });
  });
});

describe("a flow from the API", () => {
  it("unfolds bodies and marks ways that may not be taken", () => {
    const given = {
      start: null,
      nodes: [
        { key: "route", path: "route", word: "choice", detail: "", badges: [] },
        { key: "review", path: "review", word: "approval", detail: "ops", badges: ["timeout 2d"] },
        { key: "load", path: "load", word: "task", detail: "", badges: ["for each input.parts"] },
        { key: "five", path: "five", word: "task", detail: "", badges: ["× 5", "2 at a time"] },
        {
          key: "sub",
          path: "sub",
          word: "tasks",
          detail: "",
          badges: [],
          inner: {
            start: null,
            links: [],
            nodes: [{ key: "x", path: "sub.x", word: "sleep", detail: "5m", badges: [] }],
          },
        },
      ],
      links: [
        { source: "route", target: "review", label: "any failed" },
        { source: "load", target: "sub", label: "" },
      ],
    };
    const { nodes, edges } = fromFlow(given);
    expect(nodes.map((n) => [n.id, n.kind, n.parent])).toEqual([
      ["route", "choice", undefined],
      ["review", "approval", undefined],
      ["load", "fanout", undefined],
      ["five", "fanout", undefined],
      ["sub", "group", undefined],
      ["sub.x", "timer", "sub"],
    ]);
    expect(nodes[1]?.sub).toBe("approval ops, timeout 2d");
    expect(edges).toEqual([
      { from: "route", to: "review", label: "any failed", maybe: true },
      { from: "load", to: "sub", label: undefined, maybe: false },
    ]);
  });
});
