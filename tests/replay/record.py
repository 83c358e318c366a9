"""Record golden histories that are missing: `python -m tests.replay.record`. Existing files are not changed.

The history of a flow is stored together with its document, which decides it. `binary.txt` gets a line for each event type
whose present shape it does not show yet.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from perdure import Handle, Promise, Signal, TestEnv, flow, task
from perdure.core import events as ev
from perdure.core import ids
from perdure.flows.draft import draft_text
from perdure.testing.replayer import export_history
from perdure.wire.codec import decode_events, encode_events, history_from_json
from tests.fakes.waiting import forever, until
from tests.replay import workflows as w
from tests.store.blocking import until_blocked

HERE = Path(__file__).parent / "histories"
FLOWS = Path(__file__).parent / "flow_histories"
BINARY = Path(__file__).parent / "binary.txt"
ROOT = Path(__file__).parents[2]


async def save(name: str, handle: Handle[object]) -> None:
    path = HERE / f"{name}.json"
    if not path.exists():
        path.write_text(await exported(handle))
        print("recorded", path.name)


async def save_flow(name: str, document: str, handle: Handle[object]) -> None:
    path = FLOWS / f"{name}.json"
    if not path.exists():
        kept = {
            "document": msgspec.json.decode(draft_text(document).document),
            "history": msgspec.json.decode(await exported(handle)),
        }
        path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2))
        print("recorded", path.name)


async def exported(handle: Handle[object]) -> str:
    text = (await export_history(handle)).decode()
    for place in (str(ROOT) + "/", sys.prefix + "/", sys.base_prefix + "/"):
        text = text.replace(place, "")  # tracebacks name files by paths that differ between machines
    return text


async def until_ended(env: TestEnv, handle: Handle[object]) -> None:
    for _ in range(50):
        if await handle.status() not in ("pending", "running"):
            return
        await env.advance("1h")


async def main() -> None:
    async with TestEnv() as env:
        for workflow, argument in (
            (w.chained, w.Order("apple", 3)),
            (w.fanned, 8),
            (w.timed, "2h"),
            (w.leaf, 21),
            (w.parent, 5),
            (w.failing, 1),
            (w.labelled, 2),
        ):
            handle = await env.start(workflow, argument)  # type: ignore[arg-type]
            await until_ended(env, handle)
            await save(f"{workflow.name}-1", handle)
            if workflow is w.chained:
                forked = await handle.fork(3, {"0": 100.0})
                await until_ended(env, forked)
                await save("chained-forked-1", forked)
        handle = await env.start(w.messaged, 1)
        await w.note.send(handle.id, "one")
        await w.note.send(handle.id, "two")
        await env.advance("1m")
        await w.approve.resolve(handle.id, True)
        await until_ended(env, handle)
        await save("messaged-1", handle)
        await record_updates(env)
        await record_late(env)
        first, second = await env.start(w.delayed), await env.start(w.delayed)
        await until_ended(env, first)
        await until_ended(env, second)
        await save("delayed-1", second)
        handle = await env.start(w.cancelled, 1)
        await handle.cancel("enough")
        await until_ended(env, handle)
        await save("cancelled-1", handle)
        handle = await env.start(w.messaged, 3)
        await env.advance("1m")
        await handle.terminate("enough")
        await save("terminated-1", handle)
        handle = await env.start(w.renewed, 2)
        await until_ended(env, handle)
        await save("renewed-1", handle)
        handle = await env.start(w.witness, 1)
        sleeper = await env.client.start(w.sleeper.options(key="sleeper-of-witness-1", on_conflict="attach"), 1)
        await sleeper.cancel("by another caller")
        await until_ended(env, handle)
        await save("witness-1", handle)
        handle = await env.start(w.persistent, 1)
        for repaired in ("part", "patience", "child"):
            await until_ended(env, handle)
            w.repaired.add(repaired)
            await handle.retry()
        await until_ended(env, handle)
        await save("persistent-1", handle)
        waiting = await env.start(w.messaged, 2)
        await w.note.send(waiting.id, "only one")
        await env.advance("1m")
        await save("messaged-waiting-1", waiting)
        await record_flows(env)
    record_binary()


async def record_updates(env: TestEnv) -> None:
    handle = await env.start(w.updated, 20)
    early = asyncio.create_task(w.reprice.ask(handle.id, w.Order("early", 2), key="early"))
    await until(lambda: count(handle, "UpdateReceived"))
    await w.note.send(handle.id, "go")
    asked = (
        early,
        w.reprice.ask(handle.id, w.Order("much", 30), key="much"),
        w.reprice.ask(handle.id, w.Order("zero", 10), key="zero"),
        w.label.ask(handle.id, "bad", key="bad"),
    )
    await asyncio.gather(*asked, return_exceptions=True)
    await save("updated-waiting-1", handle)
    await w.label.ask(handle.id, "last", key="last")
    await until_ended(env, handle)
    await save("updated-1", handle)


async def record_late(env: TestEnv) -> None:
    """A message that is acknowledged after the code has ended: who holds the run's row keeps the end from being written."""
    handle = await env.start(w.gathered, "1m")
    await w.note.send(handle.id, "one")
    async with env.client.store.pool.take() as held, held.transaction():
        await held.execute("select from perdure.run_queue where run_id = $1 for key share", ids.parse(handle.id))
        passing = asyncio.create_task(env.advance("2m"))
        await until_blocked(held)
        await w.note.send(handle.id, "late")
    await passing
    await until_ended(env, handle)
    await save("gathered-1", handle)


