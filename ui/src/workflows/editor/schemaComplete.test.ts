import { describe, expect, it } from "vitest";
import { keysAt, namesTask, type Schema, suggestions, tasksAround, valuesAt } from "./schemaComplete";
import { entriesOf, placeAt } from "./yamlPath";

const schema: Schema = {
  type: "object",
  properties: {
    $schema: {},
    flow: { $ref: "#/$defs/name", description: "The flow's name." },
    defaults: { type: ["object", "null"], properties: { retry: { type: "integer" } } },
    tasks: { $ref: "#/$defs/tasks" },
    start: { type: "string" },
    nodes: { type: "object", additionalProperties: { $ref: "#/$defs/task" } },
  },
  $defs: {
    name: { description: "A name.", type: "string" },
    tasks: { type: "object", description: "Tasks by key.", additionalProperties: { $ref: "#/$defs/task" } },
    task: {
      type: ["object", "null"],
      properties: {
        python: { anyOf: [{ const: "etl:load", description: "etl:load" }, { $ref: "#/$defs/name" }] },
        with: { type: "object" },
        on_error: { description: "What a failure means.", enum: ["fail_fast", "collect", null] },
        at_most_once: { type: ["boolean", "null"] },
        depends_on: { anyOf: [{ $ref: "#/$defs/name" }, { type: "array", items: { type: "string" } }] },
        // biome-ignore lint/suspicious/noThenProperty: a word of flows
        choice: { type: "array", items: { properties: { when: {}, then: {}, else: {} } } },
        // biome-ignore lint/suspicious/noThenProperty: as above
        then: { type: "object", properties: { approved: {}, rejected: {} } },
        tasks: { $ref: "#/$defs/tasks" },
      },
      allOf: [
        {
          if: { properties: { python: { const: "etl:load" } }, required: ["python"] },
          // biome-ignore lint/suspicious/noThenProperty: a word of JSON Schema
          then: { properties: { with: { properties: { day: { description: "Which day." } } } } },
        },
      ],
    },
  },
};

const labels = (marked: string) => {
  const text = marked.replace("|", "");
  return suggestions(schema, entriesOf(text), placeAt(text, marked.indexOf("|"))).map((s) => s.label);
};

describe("keys", () => {
  it("are those of the path, through references", () => {
    expect(keysAt(schema, []).map((k) => k.label)).toEqual(["flow", "defaults", "tasks", "start", "nodes"]);
    expect(keysAt(schema, ["tasks", "a"]).map((k) => k.label)).toContain("on_error");
    expect(keysAt(schema, ["tasks", "a", "tasks", "b"]).map((k) => k.label)).toContain("depends_on");
    expect(keysAt(schema, ["flow"])).toEqual([]);
    expect(keysAt(schema, ["nothing", "here"])).toEqual([]);
  });
  it("say what they mean and whether a block follows", () => {
    const found = Object.fromEntries(keysAt(schema, []).map((k) => [k.label, k]));
    expect(found.flow).toMatchObject({ detail: "The flow's name.", opens: false });
    expect(found.tasks).toMatchObject({ detail: "Tasks by key.", opens: true });
  });
  it("leave out what is there", () =>
    expect(labels("flow: a\ntasks:\n  a:\n|")).toEqual(["defaults", "start", "nodes"]));
  it("are those of an item of a list", () =>
    expect(labels("tasks:\n  a:\n    choice: [{when: x, |}]")).toEqual(["then", "else"]));
  it("follow conditions", () => {
    expect(labels("tasks:\n  a:\n    python: etl:load\n    with: {|}")).toEqual(["day"]);
    expect(labels("tasks:\n  a:\n    python: other\n    with: {|}")).toEqual([]);
  });
});

describe("values", () => {
  it("are those of an enum, without null", () =>
    expect(valuesAt(schema, ["tasks", "a", "on_error"]).map((v) => v.label)).toEqual(["fail_fast", "collect"]));
  it("are true and false", () => expect(labels("tasks:\n  a:\n    at_most_once: |")).toEqual(["true", "false"]));
  it("are registered tasks", () => expect(labels("tasks: {a: {python: |}}")).toEqual(["etl:load"]));
});

describe("names of tasks", () => {
  const flow = "tasks:\n  a:\n  b:\n    depends_on: [|]\n  c: {tasks: {x: , y: {depends_on: x}}}\n";
  it("come after depends_on, without the task itself", () => expect(labels(flow)).toEqual(["a", "c"]));
  it("come in a list of lines", () => expect(labels("tasks:\n  a:\n  b:\n    depends_on:\n      - |")).toEqual(["a"]));
  it("come in cases and after approvals", () => {
    expect(labels("tasks:\n  a:\n  b:\n    choice: [{when: x, then: |}]")).toEqual(["a"]);
    expect(labels("tasks:\n  a:\n  b:\n    then: {approved: |}")).toEqual(["a"]);
  });
  it("are those of the same body", () =>
    expect(tasksAround(entriesOf(flow.replace("|", "")), ["tasks", "c", "tasks", "y", "depends_on"])).toEqual(["x"]));
  it("come after start", () => expect(labels("start: |\nnodes:\n  one:\n  two:\n")).toEqual(["one", "two"]));
  it("are known by their path", () =>
    expect(
      [
        ["tasks", "a", "depends_on", 0],
        ["tasks", "a", "then", "approved"],
        ["tasks", "a", "with"],
      ].map(namesTask),
    ).toEqual([true, true, false]));
});
