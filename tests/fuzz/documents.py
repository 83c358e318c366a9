"""Mutates good documents and checks what comes out: a flow, or a FlowError, in bounded time and memory, and never anything else.

    python tests/fuzz/documents.py --count 100000 [--seed 1] [--file case.yaml]

A failing document is kept as a temporary file, and its seed is printed: the same seed makes the same document.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.core.limits import DOCUMENT_BYTES_MAX
from perdure.flows.compile import compile_flow, compile_value, version_of
from perdure.flows.problems import PROBLEMS_MAX, FlowError
from perdure.flows.source import read
from tests.fakes.slowness import slowness

SECONDS_MAX = 5.0
"""Of processor time for one document; the largest that fit take under one."""
MEMORY_BYTES_MAX = 1024 * 1024 * 1024
"""Resident memory of the whole process."""

DAG = b"""\
flow: nightly-etl
description: what it says
input: {day: {type: string, format: date}, n: {type: integer, default: 3}, tags: {type: array, items: {type: string}, required: false}}
triggers: [{cron: "0 8 * * *", tz: Europe/Paris, overlap: skip}]
defaults: {retry: 3, timeout: 5m, queue: etl, heartbeat: 10s}
state: {seen: [], total: 0}
tasks:
  discover: {python: "etl:discover", with: {day: "${ input.day }", twice: "${ input.n * 2 }"}}
  process:
    depends_on: [discover]
    foreach: discover.files          # also: parallel: 4 | discover.count
    concurrency: 4
    on_error: collect
    http: {service: transform, body: "${ item }", headers: {x-index: "${ index } of ${ count }"}}
    retry: {max_attempts: 5, delay: 1s, factor: 2, max_delay: 1m, jitter: true, on: [IOError], never: [ValueError]}
    set: {report.total: "${ size(output) }"}
  route: {depends_on: [process], choice: [{when: "size(process) > 100", then: review}, {else: publish}]}
  review: {approval: {assignees: [ops], timeout: 2d, title: 'It''s "done"'}, then: {approved: publish, rejected: cleanup}}
  publish: {flow: publish-report, with: {files: "${ process }"}}
  cleanup: {run: [./rm.sh, "${ input.day }"], run_if: any_failed}
  shell:
    run: {command: "ls | wc -l", env: {DAY: "${ input.day }"}, cwd: /tmp}
    on_failure: run
    when: {and: [{gt: ["$input.n", 1]}, {exists: "$input.day"}]}
  inner:
    depends_on: shell
    tasks: {one: {value: 1}, two: {depends_on: one, value: "${ one + 1 }"}}
    output: "${ two }"
  fan: {services: [a, b], with: {x: 1}, concurrency: 1}
  nap: {sleep: 1h30m}
  hold: {wait: {signal: go, timeout: 1d}, then: {timeout: late}}
  late:
    value: |
      line one ${ input.day }
      line two
output: {published: "${ publish }", all: "${ tasks }"}
"""
GRAPH = b"""\
flow: loop
state: {n: 0}
max_steps: 500
graph:
  start: count
  nodes:
    count: {value: "${ shared.n + 1 }", set: {n: "${ output }"}}
    enough: {choice: [{when: shared.n >= input.limit, then: done}, {else: again}]}
    each: {service: s, foreach: input.items, prep: {input_key: $params.list}, post: {output_key: out, action_key: action}}
    done: {subflow: {start: x, nodes: {x: {kind: timer, params: {delay_ms: 5}}}, edges: []}}
  edges:
    - {from: count, to: enough}
    - {from: enough, action: again, to: count}
    - &e {from: done, action: error, to: each}
"""
DATA = b"""\
{"start": "A", "nodes": {
  "A": {"kind": "executor", "service": "transform", "params": {"op": "upper"}, "prep": {"input_map": {"x": "$params.text"}},
        "post": {"output_key": "a.up", "action_key": "action"}, "max_retries": 3, "wait_ms": 100, "max_attempts": 2},
  "B": {"kind": "choice", "prep": {"input_key": "a.up"}, "default_action": "goD", "post": {"action_key": "route"},
        "choice_cases": [{"action": "goC", "expr": {"or": [{"eq": ["$input.x", 1]}, {"contains": ["$shared.l", "\\ud83d\\ude00"]}]}}]},
  "C": {"kind": "foreach", "service": "sum", "parallel_mode": "concurrent", "max_parallel": 3, "failure_strategy": "collect_errors"},
  "D": {"kind": "parallel", "parallel_services": ["a", "b"]},
  "E": {"kind": "wait_event", "params": {"signal_key": "go", "timeout_ms": 500}},
  "F": {"kind": "approval", "params": {"approval_key": "ok"}}},
 "edges": [{"from": "A", "to": "B"}, {"from": "B", "action": "goC", "to": "C"}, {"from": "B", "action": "goD", "to": "D"},
           {"from": "C", "to": "E"}, {"from": "D", "to": "E"}, {"from": "E", "to": "F"}, {"from": "F", "action": "approved", "to": "A"}]}
