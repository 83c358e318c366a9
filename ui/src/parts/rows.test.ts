import { expect, it } from "vitest";
import { taskPage } from "./rows";

it("leads to one task of a run", () => {
  expect(taskPage({ run_id: "r", seq: 622, name: "process", node: "process[622]" })).toBe("/runs/r?task=process%23622");
  expect(taskPage({ run_id: "r", seq: 0, name: "dun", node: null })).toBe("/runs/r?task=dun%230");
});