down: set[str] = set()
"""Names that `golden_do` fails for at present."""


@task(name="golden_do", retry=1)
async def do(name: str, n: Any = None) -> Any:
    if name in down:
        raise ConnectionError(f"{name} is down")
    if name == "slow":
        await forever()
    return {"name": name, "n": n}


@task(name="golden_double", retry=1)
async def double(n: int) -> int:
    return 2 * n


@task(name="golden_service", retry=1)
async def service(input: Any, params: Any = None) -> Any:
    return {"input": input, "params": params}


DAG = """
flow: golden-dag
input: {items: {type: array}, limit: {type: integer, default: 2}}
state: {seen: 0}
tasks:
  first: {python: golden_do, with: {name: first}, set: {seen: "${ size(input.items) }"}}
  beside: {python: golden_do, with: {name: beside}}
  each: {python: golden_double, foreach: input.items, concurrency: input.limit, depends_on: first, with: {n: "${ item }"}}
  some: {python: golden_do, parallel: 3, on_error: ignore, retry: 1, depends_on: first, with: {name: "part ${ index }"}}
  pick:
    depends_on: [each]
    choice:
      - {when: sum(each) > 1000, then: huge}
      - {when: sum(each) > 10, then: [big, review]}
      - {else: small}
  huge: {python: golden_do, with: {name: huge}}
  small: {python: golden_do, with: {name: small}}
  big: {python: golden_do, with: {name: big, n: "${ sum(each) }"}}
  review: {approval: {title: May it go?, timeout: 2d}, then: {approved: ship, rejected: drop}}
  ship:
    depends_on: [big]
    foreach: [north, south]
    with: {to: "${ item }"}
    tasks:
      pack: {python: golden_do, with: {name: "${ input.to }"}}
      rest: {sleep: 90s, depends_on: pack}
      sub: {flow: golden-leaf, depends_on: rest, with: {name: "${ pack.name }"}}
    output: "${ sub }"
  drop: {python: golden_do, with: {name: drop}}
  cleanup: {python: golden_do, depends_on: [ship, drop], run_if: always, with: {name: cleanup}}
output: {shipped: "${ ship }", parts: "${ some }", seen: "${ state.seen }"}
"""

LEAF = """
flow: golden-leaf
input: {name: {type: string}}
tasks:
  say: {python: golden_do, retry: 1, with: {name: "${ input.name }"}}
output: "${ say.name }"
"""

GRAPH = """
flow: golden-graph
state: {n: 0, log: {}}
graph:
  start: count
  nodes:
    count: {value: "${ shared.n + 1 }", set: {n: "${ output }"}}
    work: {python: golden_do, retry: 1, with: {name: "round ${ shared.n }"}}
    repair: {python: golden_do, retry: 1, with: {name: repair, n: "${ input.message }"}}
    rest: {kind: timer, params: {delay_ms: 60000}}
    tell: {kind: wait_event, params: {signal_key: go, timeout_ms: 3600000}, post: {output_key: log.told}}
    body:
      kind: subflow
      subflow:
        start: x
        nodes: {x: {kind: executor, service: golden_service, post: {output_key: x}}}
        edges: []
    many: {services: [golden_service, golden_service], with: "${ shared.n }", concurrency: 1}
    more:
      kind: choice
      choice_cases: [{action: again, expr: {lt: [$shared.n, 3]}}]
      default_action: done
    agree: {kind: approval, params: {approval_key: agree}, post: {action_key: action}}
    end: {value: "${ shared.log }", set: {log.end: true}}
  edges:
    - {from: count, to: work}
    - {from: work, to: rest}
    - {from: work, action: error, to: repair}
    - {from: repair, to: rest}
    - {from: rest, to: more}
    - {from: more, action: again, to: count}
    - {from: more, action: done, to: tell}
    - {from: tell, to: many}
    - {from: tell, action: timeout, to: end}
    - {from: many, to: body}
    - {from: body, to: agree}
    - {from: agree, to: end}
output: {n: "${ shared.n }", log: "${ shared.log }"}
"""

