import { expect, it } from "vitest";
import { indentAfter } from "./indentation";

it.each([
  ["", 0],
  ["tasks:", 2],
  ["  load:   # comment", 4],
  ["    python: x", 4],
  ["    run: |", 6],
  ["    - a", 4],
  ["    - when: x", 6],
  ["    - with:", 8],
  ["  a: {", 4],
  ["  a: {b: 1}", 2],
  ["  # note:", 2],
])("after %j comes %d", (line, indent) => expect(indentAfter(line)).toBe(indent));
