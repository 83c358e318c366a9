"""Workflows that do what they are told, in three styles. `model.follow` is what they do."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure import Approval, NamedEvent, Promise, Retry, Signal, State, Update, task, wf, workflow
from perdure.errors import ApprovalRejected, TaskFailed
from tests.messages.model import BAD_EVENTS

PEOPLE = ["ada", "ben", "cyd"]
EVENT_NAMES = 16

jammed: set[int] = set()
"""Orders that the code cannot read, as after a deploy that changed their type."""


class Told(msgspec.Struct):
    act: str
    n: int

    def __post_init__(self) -> None:
        if self.n in jammed:
            raise ValueError(f"this code does not know the order {self.n}")


do = Signal("do", Told)
word = Signal("word", int)
fin = Signal("fin", int)
deal = Approval("deal", int)
board = Approval("board", int, assignees=PEOPLE, quorum=2, reject_quorum=2)
quick = Approval("quick", int, timeout="60ms")
change = Update("change", int, int)
account = State("account", list[Any]())

bad: set[int] = set()
"""Steps that fail."""


def moved(n: int) -> NamedEvent[dict[str, int]]:
    return NamedEvent(f"moved{n // 1_000 % EVENT_NAMES}", dict[str, int])


@task(name="step", retry=Retry(1))
async def step(n: int) -> int:
    if n in bad:
        raise ValueError(f"step {n} is broken")
    return n + 1


async def read(base: int, log: list[Any]) -> list[Any]:
    mode, last, broken = "good", 0, None
    while True:
        order = await do.next()
        act, n = order.act, order.n
        asked = [n, mode, last]
        match act:
            case "hear":
                log.append(["word", await word.next()])
            case "ask" | "board" | "late":
                try:
                    kind = {"ask": deal, "board": board, "late": quick}[act]
                    log.append(["yes", asked, await kind.wait(details=asked)])
                except ApprovalRejected:
                    log.append(["no", asked])
                except TimeoutError:
                    log.append(["late", asked])
            case "value":
                log.append(["value", n, await Promise(f"p{n}", int).wait()])
            case "event":
                wanted = n if mode == "good" else n + BAD_EVENTS
                await moved(n).wait("event.n == n", since="now", n=wanted)
                log.append(["event", wanted])
            case "update":
                request = await change.next()
                log.append(["update", request.value])
                request.reply(request.value + 1)
            case "must":
                last = await step(n)
                log.append(["step", n, last])
            case "try":
                try:
                    last = await step(n)
                    log.append(["step", n, last])
                except TaskFailed as e:
                    mode, broken = "bad", e
                    log.append(["step", n, "bad"])
            case "again":
                wf.continue_as_new(base, log)
            case _:
                if broken is not None:
                    raise broken
                return log
        account.set(log)


old_reader = workflow(name="reader", version="old", versioning="pinned")(read)
"""What runs of long ago began with. Nothing serves it later."""
reader = workflow(name="reader", version="new")(read)


@workflow(name="cart")
async def cart() -> list[int]:
    heard: list[int] = []
    while True:
        try:
            heard.append(await word.next(timeout="25ms"))
        except TimeoutError:
            return heard


GRAPH = """
flow: graph_reader
input: {n: {type: integer}}
state: {log: [], n: 0, last: 0, act: "", q: []}
graph:
  start: order
  nodes:
    order:
      wait: {signal: do}
      set: {n: "${ output.n }", act: "${ output.act }", q: "${ [output.n, 'good', state.last] }"}
    which:
      choice:
        - {when: "state.act == 'hear'", then: hear}
        - {when: "state.act == 'ask'", then: ask}
        - {when: "state.act == 'board'", then: board}
        - {when: "state.act == 'late'", then: late}
        - {when: "state.act == 'event'", then: event}
        - {when: "state.act == 'must'", then: must}
        - {else: finish}
    hear: {wait: {signal: word}, set: {log: "${ state.log + [['word', output]] }"}}
    ask:
      approval: {name: deal, details: "${ state.q }", form: {v: {type: integer}}}
    board:
      approval: {name: board, details: "${ state.q }", form: {v: {type: integer}}, assignees: [ada, ben, cyd], quorum: 2, reject_quorum: 2}
    late:
      approval: {name: quick, details: "${ state.q }", form: {v: {type: integer}}, timeout: 60ms}
    yes: {value: "${ input.value.v }", set: {log: "${ state.log + [['yes', state.q, output]] }"}}
    no: {value: 1, set: {log: "${ state.log + [['no', state.q]] }"}}
    too_late: {value: 1, set: {log: "${ state.log + [['late', state.q]] }"}}
    event: {wait: {event: moved, match: "event.n == state.n", since: now}, set: {log: "${ state.log + [['event', state.n]] }"}}
    must:
      python: step
      with: {n: "${ state.n }"}
      retry: 1
      set: {last: "${ output }", log: "${ state.log + [['step', state.n, output]] }"}
    finish: {value: 1}
  edges:
    - {from: order, to: which}
    - {from: hear, to: order}
    - {from: ask, action: approved, to: "yes"}
    - {from: ask, action: rejected, to: "no"}
    - {from: board, action: approved, to: "yes"}
    - {from: board, action: rejected, to: "no"}
    - {from: late, action: approved, to: "yes"}
    - {from: late, action: rejected, to: "no"}
    - {from: late, action: timeout, to: too_late}
    - {from: "yes", to: order}
    - {from: "no", to: order}
    - {from: too_late, to: order}
    - {from: event, to: order}
    - {from: must, to: order}
output: {log: "${ state.log }"}
"""

DAG = """
flow: dag_reader
input: {n: {type: integer}}
tasks:
  first: {wait: {signal: word}}
  ask:
    depends_on: first
    approval: {name: deal, details: "${ [input.n + 2, 'good', 0] }", form: {v: {type: integer}}}
  must: {depends_on: ask, python: step, with: {n: "${ input.n + 3 }"}, retry: 1}
  second: {depends_on: must, wait: {signal: word}}
  event: {depends_on: second, wait: {event: moved, match: "event.n == input.n + 5", since: now}}
  board:
    depends_on: event
    approval: {name: board, details: "${ [input.n + 6, 'good', must] }", form: {v: {type: integer}}, assignees: [ada, ben, cyd], quorum: 2, reject_quorum: 2}
  end: {depends_on: board, wait: {signal: fin}}
output:
  log:
    - [word, "${ first }"]
    - ["${ ask.approved }", ["${ input.n + 2 }", good, 0], "${ ask.value }"]
    - [step, "${ input.n + 3 }", "${ must }"]
    - [word, "${ second }"]
    - [event, "${ input.n + 5 }"]
    - ["${ board.approved }", ["${ input.n + 6 }", good, "${ must }"], "${ board.value }"]
"""
DAG_ORDERS = ("hear", "ask", "must", "hear", "event", "board")
"""The first has the number n + 1."""