RETRIED = """
flow: golden-retried
tasks:
  first: {python: golden_do, with: {name: first}}
  child: {flow: golden-leaf, depends_on: first, with: {name: child}}
  many: {python: golden_do, retry: 1, depends_on: first, foreach: [a, b, c, d], concurrency: 2, on_error: collect, with: {name: "${ item }"}}
  long: {sleep: 6h, depends_on: first}
  signed: {wait: {signal: signed, timeout: 1h}, depends_on: first}
  last: {python: golden_do, depends_on: [child, many, long, signed], with: {name: last}}
  tidy: {python: golden_do, depends_on: [many], run_if: any_failed, with: {name: tidy}}
output: "${ many }"
"""

STOPPED = """
flow: golden-stopped
tasks:
  slow: {python: golden_do, with: {name: slow}}
  child: {flow: golden-sleeps}
  rest: {sleep: 30d}
  wait: {approval: never}
  last: {python: golden_do, depends_on: [slow, rest]}
"""

FAST = """
flow: golden-fast
tasks:
  many: {python: golden_do, retry: 1, foreach: [slow, slow, bad, slow], concurrency: 3, with: {name: "${ item }"}}
  after: {python: golden_do, depends_on: many}
"""


async def record_flows(env: TestEnv) -> None:
    """A DAG and a graph with every kind of node, a flow that failed and was retried, and flows that were stopped."""
    for document in (DAG, LEAF, GRAPH, RETRIED, STOPPED, FAST, "flow: golden-sleeps\ntasks:\n  a: {sleep: 30d}"):
        await env.deploy(document)
    FLOWS.mkdir(exist_ok=True)
    down.update({"part 1", "round 2", "child", "b", "c", "bad"})

    handle = await env.start(flow("golden-dag"), items=[1, 2, 3, 4, 5])
    await save_flow("dag-waiting-1", DAG, handle)
    await Promise("review", bool).resolve(handle.id, True)
    await until_ended(env, handle)
    await save_flow("dag-1", DAG, handle)
    handle = await env.start(flow("golden-dag"), items=[1])
    await until_ended(env, handle)
    await save_flow("dag-small-1", DAG, handle)

    handle = await env.start(flow("golden-graph"))
    await env.advance("10m")
    await Signal("go", str).send(handle.id, "here")
    await env.advance("1m")
    await Promise("agree", str).resolve(handle.id, "yes")
    await until_ended(env, handle)
    await save_flow("graph-1", GRAPH, handle)
    handle = await env.start(flow("golden-graph"))
    await until_ended(env, handle)
    await save_flow("graph-timeout-1", GRAPH, handle)

    handle = await env.start(flow("golden-retried").options(timeout="5h"))
    await Signal("signed", int).send(handle.id, 1)
    for repaired in ("child", "b", "c"):
        await until_ended(env, handle)
        down.discard(repaired)
        await handle.retry()
    await until_ended(env, handle)
    await save_flow("retried-1", RETRIED, handle)

    handle = await env.start(flow("golden-fast"))
    await until_ended(env, handle)
    await save_flow("fail-fast-1", FAST, handle)
    await handle.override_node("many", "skip")
    await until_ended(env, handle)
    await save_flow("overridden-1", FAST, handle)
    running = await env.client.start(flow("golden-stopped"))
    await until(lambda: count(running, "ChildStarted"))
    await running.cancel("enough")
    await until_ended(env, running)
    await save_flow("stopped-1", STOPPED, running)


async def count(handle: Handle[Any], kind: str) -> int:
    return sum(type(r.event).__name__ == kind for r in await handle.history())


def record_binary() -> None:
    """The binary form of one event of each type: of those in the golden histories, the one with the most fields set."""
    lines = BINARY.read_text().splitlines() if BINARY.exists() else []
    shown = {type(decode_events(data)[0]) for data in map(hex_of, lines) if encode_events(decode_events(data)) == data}
    for kind in ev.EVENT_TYPES:
        if kind not in shown:
            fullest = max((e for e in golden_events() if type(e) is kind), key=fields_set)
            lines.append(f"{kind.__name__} {encode_events([fullest]).hex()}")
            print("recorded", lines[-1])
    BINARY.write_text("\n".join(lines) + "\n")


def hex_of(line: str) -> bytes:
    return bytes.fromhex(line.split()[1])


def golden_events() -> Iterator[ev.Event]:
    for path in sorted((*HERE.glob("*.json"), *FLOWS.glob("*.json"))):
        kept = msgspec.json.decode(path.read_bytes())
        for recorded in history_from_json(msgspec.json.encode(kept.get("history", kept)))[1]:
            yield recorded.event


def fields_set(event: ev.Event) -> int:
    return sum(bool(value) for value in msgspec.structs.astuple(event))


if __name__ == "__main__":
    asyncio.run(main())