"""
SEEDS = (DAG, GRAPH, DATA)

TOKENS = [
    b":",
    b": ",
    b"- ",
    b"? ",
    b"| ",
    b">",
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!str ",
    b"!x ",
    b"---\n",
    b"...\n",
    b"%YAML 1.1\n",
    b"#",
    b"'",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"${",
    b"${ ",
    b" }",
    b"$${",
    b"${ a.b }",
    b"${ item }",
    b"${ tasks }",
    b"${ ((((((((",
    b"null",
    b"~",
    b"true",
    b".inf",
    b".nan",
    b"1e999",
    b"9" * 40,
    b"0x1F",
    b"0o7",
    b"-0",
    b"1_0",
    b"\t",
    b"\n",
    b"\r",
    b"\r\n",
    b"\x00",
    b"\x07",
    b"\x7f",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\\ud800",
    b"\\u0000",
    b"\\x00",
    b"tasks:",
    b"graph:",
    b"start:",
    b"nodes:",
    b"edges:",
    b"depends_on:",
    b"choice:",
    b"then:",
    b"foreach:",
    b"kind:",
    b"subflow:",
    b"retry:",
    b"when:",
    b"set:",
    b"with:",
]
WORD = re.compile(rb"[A-Za-z_]+|\d+|\s+|.", re.S)


# -- mutations ---------------------------------------------------------------------------------------------------------


def flip(r: random.Random, text: bytes) -> bytes:
    out = bytearray(text)
    for _ in range(r.randint(1, 6)):
        if out:
            out[r.randrange(len(out))] = r.randrange(256)
    return bytes(out)


def insert(r: random.Random, text: bytes) -> bytes:
    for _ in range(r.randint(1, 4)):
        at = r.randint(0, len(text))
        text = text[:at] + r.choice(TOKENS) + text[at:]
    return text


def cut(r: random.Random, text: bytes) -> bytes:
    a, b = sorted((r.randint(0, len(text)), r.randint(0, len(text))))
    return text[:a] + text[b:] if r.random() < 0.5 else text[a:b]


def lines(r: random.Random, text: bytes) -> bytes:
    rows = text.splitlines(keepends=True) or [b""]
    i, j = r.randrange(len(rows)), r.randrange(len(rows))
    match r.randrange(5):
        case 0:
            rows[i], rows[j] = rows[j], rows[i]
        case 1:
            rows.insert(j, rows[i])
        case 2:
            del rows[i]
        case 3:
            rows[i] = b" " * r.randrange(8) + rows[i].lstrip(b" ")
        case _:
            rows[i:i] = rows[min(i, j) : max(i, j)] * r.randint(1, 20)
    return b"".join(rows)


def words(r: random.Random, text: bytes) -> bytes:
    parts = WORD.findall(text) or [b""]
    for _ in range(r.randint(1, 4)):
        i, j = r.randrange(len(parts)), r.randrange(len(parts))
        parts[i] = r.choice([parts[j], b"", parts[i] * 2, parts[i][:-1], r.choice(TOKENS)])
    return b"".join(parts)


def splice(r: random.Random, text: bytes) -> bytes:
    other = r.choice(SEEDS)
    return text[: r.randint(0, len(text))] + other[r.randint(0, len(other)) :]


def nest(r: random.Random, text: bytes) -> bytes:
    depth = r.choice([3, 30, 62, 63, 64, 65, 200, 5_000])
    opening, closing = r.choice(
        [(b"[", b"]"), (b"{a: ", b"}"), (b'{"a":', b"}"), (b"- ", b""), (b"? ", b""), (b"${ (", b") }"), (b"!x ", b"")]
    )
    closing = closing * depth if r.random() < 0.8 else b""
    at = r.choice([m.end() for m in re.finditer(rb": ", text)] or [0])
    return text[:at] + opening * depth + b"1" + closing + text[at:]


def bomb(r: random.Random, text: bytes) -> bytes:
    wide, deep = r.randint(1, 12), r.randint(1, 12)
    rows = [b"a0: &a0 [" + b"x, " * wide + b"]\n"]
    rows += [b"a%d: &a%d [" % (i, i) + b"*a%d, " % (i - 1) * wide + b"]\n" for i in range(1, deep)]
    return b"".join(rows) + (text if r.random() < 0.5 else b"tasks: {t: {value: *a%d}}\n" % (deep - 1))


def swell(r: random.Random, text: bytes) -> bytes:
    n = r.choice([100, 1_200, 20_000])
    match r.randrange(6):
        case 0:
            return b"tasks:\n" + b"".join(
                b"  t%d: {depends_on: [%s]}\n" % (i, b", ".join(b"t%d" % r.randrange(n) for _ in range(3)))
                for i in range(n)
            )
        case 1:
            return b"tasks: {a: {value: [" + b"1, " * n + b"]}}"
        case 2:
            return b"tasks: {a: {value: '" + b"${ x }" * n + b"'}}"
        case 3:
            return b"tasks: {" + b"k" * n + b": {" + b"v" * n + b": 1}}"
        case 4:
            return b"tasks:\n" + b"".join(
                b"  t%d: {%s: 1}\n" % (i, r.choice(TOKENS[-15:])[:-1] + b"x") for i in range(n)
            )
        case _:
            return text * r.randint(1, 60)


SCALARS: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    3,
    1.5,
    10**6,
    "",
    " ",
    "a",
    "5m",
    "${ input.x }",
    "${ nope }",
    "${ 1 +",
    "a.b",
    "process",
    "default",
    "in",
    [],
    {},
    [[]],
    {"a": {}},
    "x" * 300,
]


def structure(r: random.Random, text: bytes) -> bytes:
    """Edits of the tree: subtrees swapped, copied, dropped, replaced by other kinds of values, keys renamed."""
    try:
        value = copy.deepcopy(read(text).value)
    except FlowError:
        return text
    for _ in range(r.randint(1, 4)):
        holders = [v for v in every(value) if isinstance(v, dict | list) and v]
        if not holders:
            break
        one, two = r.choice(holders), r.choice(holders)
        at, to = pick(r, one), pick(r, two)
        match r.randrange(5):
            case 0:
                one[at] = copy.deepcopy(two[to])
            case 1:
                one[at] = copy.deepcopy(r.choice(SCALARS))
            case 2:
                del one[at]
            case 3 if isinstance(one, dict) and isinstance(two, dict):
                one[to if r.random() < 0.7 else at + "x"] = one.pop(at)
            case _:
                names = [v for v in every(value) if isinstance(v, str)]
                one[at] = r.choice(names) if names else 1
    return json.dumps(value).encode()


def every(value: Any) -> list[Any]:
    out, todo = [], [value]
    while todo and len(out) < 5_000:
        here = todo.pop()
        out.append(here)
        todo.extend(here.values() if isinstance(here, dict) else here if isinstance(here, list) else ())
    return out


def pick(r: random.Random, holder: Any) -> Any:
    return r.choice(list(holder)) if isinstance(holder, dict) else r.randrange(len(holder))


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    flip,
    insert,
    cut,
    lines,
    words,
    splice,
    nest,
    bomb,
    swell,
    structure,
)
WEIGHTS = (15, 15, 6, 15, 20, 4, 4, 2, 1, 40)


def document(seed: int) -> bytes:
    r = random.Random(seed)
    text = r.choice(SEEDS)
    for _ in range(r.choice([1, 1, 1, 2, 3, 5])):
        text = r.choices(MUTATIONS, WEIGHTS)[0](r, text)[: DOCUMENT_BYTES_MAX + 10]
    return text


# -- checks ------------------------------------------------------------------------------------------------------------


def check(text: bytes) -> str:
    """What became of a document: "flow", "refused"; AssertionError or whatever it was otherwise."""
    given: str | bytes = text
    if len(text) % 5 == 0:
        given = text.decode("utf-8", "surrogateescape")
    try:
        read_one = read(given, name="fuzz.yaml")
        compiled = compile_flow(read_one, name="fuzz")
    except FlowError as e:
        assert 1 <= len(e.problems) <= PROBLEMS_MAX
        assert all(p.line >= 1 and p.column >= 1 and p.message and len(p.text) <= 160 for p in e.problems)
        assert len(str(e)) < 100_000
        return "refused"
    again = compile_value(read_one.value, name="fuzz")
    assert len(again.flow.body.nodes) == len(compiled.flow.body.nodes)
    assert version_of(read_one.value).startswith("flow-")
    for warning in compiled.warnings:
        assert warning.line >= 1 and str(warning)
    return "flow"


def run(count: int, seed: int) -> dict[str, float]:
    """Check `count` documents; counts, and the longest time one of them took."""
    out: dict[str, float] = {"flow": 0, "refused": 0, "slowest_s": 0.0, "slowest_seed": 0}
    for i in range(seed, seed + count):
        text = document(i)
        started = time.process_time()
        try:
            out[check(text)] += 1
        except BaseException:
            kept = Path(tempfile.gettempdir(), f"fuzz-{i}.yaml")
            kept.write_bytes(text)
            print(f"seed {i} failed; the document is in {kept}", file=sys.stderr)
            raise
        took = time.process_time() - started
        if took > out["slowest_s"]:
            out["slowest_s"], out["slowest_seed"] = took, i
        assert took < SECONDS_MAX or took < SECONDS_MAX * slowness(), f"seed {i} took {took:.1f} s"
    return out


def resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", type=Path, help="check this document only")
    args = parser.parse_args()
    if args.file:
        print(check(args.file.read_bytes()))
        return
    started = time.perf_counter()
    found = run(args.count, args.seed)
    memory = resident_bytes()
    print(
        f"{args.count} documents in {time.perf_counter() - started:.0f} s: {found['flow']:.0f} flows, {found['refused']:.0f} refused; "
        f"slowest {found['slowest_s']:.2f} s (seed {found['slowest_seed']:.0f}); {memory / 2**20:.0f} MiB at most"
    )
    assert memory < MEMORY_BYTES_MAX, "too much memory"


if __name__ == "__main__":
    main()
