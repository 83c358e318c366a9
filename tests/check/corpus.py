"""Edits of the base that break runs in flight, and others that break none.

Each is a small diff: the file, what is replaced by what, and the kind of finding that `perdure check` must report. The runs in flight are
those of conftest.py: every wait of the base has a run that is there.
"""

from __future__ import annotations

from dataclasses import dataclass

CODE, DAG, GRAPH = "orders.py", "nightly.yaml", "haggle.yaml"


@dataclass(frozen=True)
class Edit:
    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    """What is replaced by what, each found exactly once."""
    finds: str = ""
    """Kind of the finding; empty: none."""
    workflow: str = ""
    """That the finding is about."""
    says: str = ""
    """Part of what the finding has got from the code."""
    line: str = ""
    """Part of the source line that the finding names."""


def _edit(name: str, file: str, *changes: tuple[str, str], finds: str = "", **more: str) -> Edit:
    return Edit(name, file, changes, finds, **more)


BREAKS = (
    _edit(
        "a task before the first one",
        CODE,
        (
            "    if not await validate(order, amount):\n",
            '    await notify(order, "hello")\n    if not await validate(order, amount):\n',
        ),
        finds="diverges",
        workflow="order",
        says="task 'notify'",
        line='notify(order, "hello")',
    ),
    _edit(
        "a task removed",
        CODE,
        ('        await notify(order, "refused")\n', ""),
        finds="diverges",
        workflow="order",
        line='pause("30d")',
    ),
    _edit(
        "a task renamed",
        CODE,
        ("@task\nasync def charge(", '@task(name="charge_card")\nasync def charge('),
        finds="diverges",
        workflow="order",
        says="charge_card",
        line="await charge(order, amount)",
    ),
    _edit(
        "another task in its place",
        CODE,
        ("    receipt = await charge(order, amount)\n", "    receipt = await ship(order)\n"),
        finds="diverges",
        workflow="order",
        says="task 'ship'",
        line="await ship(order)",
    ),
    _edit(
        "other arguments",
        CODE,
        ("    receipt = await charge(order, amount)\n", "    receipt = await charge(order, amount + 1)\n"),
        finds="diverges",
        workflow="order",
        says='"amount":51',
        line="charge(order, amount + 1)",
    ),
    _edit(
        "arguments swapped",
        CODE,
        ('        await notify(order, "refused")\n', '        await notify("refused", order)\n'),
        finds="diverges",
        workflow="order",
        line='notify("refused", order)',
    ),
    _edit(
        "two steps reordered",
        CODE,
        (
            '    receipt = await charge(order, amount)\n    stage.set("charged")\n    await wf.run("token", make_token)\n    await wf.map(pack, ["box", "label", "tape"])\n',
            '    await wf.map(pack, ["box", "label", "tape"])\n    receipt = await charge(order, amount)\n    stage.set("charged")\n    await wf.run("token", make_token)\n',
        ),
        finds="diverges",
        workflow="order",
        says="task 'pack'",
        line="wf.map(pack",
    ),
    _edit(
        "a branch with another threshold",
        CODE,
        ("    if amount > 100:\n", "    if amount > 40:\n"),
        finds="diverges",
        workflow="order",
        says="promise 'approved'",
        line="await approved.wait()",
    ),
    _edit(
        "a branch turned around",
        CODE,
        ("    if not await validate(order, amount):\n", "    if await validate(order, amount):\n"),
        finds="diverges",
        workflow="order",
    ),
    _edit(
        "a branch by a result that only some runs have",
        CODE,
        ("    if amount > 100:\n", "    if amount > 400:\n"),
        finds="diverges",
        workflow="order",
        says="task 'charge'",
    ),
    _edit(
        "a timer before a wait",
        CODE,
        (
            "    receipt = await charge(order, amount)\n",
            '    await pause("1h")\n    receipt = await charge(order, amount)\n',
        ),
        finds="diverges",
        workflow="order",
        says="a timer",
        line='pause("1h")',
    ),
    _edit(
        "a timer removed",
        CODE,
        ('    await notify(order, where)\n    await pause("30d")\n', "    await notify(order, where)\n"),
        finds="diverges",
        workflow="delivery",
        says="the end of the run",
    ),
    _edit(
        "a timeout removed",
        CODE,
        ('stop.next(timeout="1s" if site == "fast" else "30d")', "stop.next()"),
        finds="diverges",
        workflow="monitor",
    ),
    _edit(
        "a fan-out over other items",
        CODE,
        ('["box", "label", "tape"]', '["box", "label"]'),
        finds="diverges",
        workflow="order",
        says="task 'pack'",
    ),
    _edit(
        "another child",
        CODE,
        ("    await delivery(order)\n", "    await monitor(order)\n"),
        finds="diverges",
        workflow="order",
        says="child workflow 'monitor'",
        line="await monitor(order)",
    ),
    _edit(
        "a child made a task",
        CODE,
        ("    await delivery(order)\n", "    await ship(order)\n"),
        finds="diverges",
        workflow="order",
        says="task 'ship'",
    ),
    _edit(
        "a signal renamed",
        CODE,
        ('Signal("paid", bool)', 'Signal("was_paid", bool)'),
        finds="wait_removed",
        workflow="order",
        says="signal:was_paid",
        line="await paid.next()",
    ),
    _edit(
        "a wait for a signal removed",
        CODE,
        ("    where = await arrived.next()\n", '    where = "here"\n'),
        finds="wait_removed",
        workflow="delivery",
    ),
    _edit(
        "a promise renamed",
        CODE,
        ('Promise("approved", bool)', 'Promise("accepted", bool)'),
        finds="diverges",
        workflow="order",
        says="promise 'accepted'",
    ),
    _edit(
        "a side effect renamed",
        CODE,
        ('wf.run("token", make_token)', 'wf.run("secret", make_token)'),
        finds="diverges",
        workflow="order",
        says="wf.run('secret')",
    ),
    _edit(
        "another state",
        CODE,
        ('stage.set("charged")', 'stage.set("paid")'),
        finds="diverges",
        workflow="order",
        line='stage.set("paid")',
    ),
    _edit(
        "a required parameter",
        CODE,
        (
            "async def order(order: str, amount: int) -> str:",
            "async def order(order: str, amount: int, currency: str) -> str:",
        ),
        finds="input",
        workflow="order",
        says="currency",
    ),
    _edit(
        "a parameter of another type",
        CODE,
        ("async def monitor(site: str) -> int:", "async def monitor(site: int) -> int:"),
        finds="input",
        workflow="monitor",
    ),
    _edit(
        "a result of another type",
        CODE,
        (
            "async def validate(order: str, amount: int) -> bool:\n    return amount > 0",
            "async def validate(order: str, amount: int) -> list[str]:\n    return []",
        ),
        finds="diverges",
        workflow="order",
    ),
    _edit(
        "the update handler removed",
        CODE,
        ("    set_limit.handle(lambda limit: limit + 1)\n", ""),
        finds="diverges",
        workflow="monitor",
    ),
    _edit(
        "a workflow renamed",
        CODE,
        ('@workflow(name="monitor")', '@workflow(name="watcher")'),
        finds="workflow_removed",
        workflow="monitor",
    ),
    _edit(
        "a clock in the code",
        CODE,
        ("    errors = 0\n", "    import datetime\n\n    errors = datetime.datetime.now().microsecond % 1\n"),
        finds="not_deterministic",
        workflow="monitor",
        line="datetime.datetime.now()",
    ),
    _edit(
        "a node of a dag renamed",
        DAG,
        ("  check: {python", "  checking: {python"),
        ("depends_on: check\n", "depends_on: checking\n"),
        finds="diverges",
        workflow="nightly",
    ),
    _edit(
        "a task of a dag replaced",
        DAG,
        ("check: {python: validate, with: {order", "check: {python: charge, with: {order"),
        finds="diverges",
        workflow="nightly",
        says="task 'charge'",
        line="check:",
    ),
    _edit(
        "a node of a dag with other arguments",
        DAG,
        (
            'charging: {python: charge, with: {order: "${ input.day }", amount: "${ input.amount }"}}',
            'charging: {python: charge, with: {order: "${ input.day }", amount: "${ input.amount * 2 }"}}',
        ),
        finds="diverges",
        workflow="nightly",
        says="task 'charge'",
        line="charging:",
    ),
    _edit(
        "a foreach of a dag over more",
        DAG,
        ('foreach: ["box", "label"]', 'foreach: ["box", "label", "tape"]'),
        finds="diverges",
        workflow="nightly",
        says="task 'pack' x3",
    ),
    _edit(
        "a node of a dag before the first one",
        DAG,
        ("  check: {python", "  first: {python: probe, with: {site: x}}\n  check: {depends_on: first, python"),
        finds="diverges",
        workflow="nightly",
        says="task 'probe'",
        line="first:",
    ),
    _edit(
        "an approval of a dag under another name",
        DAG,
        ('approval: {title: "Charge it?", timeout: 30d}', 'approval: {name: other, title: "Charge it?", timeout: 30d}'),
        finds="diverges",
        workflow="nightly",
        says="promise 'other'",
    ),
    _edit(
        "a signal of a dag renamed",
        DAG,
        ("wait: paid", "wait: was_paid"),
        finds="wait_removed",
        workflow="nightly",
        says="signal:was_paid",
    ),
    _edit(
        "a required input of a flow",
        DAG,
        ("  amount: {type: integer}\n", "  amount: {type: integer}\n  currency: {type: string}\n"),
        finds="input",
        workflow="nightly",
    ),
    _edit("a graph that starts elsewhere", GRAPH, ("start: ask", "start: pause"), finds="diverges", workflow="haggle"),
    _edit(
        "a task of a graph replaced",
        GRAPH,
        ("python: probe\n", "python: ship\n"),
        ('with: {site: "${ params.site }"}\n      set', 'with: {order: "${ params.site }"}\n      set'),
        finds="diverges",
        workflow="haggle",
        says="task 'ship'",
        line="ask:",
    ),
    _edit(
        "a choice of a graph turned",
        GRAPH,
        ("state.attempt >= params.limit", "state.attempt > params.limit"),
        finds="diverges",
        workflow="haggle",
    ),
    _edit(
        "an edge of a graph moved",
        GRAPH,
        ("from: wait_for_stop, to: tell", "from: wait_for_stop, to: rest"),
        ("from: tell, to: rest", "from: rest, to: tell"),
        finds="diverges",
        workflow="haggle",
    ),
    _edit(
        "a pause of a graph removed",
        GRAPH,
        ("        - {else: pause}\n", "        - {else: ask}\n"),
        finds="diverges",
        workflow="haggle",
    ),
    _edit(
        "a signal of a graph renamed", GRAPH, ("{wait: stop}", "{wait: halt}"), finds="wait_removed", workflow="haggle"
    ),
)

