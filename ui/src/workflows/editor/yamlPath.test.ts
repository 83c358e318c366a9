import { describe, expect, it } from "vitest";
import { entriesOf, nodeAt, placeAt, valuesUnder } from "./yamlPath";

/** The place of the mark | in a text. */
const at = (text: string) => placeAt(text.replace("|", ""), text.indexOf("|"));
const brief = (text: string) => {
  const { path, at: kind, typed } = at(text);
  return [path.join("."), kind, typed];
};

describe("the place of the cursor in blocks", () => {
  it.each([
    ["|", "", "key", ""],
    ["fl|", "", "key", "fl"],
    ["flow: a\n|", "", "key", ""],
    ["tasks:\n  |", "tasks", "key", ""],
    ["tasks:\n  a:\n    ti|", "tasks.a", "key", "ti"],
    ["tasks:\n  a:\n    python: x\n  |", "tasks", "key", ""],
    ["tasks:\n  a:\n    python: x\n    |", "tasks.a", "key", ""],
    ["tasks:\n  a:\n    python: x\n|", "", "key", ""],
    ["tasks:\n  a:\n    on_error: co|", "tasks.a.on_error", "value", "co"],
    ["tasks:\n  a:\n    on_error: |", "tasks.a.on_error", "value", ""],
    ["tasks:\n  a:\n    on_error:|", "tasks.a.on_error", "none", ""],
    ["a: x # not|", "a", "none", "x # not"],
    ["# fl|", "", "none", ""],
    ["a: |-x", "a", "value", ""],
  ])("%j", (text, path, kind, typed) => expect(brief(text)).toEqual([path, kind, typed]));

  it("follows lists, indented or not", () => {
    expect(brief("t:\n  d:\n    - a\n    - b|")).toEqual(["t.d.1", "item", "b"]);
    expect(brief("t:\n  d:\n  - a\n  - |")).toEqual(["t.d.1", "item", ""]);
    expect(brief("t:\n  c:\n    - when: x\n      th|")).toEqual(["t.c.0", "key", "th"]);
    expect(brief("t:\n  c:\n  - when: x\n  e|")).toEqual(["t", "key", "e"]);
    expect(brief("t:\n  c:\n    - when: x\n      then: pu|")).toEqual(["t.c.0.then", "value", "pu"]);
    expect(brief("t:\n  - - a\n    - b|")).toEqual(["t.0.1", "item", "b"]);
  });

  it("knows nothing in a text of several lines", () => {
    expect(brief("run: >-\n  echo a: b|\nx: 1")[1]).toBe("none");
    const literal = "run: |\n  ech\nx: ";
    expect(placeAt(literal, literal.indexOf("ech") + 3).at).toBe("none");
    expect(placeAt(literal, literal.length)).toMatchObject({ path: ["x"], at: "value" });
  });
});

describe("the place of the cursor in brackets", () => {
  it.each([
    ["a: {|}", "a", "key", ""],
    ["a: {ty|}", "a", "key", "ty"],
    ["a: {type: s|}", "a.type", "value", "s"],
    ["a: {type: string, fo|}", "a", "key", "fo"],
    ["a: [x, y|]", "a.1", "value", "y"],
    ["a: [x, {when: 1, then: p|}]", "a.1.then", "value", "p"],
    ["a: [{when: 'a, b: c', el|", "a.0", "key", "el"],
    ["a: {b: {c: 1}, d|", "a", "key", "d"],
    ["a: {b:\n  {c: |", "a.b.c", "value", ""],
    ["a: [x,\n  |]", "a.1", "value", ""],
    ['a: {b: "x|', "a.b", "none", '"x'],
    ["a: [x] |", "", "none", ""],
    ["- {a: 1, |", "0", "key", ""],
  ])("%j", (text, path, kind, typed) => expect(brief(text)).toEqual([path, kind, typed]));
});

describe("the keys of a document", () => {
  const text = `flow: "etl"
input: {day: {type: string}}
tasks:
  discover:
    python: 'etl:discover' # first
  load: {depends_on: [discover], on_error: collect}
  note:
    run: |
      not: a key
    choice:
      - {when: a > 1, then: load}
      - else: discover
output: x
`;
  it("have paths", () =>
    expect(entriesOf(text).map((e) => e.path.join("."))).toEqual([
      "flow",
      "input",
      "input.day",
      "input.day.type",
      "tasks",
      "tasks.discover",
      "tasks.discover.python",
      "tasks.load",
      "tasks.load.depends_on",
      "tasks.load.on_error",
      "tasks.note",
      "tasks.note.run",
      "tasks.note.choice",
      "tasks.note.choice.0.when",
      "tasks.note.choice.0.then",
      "tasks.note.choice.1.else",
      "output",
    ]));
  it("have places", () => {
    for (const entry of entriesOf(text)) expect(text.slice(entry.from, entry.to)).toBe(entry.path.at(-1));
  });
  it("have values", () => {
    expect(valuesUnder(entriesOf(text), ["tasks", "discover"])).toEqual(new Map([["python", "etl:discover"]]));
    expect(valuesUnder(entriesOf(text), ["tasks", "load"]).get("on_error")).toBe("collect");
    expect([...valuesUnder(entriesOf(text), ["tasks"]).keys()]).toEqual(["discover", "load", "note"]);
  });
});

it("knows the node of a path", () => {
  expect(nodeAt(["tasks", "load", "with", "file"])).toBe("load");
  expect(nodeAt(["tasks", "group", "tasks", "load"])).toBe("group.load");
  expect(nodeAt(["graph", "nodes", "nodes", "timeout"])).toBe("nodes");
  expect(nodeAt(["tasks"])).toBeNull();
  expect(nodeAt(["input", "day"])).toBeNull();
});