COMPATIBLE = (
    _edit("nothing", CODE),
    _edit("a comment", CODE, ("    errors = 0\n", "    # Counts answers of 500 and above.\n    errors = 0\n")),
    _edit(
        "a docstring",
        CODE,
        (
            "async def monitor(site: str) -> int:\n",
            'async def monitor(site: str) -> int:\n    """Probe a site until it is stopped."""\n',
        ),
    ),
    _edit(
        "a local variable renamed",
        CODE,
        ("    receipt = await charge(order, amount)\n", "    bill = await charge(order, amount)\n"),
        ("    return receipt\n", "    return bill\n"),
    ),
    _edit(
        "a helper function",
        CODE,
        ("    receipt = await charge(order, amount)\n", "    receipt = await _charged(order, amount)\n"),
        (
            '@workflow(name="order")\n',
            'async def _charged(order: str, amount: int) -> str:\n    return await charge(order, amount)\n\n\n@workflow(name="order")\n',
        ),
    ),
    _edit(
        "the function renamed under its name",
        CODE,
        ("async def order(order: str, amount: int) -> str:", "async def place_order(order: str, amount: int) -> str:"),
    ),
    _edit(
        "the body of a task",
        CODE,
        ('    return f"shipped {order}"\n', '    print("shipping")\n    return f"shipped {order} today"\n'),
    ),
    _edit("retries of a task", CODE, ("@task\nasync def charge(", '@task(retry=9, timeout="1m")\nasync def charge(')),
    _edit("the queue of a task", CODE, ("@task\nasync def ship(", '@task(queue="trucks")\nasync def ship(')),
    _edit(
        "a step after the end of every run",
        CODE,
        (
            '    await pause("30d")\n    return where\n',
            '    await pause("30d")\n    await notify(order, "done")\n    return where\n',
        ),
    ),
    _edit("another result", CODE, ('        return "refused"\n', '        return "rejected"\n')),
    _edit(
        "an optional parameter",
        CODE,
        (
            "async def order(order: str, amount: int) -> str:",
            'async def order(order: str, amount: int, currency: str = "EUR") -> str:',
        ),
    ),
    _edit(
        "a wider type", CODE, ("async def monitor(site: str) -> int:", "async def monitor(site: str | None) -> int:")
    ),
    _edit(
        "an optional parameter of a task",
        CODE,
        ("async def probe(site: str) -> int:", "async def probe(site: str, deep: bool | None = None) -> int:"),
    ),
    _edit(
        "a patched step",
        CODE,
        (
            "    receipt = await charge(order, amount)\n",
            '    if wf.patched("hello"):\n        await notify(order, "hello")\n    receipt = await charge(order, amount)\n',
        ),
    ),
    _edit(
        "a patched removal",
        CODE,
        (
            '    await wf.run("token", make_token)\n',
            '    if not wf.patched("no token"):\n        await wf.run("token", make_token)\n',
        ),
    ),
    _edit(
        "a timer that lasts longer",
        CODE,
        (
            '        await pause("30d")\n        return "refused"\n',
            '        await pause("60d")\n        return "refused"\n',
        ),
    ),
    _edit(
        "a print and a computation",
        CODE,
        (
            "        status = await probe(site)\n",
            '        status = await probe(site)\n        print("status", status, sorted({3, 1, 2}))\n',
        ),
    ),
    _edit(
        "a new workflow and a new task",
        CODE,
        (
            '@workflow(name="monitor")\n',
            '@task\nasync def extra() -> None:\n    return None\n\n\n@workflow\nasync def fresh() -> None:\n    await extra()\n\n\n@workflow(name="monitor")\n',
        ),
    ),
    _edit(
        "a branch that no run has taken",
        CODE,
        (
            "    if amount > 100:\n",
            '    if amount > 100_000:\n        await notify(order, "huge")\n    if amount > 100:\n',
        ),
    ),
    _edit(
        "another error handled",
        CODE,
        ("        except TimeoutError:\n", "        except (TimeoutError, ValueError):\n"),
    ),
    _edit(
        "a signal and an update more",
        CODE,
        (
            'stop = Signal("stop", bool)\n',
            'stop = Signal("stop", bool)\nhalt = Signal("halt", bool)\nother = Update("other", int, int)\n',
        ),
        (
            "    set_limit.handle(lambda limit: limit + 1)\n",
            "    set_limit.handle(lambda limit: limit + 1)\n    other.handle(lambda limit: limit)\n",
        ),
    ),
    _edit(
        "the answer of an update handler",
        CODE,
        ("set_limit.handle(lambda limit: limit + 1)", "set_limit.handle(lambda limit: limit + 2)"),
    ),
    _edit(
        "a dag described otherwise", DAG, ("description: A dag that waits for people.", "description: Another text.")
    ),
    _edit(
        "a node at the end of a dag",
        DAG,
        (
            "  close: {depends_on",
            "  more: {depends_on: close, python: notify, with: {order: x, text: more}}\n  close: {depends_on",
        ),
    ),
    _edit("retries of a dag", DAG, ("tasks:\n", "defaults: {retry: 7, timeout: 2m}\n\ntasks:\n")),
    _edit(
        "the question of an approval",
        DAG,
        ('title: "Charge it?"', 'title: "Really charge it?", description: "Think of it."'),
    ),
    _edit(
        "an optional input of a dag",
        DAG,
        ("  amount: {type: integer}\n", "  amount: {type: integer}\n  currency: {type: string, default: EUR}\n"),
    ),
    _edit("a comment in a graph", GRAPH, ("state: {attempt: 0}\n", "# How often it was asked.\nstate: {attempt: 0}\n")),
    _edit("a graph with more steps", GRAPH, ("max_steps: 100\n", "max_steps: 200\n")),
    _edit("a longer pause in a graph", GRAPH, ("{sleep: 30d}", "{sleep: 60d}")),
    _edit(
        "a node at the end of a graph",
        GRAPH,
        ("    - {from: tell, to: rest}\n", "    - {from: tell, to: rest}\n    - {from: rest, to: last}\n"),
        ("    rest: {sleep: 30d}\n", "    rest: {sleep: 30d}\n    last: {value: done}\n"),
    ),
)
