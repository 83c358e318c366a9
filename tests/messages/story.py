"""One run and what is said to it: acts are drawn, done, and put down in the ledger. Then the model judges."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, Final, TypeVar

import msgspec

from perdure import Promise, flow
from perdure.core import ids
from perdure.core.api import approvals as acts
from perdure.core.api import messages
from perdure.engine.api.approvals import Ballot, Links
from perdure.errors import (
    ApprovalClosed,
    ApprovalExpired,
    Conflict,
    NotAssigned,
    NotFound,
    PromiseAlreadyResolved,
    RateLimited,
    RunFinished,
)
from perdure.sdk.client.keys import ApprovalDecision
from tests.fakes.waiting import busy, until
from tests.messages import records
from tests.messages.doors import DOORS, Door, ask
from tests.messages.engines import Engines, Lost, handle
from tests.messages.model import (
    ASKING,
    STARTS,
    Answer,
    Judge,
    Ledger,
    Order,
    Past,
    Place,
    Question,
    Sent,
    Set,
    follow,
    judge_fork,
)
from tests.messages.programs import (
    DAG_ORDERS,
    PEOPLE,
    Told,
    bad,
    board,
    cart,
    change,
    deal,
    do,
    fin,
    jammed,
    moved,
    quick,
    reader,
    word,
)
from tests.messages.tally import Tally

STYLES: Final = ("code", "code", "code", "graph", "dag")
APPROVALS: Final = {"ask": deal, "board": board, "late": quick}
WAIT_S: Final = 30.0
LIMIT_S: Final = 240.0
"""For a whole story."""
NUMBERS: Final = 10_000
"""Each story has so many numbers for what it sends; each run of it that is not a continuation has CHAPTER of them."""
CHAPTER: Final = 1_000
FORKS: Final = count(300_000_000, CHAPTER)
"""Numbers of forks."""
DRAWS: Final = 8
"""How often an act is drawn for each one that is done: not every act can be done at every moment."""
ACTS: Final = {
    "say": 14,
    "say_again": 3,
    "order": 10,
    "satisfy": 16,
    "early_value": 2,
    "second_value": 2,
    "pause": 2,
    "late": 2,
    "stale_vote": 2,
    "burst": 4,
    "stop": 1,
    "delegate": 2,
    "ask_update": 2,
    "with_start": 3,
    "stuck": 2,
    "overtaken": 1,
}
ORDERS: Final = {
    "code": {"hear": 6, "ask": 4, "board": 2, "value": 3, "event": 3, "update": 3, "try": 2, "must": 2, "again": 2},
    "graph": {"hear": 6, "ask": 4, "board": 2, "event": 3, "must": 2},
}


CHAIN: Final = """
with recursive chain as (
  select $1::uuid as run_id, 0 as n
  union all select r.successor, c.n + 1 from chain c join perdure.run r using (run_id) where r.successor is not null
) select run_id from chain order by n desc"""
"""The runs of a chain, the last one first."""
STUCK: Final = "select stuck from perdure.run_queue where run_id = $1"


R = TypeVar("R")


class Broken(AssertionError):
    """A promise is broken."""


class Story:
    def __init__(self, engines: Engines, number: int, seed: str, tally: Tally, *, kills: bool = False) -> None:
        self.e, self.number, self.random, self._kills = engines, number, Random(seed), kills
        self.tally = tally
        self.steps: list[str] = []
        self.acts = 0
        """Acts that were done, of those that were drawn."""
        self.chapter = 0
        self.key = ""
        self.past: list[Past] = []
        """The chain as it was before retention."""
        self.lost: list[Set] = []
        self.has_key = False
        """The key belongs to an ended run of the same workflow."""
        self.clear()

    def clear(self) -> None:
        """For a run that no message has reached."""
        self.style = self.random.choice(STYLES)
        self.base = (self.number + 1) * NUMBERS + self.chapter * CHAPTER
        self._next = self.base + 100
        self.sent: set[str] = set()
        """Kinds of messages that the chain was sent."""
        self.racing: set[str] | None = None
        """Kinds that were sent while the act of a burst was under way."""
        self.was_paused = False
        self.ledger = Ledger()
        self.run = ""
        """The first run of the chain."""
        self.status = "active"
        self.mine = Past("", [])
        """What the code has, as far as the senders know."""
        self.answers: dict[Question, Answer] = {}
        self.keys: list[tuple[str, int]] = []
        self.updates: dict[int, asyncio.Task[None]] = {}

    # ---- acts on engines

    def new(self) -> int:
        self._next += 1
        return self._next

    async def call(self, make: Callable[[Door], Awaitable[Any]], door: str = "") -> Any:
        """Through a door of an engine, both drawn."""
        door = door or self.random.choices([*DOORS], [*DOORS.values()])[0]
        self.tally.doors[door] += 1
        return await self.e.call(self.random.randrange(2), door, make)

    def did_send(self, kind: str) -> None:
        self.sent.add(kind)
        if self.racing is not None:
            self.racing.add(kind)

    def happened(self, act: str) -> None:
        """To the run, after all that it was sent."""
        self.tally.pair(self.sent, act, self.racing or ())

    async def surely(self, make: Callable[[Door], Awaitable[Any]], *fine: type[Exception]) -> Any:
        """What may be done twice is repeated until there is an answer. `fine`: what a repetition may be refused with."""
        for n in range(20):
            try:
                return await self.call(make)
            except Lost:
                continue
            except fine:
                if n == 0:
                    raise
                return None
        raise Broken("no answer in 20 tries")

    def note(self, what: str) -> None:
        self.steps.append(what)

    # ---- what there is

    async def begin(self) -> None:
        self.key = f"story-{self.number}.{self.chapter}"
        definition: Any = {"code": reader, "graph": flow("graph_reader"), "dag": flow("dag_reader")}[self.style]
        bound = definition.options(key=self.key, on_conflict="attach")
        given = (
            bound.encode_call((self.base, []), {}) if self.style == "code" else bound.encode_call((), {"n": self.base})
        )
        made = await self.surely(lambda e: bound.start_on(e._backend, given))
        self.begun(made.id)

    def begun(self, run: str) -> None:
        if self.style == "dag":
            self.mine.orders = [Order(act, self.base + i) for i, act in enumerate(DAG_ORDERS, 1)]
            self.ledger.orders = [Sent(o.n, "program") for o in self.mine.orders]
        self.tally.styles[self.style] += 1
        self.run = run
        self.note(f"start {self.style} {self.run}")

    def place(self) -> Place:
        """Where the code is, or will be. Steps that nobody waits for are taken on the way."""
        while True:
            r = follow(self.mine, self.answers)
            n = r.place.n
            if r.place.what == "step":
                if n in bad:
                    self.mine.failed.add(n)
                else:
                    self.mine.results[n] = n + 1
            elif r.place.what == "again":
                self.happened("continues")
                self.mine = Past("", r.log, r.orders, r.words, r.unused, updates=r.updates)
            else:
                return r.place

    async def last(self, run: str = "") -> str:
        """The last run of a chain."""
        found = await self.e.pool.fetchval(CHAIN, run or self.run)
        return str(found)

    async def until_status(self, *wanted: str) -> str:
        for n in range(int(WAIT_S * 40)):
            last = await self.last()
            status = await self.e.pool.fetchval(
                "select case when stuck is not null then 'stuck: ' || stuck else 'active' end from perdure.run_queue where run_id = $1 union all select status from perdure.run where run_id = $1 and successor is null",
                last,
            )
            if status in wanted:
                return status
            if status is not None and status.startswith("stuck"):
                raise Broken(f"the run {last} is {status}")
            await busy(min(0.005 * (n + 1), 0.05))
        raise Broken(f"the run {last} is {status}, and should be {wanted}; it should be at {self.place()}")

    # ---- saying words

    async def say(self, sender: str, *, key: bool, may_be_aside: frozenset[str] = frozenset()) -> bool:
        value = self.new()
        name = f"k{value}" if key else ""
        try:
            taken = await self.call(lambda e: word.send_on(e._backend, self.run, value, key=name))
        except Lost:
            if key:
                taken = None
                with suppress(RunFinished):
                    taken = await self.surely(lambda e: word.send_on(e._backend, self.run, value, key=name))
                if taken is None:
                    self.ledger.words.append(Sent(value, sender, False, may_be_aside))
                    return False
            else:
                self.ledger.words.append(Sent(value, sender, False, may_be_aside))
                self.note(f"{value}?")
                return False
        except RunFinished:
            if may_be_aside:
                return False
            await self.settle()  # a question that nobody answered may have brought the code to its end meanwhile
            if self.status in ("active", "paused"):
                raise Broken(f"the word {value} is refused, and the run is {self.status}") from None
            return False
        if self.status not in ("active", "paused"):
            raise Broken(f"the word {value} is taken, and the run is {self.status}")
        if taken is False and not key:
            raise Broken(f"the word {value} counts as a repetition")
        self.did_send("signal")
        self.ledger.words.append(Sent(value, sender, True, may_be_aside))
        self.mine.words.append(value)
        if key:
            self.keys.append((name, value))
        self.note(f"{sender}:{value}{'k' if key else ''}")
        return True

    async def do_say(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            await self.say(self.random.choice("xyz"), key=self.random.random() < 0.5)

    async def do_say_again(self) -> None:
        if not self.keys:
            return
        name, value = self.random.choice(self.keys)
        try:
            is_new = await self.surely(lambda e: word.send_on(e._backend, self.run, value, key=name))
        except RunFinished:
            if self.status in ("active", "paused"):
                raise Broken(f"the repeated word {value} is refused, and the run is {self.status}") from None
            return
        self.note(f"again {value}")
        if is_new:
            raise Broken(f"the word {value} was taken a second time under its key")

    async def order(self, act: str, *, is_readable: bool = True) -> Order:
        one = Order(act, self.new())
        if self.style == "dag":
            assert act == "end"
            # One without an answer may have ended the run already, and its key with it.
            await self.surely(lambda e: fin.send_on(e._backend, self.run, one.n, key=f"o{one.n}"), RunFinished)
        else:
            if not is_readable:
                jammed.add(one.n)
            value = msgspec.json.encode({"act": act, "n": one.n})
            message = messages.SendSignal(self.run, do.name, value, f"o{one.n}")
            await self.surely(lambda e: e._backend.call(messages.SIGNAL, message))
        self.ledger.orders.append(Sent(one.n, "orders"))
        self.mine.orders.append(one)
        self.note(f"order {act} {one.n}")
        return one

    async def do_order(self) -> None:
        if self.status not in ("active", "paused") or self.style == "dag":
            return
        kinds = dict(ORDERS[self.style])
        if self.has_failed():
            kinds.pop("try", 0), kinds.pop("must", 0)
        act = self.random.choices([*kinds], [*kinds.values()])[0]
        if act in ("try", "must"):
            await self.step(act)
            return
        await self.order(act)
        self.place()

    def has_failed(self) -> bool:
        """Or will have: at most one step fails at a time."""
        return any(o.n in self.mine.failed or o.n in bad for o in self.mine.orders)

    async def step(self, act: str, *, fails: bool | None = None) -> None:
        """The step is bad before the order is given."""
        n = self._next + 1
        if fails or (fails is None and self.random.random() < 0.6):
            bad.add(n)
        await self.order_step(act, n)
        await self.settle()

    async def order_step(self, act: str, n: int) -> None:
        assert self.new() == n
        data = Told(act, n)
        await self.surely(lambda e: do.send_on(e._backend, self.run, data, key=f"o{n}"))
        self.ledger.orders.append(Sent(n, "orders"))
        self.mine.orders.append(Order(act, n))
        self.note(f"order {act} {n}{' (bad)' if n in bad else ''}")

    async def settle(self) -> None:
        """The end that the code has come to, if it has."""
        if self.status != "active":
            return
        what = self.place().what
        if what == "failed":
            await self.until_status("failed")
            self.status = "failed"
            self.happened("fails")
            self.note("failed")
        elif what == "end":
            await self.until_status("success")
            self.status = "success"
            self.happened("succeeds")
            self.note("success")

    # ---- giving what the code waits for

    async def do_satisfy(self) -> None:
        if self.status != "active":
            return
        place = self.place()
        match place.what:
            case "word":
                await self.say(self.random.choice("xyz"), key=self.random.random() < 0.5)
            case "ask" | "board" | "late":
                await self.decide(place)
            case "value":
                await self.resolve(place.n)
            case "event":
                await self.emit(place.n)
            case "update":
                self.ask_update()
            case _:
                return
        await self.settle()

    async def opened(self, place: Place) -> str:
        """The run that asks this now."""
        question = list(place.question or ())
        for n in range(int(WAIT_S * 40)):
            last = await self.last()
            row = await self.e.pool.fetchrow(
                "select p.name, p.spec, p.resolved_at from perdure.promise p join perdure.run_queue q using (run_id) where p.run_id = $1 and p.name = $2 and p.asked",
                last,
                self.promise(place),
            )
            if row is not None and msgspec.json.decode(row["spec"]).get("details") == question:
                if row["resolved_at"] is not None:
                    raise Broken(
                        f"{row['name']} of run {last} asks {question} and is decided, and nobody has decided it"
                    )
                return last
            await busy(min(0.005 * (n + 1), 0.05))
        raise Broken(f"run {last} should ask {self.promise(place)} {question}")

    def promise(self, place: Place) -> str:
        name = ASKING[place.what]
        return name if place.nth == 1 else f"{name}#{place.nth}"

    async def decide(self, place: Place) -> None:
        assert place.question is not None
        run = await self.opened(place)
        approves = self.random.random() < 0.75 or self.style == "dag" and False
        people = self.random.sample(PEOPLE, 2) if place.what == "board" else ["ada"]
        votes: list[int] = []
        value = 0
        for i, who in enumerate(people):
            value = self.new()
            votes.append(value)
            self.did_send("vote")
            self.ledger.votes[value] = place.question
            decided = await self.vote(run, place, who, value, approves=approves, by_link=self.random.random() < 0.2)
            if decided is None and i < len(people) - 1:
                continue
            if decided is not None and decided != (i == len(people) - 1):
                raise Broken(f"vote {i + 1} of {len(people)} on {place}: decided is {decided}")
        kind = ASKING[place.what]
        self.answers[place.question] = Answer(kind, approves, tuple(votes), value if approves else None)
        self.ledger.decided[place.question] = set(votes)
        self.note(f"{'yes' if approves else 'no'} {place.question} {votes}")

    async def vote(self, run: str, place: Place, who: str, value: int, *, approves: bool, by_link: bool) -> bool | None:
        """Whether it decides. None: the engine died before it could say so, and the vote is there now."""
        approval = APPROVALS[place.what]
        given: Any = value if self.style == "code" else {"v": value}
        if by_link:
            try:
                url = await self.surely(lambda e: self._link(e, run, place, who))
                self.did_send("link")
                return await self.call(
                    lambda e: self._by_link(e, url, given if approves else None, str(value), approves)
                )
            except (Lost, RateLimited):
                pass  # used or not: the same person votes again
        decision = ApprovalDecision(by=who, comment=str(value), nth=place.nth)

        def cast(e: Any) -> Awaitable[bool]:
            if not approves:
                return approval.reject_on(e._backend, run, decision)
            return self._approve(e, run, self.promise(place), given, decision)

        try:
            return await self.surely(cast, ApprovalClosed, RunFinished, NotFound)
        except (ApprovalClosed, RunFinished):
            if by_link:
                return None
            raise

    async def _approve(self, e: Any, run: str, name: str, value: Any, decision: ApprovalDecision) -> bool:
        asked = acts.AnswerApproval(run, name, True, msgspec.json.encode(value), decision.comment, decision.by)
        return (await e._backend.call(acts.ANSWER, asked)).resolved_us is not None

    async def _link(self, e: Any, run: str, place: Place, who: str) -> str:
        link = acts.CreateLink(run, "approval", self.promise(place), who, 0)
        return (await e._backend.call(acts.CREATE_LINK, link)).url

    async def _by_link(self, e: Door, url: str, value: Any, comment: str, approves: bool) -> bool:
        """Whether it decides. By HTTP the server reads the signature, else the engine does."""
        token = url.rpartition("/")[2]
        if e.name == "rest":
            body = {"approved": approves, "value": value, "comment": comment}
            after = await ask(e.http, "POST", f"/links/{token}", body)
            return after["approval"] is None or after["approval"]["status"] != "open"
        links = Links(e.engine.api)
        standing = await links.answer(await links.read(token), Ballot(approves, value, comment))
        return standing is None or standing.resolved_us is not None

    async def resolve(self, n: int) -> None:
        value = self.new()
        sent = Sent(value, "v")
        self.did_send("promise")
        try:
            if self.random.random() < 0.2:
                await self.resolve_by_link(n, value)
            else:
                await self.call(lambda e: Promise(f"p{n}", int).resolve_on(e._backend, self.run, value))
        except Lost:
            self.ledger.values.setdefault(n, []).append(Sent(value, "v", False))
            value = self.new()
            try:
                await self.surely(lambda e: Promise(f"p{n}", int).resolve_on(e._backend, self.run, value))
                self.ledger.values[n].append(Sent(value, "v"))
            except PromiseAlreadyResolved:  # by the first value, or by a try of the second one that had no answer
                self.ledger.values[n].append(Sent(value, "v", False))
                value = self.ledger.values[n][0].value
            self.mine.values.setdefault(n, value)
            return
        except PromiseAlreadyResolved:
            if n not in self.ledger.values:
                raise Broken(f"the promise {n} counts as resolved, and nobody has resolved it") from None
            return
        if any(s.is_sure for s in self.ledger.values.get(n, [])):
            raise Broken(f"the promise {n} took a second value")
        self.ledger.values.setdefault(n, []).append(sent)
        self.mine.values[n] = value
        self.note(f"value {n} = {value}")

    async def resolve_by_link(self, n: int, value: int) -> None:
        link = acts.CreateLink(self.run, "promise", f"p{n}", "", 0)
        url = (await self.surely(lambda e: e._backend.call(acts.CREATE_LINK, link))).url
        self.did_send("link")
        try:
            await self.call(lambda e: self._by_link(e, url, value, "", True))
        except RateLimited:
            raise Lost from None

    async def do_early_value(self) -> None:
        """Before the code asks for it."""
        if self.status in ("active", "paused") and self.style == "code" and self.place().what != "value":
            n = self._next + 2
            await self.resolve(n)
            if self._next + 1 == n:
                await self.order("value")

    async def do_second_value(self) -> None:
        if self.status in ("active", "paused") and self.mine.values:
            n = self.random.choice([*self.mine.values])
            with suppress(PromiseAlreadyResolved, Lost):
                value = self.new()
                await self.call(lambda e: Promise(f"p{n}", int).resolve_on(e._backend, self.run, value))
                raise Broken(f"the promise {n} took a second value, {value}")
            self.note("a second value is refused")

    async def emit(self, n: int) -> None:
        name = f"event:moved{n // 1_000 % 16}" if self.style == "code" else "event:moved"
        for i in range(int(WAIT_S * 40)):
            last = await self.last()
            specs = await self.e.pool.fetch(
                "select spec from perdure.promise where run_id = $1 and kind = 'event' and resolved_at is null and asked and name like $2",
                last,
                f"{name}%",
            )
            if any(str(n) in r["spec"] or self.style == "dag" for r in specs):
                break
            await busy(min(0.005 * (i + 1), 0.05))
        else:
            raise Broken(f"run {last} should wait for the event {n}")
        self.did_send("event")
        event = moved(n) if self.style == "code" else type(moved(n))("moved", dict[str, int])
        await self.surely(lambda e: event.emit_on(e._backend, {"n": n}, key=f"e{n}-{self.run}"))
        self.ledger.emitted.add(n)
        self.mine.events.append(n)
        self.note(f"event {n}")

    def ask_update(self) -> None:
        value = self.new()
        self.did_send("update")
        self.mine.updates.append(value)
        self.updates[value] = asyncio.create_task(self._ask(value))
        self.note(f"update {value}")

    async def _ask(self, value: int) -> None:
        self.ledger.updates[value] = "unknown"
        try:
            reply = await self.surely(
                lambda e: change.ask_on(e._backend, self.run, value, key=f"u{value}", within_s=25)
            )
        except TimeoutError:  # the code does not ask for it
            return
        except RunFinished:
            self.ledger.updates[value] = "finished"
            return
        if reply != value + 1:
            raise Broken(f"the update {value} was answered {reply}")
        self.ledger.updates[value] = "answered"

    async def do_ask_update(self) -> None:
        if self.status == "active" and self.style == "code" and len(self.mine.updates) < 3:
            self.ask_update()

    # ---- lifecycle

    async def do_pause(self) -> None:
        if self.status != "active":
            return
        self.note("pause")
        await self.surely(lambda e: handle(e, self.run).pause(), Conflict)
        self.status = "paused"
        for _ in range(self.random.randint(0, 3)):
            await self.say(self.random.choice("xyz"), key=True)

    async def resume(self) -> None:
        self.note("resume")
        for _ in range(400):
            with suppress(Conflict):  # its owner has not read the request yet
                await self.surely(lambda e: handle(e, self.run).resume(), Conflict)
                self.status = "active"
                self.happened("pause+resume")
                return
            await busy(0.02)
        raise Broken("a run that was to be paused cannot be resumed")

    async def do_late(self) -> None:
        """An answer that comes about when the time for it is over."""
        if self.status != "active" or self.style == "dag" or self.place().what != "order":
            return
        one = await self.order("late")
        r = follow(self.mine, self.answers)
        question = next((e[1] for e in reversed(r.log) if e[0] == "late"), None)
        if question is None or question[0] != one.n:
            return
        last = await self.last()
        asked = sum(o.act == "late" for o in self.mine.orders)
        if self.random.random() < 0.5:
            await self.order("late")  # a second question of the name follows at once
        await busy(self.random.uniform(0.01, 0.075))
        place = Place("late", one.n, (question[0], question[1], question[2]), asked)
        value = self.new()
        self.ledger.votes[value] = place.question or (0, "", 0)
        try:
            decided = await self.vote(last, place, "ada", value, approves=True, by_link=False)
        except (ApprovalExpired, ApprovalClosed, NotFound, RunFinished):
            return
        self.note(f"late answer {value} to {place.question}")
        self.did_send("vote")
        if decided:
            self.ledger.decided[place.question or (0, "", 0)] = {value}

    async def do_stale_vote(self) -> None:
        """On a question that is decided, or of a person who is not asked."""
        if self.status != "active":
            return
        place = self.place()
        value = self.new()
        if place.what == "board":
            run = await self.opened(place)
            with suppress(NotAssigned, Lost):
                await self.call(
                    lambda e: board.reject_on(
                        e._backend, run, ApprovalDecision(by="eve", comment=str(value), nth=place.nth)
                    )
                )
                raise Broken("eve was heard, and nobody had asked her")
            self.note("eve is refused")
        elif place.what == "order" and self.answers and self.mine.orders:
            last = await self.last()
            done = [o for o in self.mine.orders if o.act == "ask"]
            if not done:
                return
            with suppress(ApprovalClosed, NotFound, RunFinished, Lost):
                decision = ApprovalDecision(by="ada", comment=str(value), nth=len(done))
                await self.call(lambda e: deal.reject_on(e._backend, last, decision))
                raise Broken(f"question {len(done)} was decided a second time")
            self.note("a second decision is refused")

    async def do_delegate(self) -> None:
        if self.status != "active" or self.style == "dag" and self.place().what != "board":
            return
        if self.place().what == "order":
            await self.order("board")
        if self.place().what != "board":
            return
        place = self.place()
        run = await self.opened(place)
        asked = acts.DelegateApproval(run, self.promise(place), "dan", "cyd")
        self.did_send("delegation")
        with suppress(Conflict, NotAssigned):
            await self.surely(lambda e: e._backend.call(acts.DELEGATE, asked), Conflict, NotAssigned)
        votes = []
        for who in ("dan", "ada"):
            value = self.new()
            votes.append(value)
            self.did_send("vote")
            self.ledger.votes[value] = place.question or (0, "", 0)
            await self.vote(run, place, who, value, approves=True, by_link=False)
        assert place.question is not None
        self.answers[place.question] = Answer("board", True, tuple(votes), votes[-1])
        self.ledger.decided[place.question] = set(votes)
        self.note(f"delegated {place.question} {votes}")
        await self.settle()

    async def do_burst(self) -> None:
        """Messages while the run ends, fails, continues, is retried or loses its engine."""
        if self.status == "failed":
            await self.together(self.retry, may_be_aside=frozenset({"failed"}), status="failed")
            self.status = "active"
            await self.settle()
            return
        if self.status != "active" or self.place().what != "order":
            return
        kinds = {"code": ["fail", "again", "again", "fail"], "graph": ["fail"], "dag": []}[self.style]
        if not kinds:
            return
        match self.random.choice(kinds):
            case "again":
                await self.together(lambda: self.order("again"))
                self.place()
            case _ if not self.has_failed():
                n = self.new()
                bad.add(n)
                await self.together(lambda: self.order_step_in_burst(n), may_be_aside=frozenset({"failed"}))
                await self.settle()
            case _:
                pass

    async def order_step_in_burst(self, n: int) -> None:
        data = Told("must", n)
        await self.surely(lambda e: do.send_on(e._backend, self.run, data, key=f"o{n}"))
        self.ledger.orders.append(Sent(n, "orders"))
        self.mine.orders.append(Order("must", n))
        self.note(f"order must {n} (bad)")

    async def together(
        self, act: Callable[[], Awaitable[Any]], *, may_be_aside: frozenset[str] = frozenset(), status: str = ""
    ) -> None:
        self.note("burst")
        before, self.status = self.status, "active"
        self.racing = set()

        async def sender(name: str) -> None:
            for _ in range(self.random.randint(1, 6)):
                await busy(self.random.uniform(0, 0.012))
                if self.style == "code" and self.random.random() < 0.25:
                    await self.say_else(may_be_aside)
                    continue
                taken = await self.say(name, key=self.random.random() < 0.3, may_be_aside=may_be_aside)
                if not taken and may_be_aside and not status:
                    return

        async def acts() -> None:
            await busy(self.random.uniform(0, 0.015))
            await act()

        await asyncio.gather(sender("x"), sender("y"), acts())
        self.status = before if status == "" else "active"

    async def say_else(self, may_be_aside: frozenset[str]) -> None:
        """A value that nobody has asked for, or an update."""
        if not may_be_aside and len(self.mine.updates) < 3 and self.random.random() < 0.5:
            self.ask_update()
            return
        with suppress(RunFinished):
            await self.resolve(self.new())

    async def retry(self) -> None:
        self.note("retry")
        for o in self.mine.orders:
            bad.discard(o.n)
        self.mine.failed.clear()
        await self.surely(lambda e: handle(e, self.run).retry(), Conflict)
        self.happened("retry")

    async def do_stop(self) -> None:
        """Cancelled or terminated, perhaps while it is spoken to."""
        if self.status not in ("active", "paused") or self.random.random() < 0.7:
            return
        ends = frozenset({"cancelled"})
        self.may_be_overtaken(ends)
        stop = self.random.choice(["cancel", "terminate"])

        async def act() -> None:
            self.note(stop)
            if stop == "cancel":
                await self.surely(lambda e: handle(e, self.run).cancel(), RunFinished, Conflict)
            else:
                await self.surely(lambda e: handle(e, self.run).terminate(), RunFinished, Conflict)

        if self.status == "paused" and stop == "cancel":
            stop = "terminate"
        await self.together(act, may_be_aside=ends)
        await self.until_status("cancelled")
        self.status = "cancelled"
        if stop == "cancel":
            self.did_send("cancel")
        self.happened("cancelled" if stop == "cancel" else "terminated")

    def may_be_overtaken(self, ends: frozenset[str]) -> None:
        for known in (self.ledger.words, self.ledger.orders):
            known[:] = [s._replace(may_be_aside=s.may_be_aside | ends) for s in known]

    async def do_overtaken(self) -> None:
        """A request to cancel at the moment at which the code ends by itself."""
        if self.status != "active" or self.place().what != "order" or self.has_failed() or self.random.random() < 0.5:
            return
        ends = frozenset({"cancelled", "success", "failed"})
        kinds = {"code": ["end", "must", "again"], "graph": ["end", "must"], "dag": ["end"]}[self.style]
        act = self.random.choice(kinds)

        async def order() -> None:
            number = self._next + 1  # nothing else is drawn before `order` takes it
            if act == "must":
                bad.add(number)
            try:
                await self.order(act)
            except RunFinished:
                self.ledger.orders.append(Sent(number, "orders", False, ends))

        async def cancel() -> None:
            await busy(self.random.uniform(0, 0.01))
            await self.surely(lambda e: handle(e, self.run).cancel(), RunFinished, Conflict)

        async def both() -> None:
            await asyncio.gather(order(), self.refused_or(cancel()))

        self.note(f"cancel at {act}")
        self.may_be_overtaken(ends)
        await self.together(both, may_be_aside=ends)
        self.may_be_overtaken(ends)
        self.did_send("cancel")
        self.status = await self.until_status(*({"cancelled"} if act == "again" else ends))
        self.note(self.status)
        if self.status != "cancelled":
            self.place()
        self.happened({"success": "succeeds", "failed": "fails", "cancelled": "cancelled"}[self.status])
        if act == "again":
            self.happened("continues")

    async def refused_or(self, request: Awaitable[None]) -> None:
        with suppress(RunFinished, Conflict):
            await request

    async def do_stuck(self) -> None:
        """The code cannot read a message until it is repaired."""
        if self.status != "active" or self.style != "code" or self.place().what != "order":
            return
        n = (await self.order("hear", is_readable=False)).n
        for i in range(int(WAIT_S * 40)):
            if await self.e.pool.fetchval(STUCK, await self.last()):
                break
            await busy(min(0.005 * (i + 1), 0.05))
        else:
            raise Broken(f"the code cannot read the order {n}, and the run is not stuck")
        self.note("stuck")
        for _ in range(self.random.randint(0, 3)):
            await self.say(self.random.choice("xyz"), key=True)
        if self.random.random() < 0.3:
            await self.say_else(frozenset())
        jammed.discard(n)
        await self.surely(lambda e: handle(e, self.run).resume(), Conflict)
        self.happened("stuck+resume")

    # ---- the whole

    async def tell(self, steps: int) -> None:
        try:
            await self.begin()
            await self.act(steps)
            await self.finish()
        finally:
            for t in self.updates.values():
                t.cancel()

    async def act(self, steps: int) -> None:
        """So many acts are done. A run that ends is not the end of the story."""
        for _ in range(DRAWS * steps):
            if self.acts >= steps:
                return
            self.racing = None
            if self.status in ("cancelled", "success"):
                await self.after_end()
                await self.next_run()
            else:
                await self.one()

    async def finish(self) -> None:
        self.racing = None
        if self.status in ("active", "paused") or (self.status == "failed" and self.random.random() < 0.7):
            await self.close()
        await self.after_end()
        if self.random.random() < 0.3:
            await self.deleted()

    async def after_end(self) -> None:
        await self.refused()
        await self.judge()
        if self.random.random() < 0.4:
            await self.forked()
            await self.judge()
        if self.random.random() < 0.15:
            await self.rerun()
            await self.judge()

    # ---- long ago

    async def tell_first(self, steps: int) -> None:
        """What happened long ago, with engines and code that are gone."""
        await self.begin()
        await self.act(steps)
        if self.status == "paused":
            await self.resume()
        await self.settle()
        for value, asking in self.updates.items():
            await until(lambda value=value, asking=asking: self._is_asked(value, asking), f"the update {value} is sent")
            asking.cancel()
        self.updates.clear()
        self.keys.clear()  # kept for a day
        self.past = await self.chain()
        self.lost = [s for s in await self.left([p.run for p in self.past]) if s.reason]

    async def _is_asked(self, value: int, asking: asyncio.Task[None]) -> bool:
        sent = "select count(*) from perdure.update_answer where id = $1"
        return asking.done() or bool(await self.e.pool.fetchval(sent, f"u{value}"))

    async def removed(self) -> None:
        """Retention has taken the ended runs. The way to a living run of a chain is left."""
        gone = [p.run for p in self.past if p.end]
        there = await self.e.pool.fetchval("select count(*) from perdure.run where run_id = any($1::uuid[])", gone)
        if there:
            raise Broken(f"retention has left {there} of the runs {gone}")
        self.happened("version move")
        if self.status == "active":
            await self.say("x", key=False)
        else:
            try:
                await self.surely(lambda e: word.send_on(e._backend, self.run, 0))
            except NotFound:
                pass
            else:
                raise Broken(f"a word is taken for {self.run}, which retention has removed")
        if gone:
            self.happened("retention")
        self._forget_lost()

    def _forget_lost(self) -> None:
        """Messages that were set aside have gone with their runs: an export has what a history has."""
        words = {s.value for s in self.lost if s.kind == "word"}
        orders = {s.value for s in self.lost if s.kind == "order"}
        self.ledger.words = [s for s in self.ledger.words if s.value not in words]
        self.ledger.orders = [s for s in self.ledger.orders if s.value not in orders]
        self.mine.words = [w for w in self.mine.words if w not in words]
        self.mine.orders = [o for o in self.mine.orders if o.n not in orders]
        for s in self.lost:
            if s.kind == "value":
                self.ledger.values.pop(s.value[0], None)
                self.mine.values.pop(s.value[0], None)
            if s.kind == "answer":
                for question in [q for q, votes in self.ledger.decided.items() if votes & set(s.value)]:
                    del self.ledger.decided[question]
            if s.kind == "update":
                self.mine.updates = [u for u in self.mine.updates if u != s.value]

    async def imported(self) -> None:
        """The ended runs are back, with all that they had consumed."""
        chain = await self.chain()
        for before, now in zip(self.past, chain, strict=False):
            if before.end and before != now:
                raise Broken(f"{before} was exported, and {now} was imported")
        if self.past[0].end:
            self.happened("export+import")

    async def tell_second(self, steps: int) -> None:
        try:
            if self.status == "failed":
                await self.retry()
                await self.e.move("old", "new")  # it was not active when the others were moved
                self.status = "active"
                await self.settle()
            await self.act(steps)
            await self.finish()
        finally:
            for t in self.updates.values():
                t.cancel()

    async def next_run(self) -> None:
        """Another run, perhaps under the same key, or the one that the last chain left its signals to."""
        if (heir := await self.heir()) is not None:
            self.done("heir")
            await self.go_on_as(heir)
            return
        if self.random.random() < 0.2:
            await self.deleted()
        self.done("next run")
        self.chapter += 1
        had = self.style
        self.clear()
        self.has_key = had == "code"
        if self.style == "code" and self.has_key and self.random.random() < 0.7:
            await self.begin_with_a_word()
        else:
            await self.begin()

    async def heir(self) -> str | None:
        """The run that got the signals which the chain left unread."""
        if self.status != "success" or self.style != "code" or not self.key:
            return None
        last = await self.last()
        found = await self.e.pool.fetchval("select run_id from perdure.run_key where key = $1", self.key)
        return None if found is None or str(found) == last else str(found)

    async def go_on_as(self, heir: str) -> None:
        inherited, left = await self.still(lambda: self.past_of(heir), [heir])
        waiting = [s.value for s in left if s.kind == "word"]
        base, number, key = self.base, self._next, self.key
        words = [*inherited.words, *waiting]
        sent = [w for w in self.ledger.words if w.value in words]
        self.clear()
        self.style, self.base, self._next, self.key = "code", base, number, key
        self.begun(heir)
        self.did_send("signal_with_start")
        self.ledger.words, self.mine.words = sent, words

    async def begin_with_a_word(self) -> None:
        value = self.new()
        sent = await self.surely(lambda e: self.with_start(e, value))
        self.begun(ids.text(sent.run_id))
        self.did_send("signal_with_start")
        self.ledger.words.append(Sent(value, STARTS))
        self.mine.words.append(value)

    async def with_start(self, e: Door, value: int) -> messages.SignalledRun:
        start = reader.options(key=self.key)
        request = start._request(e._backend, start.signature.encode_call((self.base, []), {}))
        wanted = messages.SignalWithStart(request, word.name, word.encode(value), f"s{value}")
        sent: messages.SignalledRun = await e._backend.call(messages.SIGNAL_WITH_START, wanted)
        return sent

    async def do_with_start(self) -> None:
        """Said to the run under the key, which is there."""
        if self.status not in ("active", "paused") or self.style != "code" or self.place().what == "end":
            return
        value = self.new()
        sent = await self.surely(lambda e: self.with_start(e, value))
        chain = await self.e.pool.fetch(CHAIN, self.run)
        if ids.text(sent.run_id) not in [str(r["run_id"]) for r in chain]:
            raise Broken(f"the word {value} went to {ids.text(sent.run_id)}, and the chain of {self.run} has the key")
        self.did_send("signal_with_start")
        self.ledger.words.append(Sent(value, STARTS))
        self.mine.words.append(value)
        self.note(f"s:{value} with a start")
        await self.settle()

    def done(self, act: str) -> None:
        self.acts += 1
        self.tally.acts[act] += 1

    async def one(self) -> None:
        await self.settle()  # a word may have brought the code to its end
        if self.status == "paused" and self.random.random() < 0.4:
            await self.resume()
            await self.settle()
            self.done("resume")
        elif self.status == "failed":
            await (self.do_burst() if self.random.random() < 0.5 else self.retried())
            self.done("retry")
        else:
            if self._kills and self.random.random() < 0.04:
                self.note("kill")
                self.tally.kills += 1
                await self.e.kill(self.random.randrange(2))
            act = self.random.choices([*ACTS], [*ACTS.values()])[0]
            before = len(self.steps)
            await getattr(self, f"do_{act}")()
            if len(self.steps) > before:
                self.done(act)

    async def retried(self) -> None:
        await self.retry()
        self.status = "active"
        await self.settle()

    async def close(self) -> None:
        """The run succeeds, whatever that takes."""
        if self.status == "cancelled":
            return
        for _ in range(60):
            await self.settle()
            match self.status:
                case "paused":
                    await self.resume()
                    await self.settle()
                case "failed":
                    await self.retried()
                case "success":
                    return
                case _ if self.place().what == "order":
                    await (self.order("end") if self.random.random() < 0.4 else self.end_in_a_burst())
                    await self.settle()
                case _:
                    await self.do_satisfy()
        raise Broken(f"the run does not end: {self.place()}, {self.status}")

    async def end_in_a_burst(self) -> None:
        await self.together(lambda: self.order("end"), may_be_aside=frozenset({"success", "failed"}))

    async def refused(self) -> None:
        """After its end a run takes nothing."""
        with suppress(RunFinished, Lost):
            value = self.new()
            await self.call(lambda e: word.send_on(e._backend, self.run, value))
            raise Broken(f"the word {value} is taken, and the run is {self.status}")

    async def past_of(self, run: str) -> Past:
        history = await self.surely(lambda e: handle(e, run).history())
        return records.past(run, self.style, history, self.base)

    async def chain(self) -> list[Past]:
        found: list[Past] = []
        run = self.run
        while run:
            found.append(await self.past_of(run))
            run = found[-1].next_run
        return found

    async def left(self, runs: list[str]) -> list[Set]:
        rows = await self.e.pool.fetch(
            "select run_id, kind, body, reason, id from perdure.set_aside_message where run_id = any($1::uuid[]) "
            "union all select run_id, kind, body, '', id from perdure.inbox where run_id = any($1::uuid[]) order by id",
            runs,
        )
        found = [records.left(r["run_id"].bytes, r["kind"], r["body"], r["reason"]) for r in rows]
        return [s for s in found if s is not None]

    async def still(self, read: Callable[[], Awaitable[R]], runs: list[str]) -> tuple[R, list[Set]]:
        """What `read` finds in histories, and the messages beside them, while none of these moves from there into a history."""
        for _ in range(int(WAIT_S / 0.05)):
            before = await self.left(runs)
            found = await read()
            if await self.left(runs) == before:
                return found, before
            await busy(0.05)
        raise Broken(f"the messages of {runs} never come to rest")

    async def judge(self) -> None:
        for value, asked in self.updates.items():
            if self.status in ("success", "cancelled"):
                try:
                    await asyncio.wait_for(asked, WAIT_S)
                except TimeoutError:
                    raise Broken(f"the update {value} is never answered") from None
        heir = await self.heir()

        async def read() -> tuple[list[Past], Past | None]:
            chain = await self.chain()
            return chain, await self.past_of(heir) if heir is not None else None

        runs = [str(r["run_id"]) for r in await self.e.pool.fetch(CHAIN, self.run)]
        (chain, after), left = await self.still(read, [*runs, heir] if heir is not None else runs)
        wrong = Judge(self.ledger, chain, left, after).judge()
        if chain[-1].end != self.status:
            wrong.append(f"run {chain[-1].run} is {chain[-1].end or 'active'}, and should be {self.status}")
        if wrong:
            raise Broken("\n".join(wrong[:10]))

    async def forked(self) -> None:
        """A fork of the last run, perhaps with another result of a step, which goes on by itself."""
        last = await self.last()
        history = await self.surely(lambda e: handle(e, last).history())
        at = self.random.randint(1, len(history))
        taken = history[:at]
        if any(type(r.event).__name__ == "CancelRequested" for r in taken):
            return  # it would be cancelled, too
        steps = records.steps(taken)
        edits: dict[str, int] = {}
        edited = self.random.choice([*steps]) if steps and self.random.random() < 0.6 else 0
        child = Story(self.e, self.number, f"{self.base}:{self.acts}:fork", self.tally)
        child.style, child.base, child._next, child.sent = self.style, self.base, next(FORKS), set(self.sent)
        if edited:
            edits[str(steps[edited])] = child.new()
        self.note(f"fork {last} at {at} {edits}")
        try:
            made = await self.call(lambda e: handle(e, last).fork(at, edits))
        except Lost:
            return
        self.happened("fork+edit" if edits else "fork")
        if self.past:
            await self.e.move("old", "new")  # a fork is pinned like its original
        child.run = made.id
        child.steps = self.steps
        copied = await self.surely(lambda e: handle(e, child.run).history())
        end = next(i for i, r in enumerate(copied) if type(r.event).__name__ == "RunForked")
        source = records.past(last, self.style, taken, self.base)
        child.mine = records.past(child.run, self.style, copied[:end], self.base)
        wrong = judge_fork(child.mine, source, self.ledger.votes, edited)
        if edited and child.mine.results.get(edited) != edits[str(steps[edited])]:
            wrong.append(
                f"the fork has the result {child.mine.results.get(edited)} of step {edited}, and should have {edits}"
            )
        if wrong:
            raise Broken("\n".join(wrong))
        child.inherit(self.ledger)
        await child.settle()
        if child.status == "active" and child.place().what == "order" and self.style != "dag":
            await child.order("ask" if self.random.random() < 0.5 else "hear")
        await child.close()
        await child.judge()

    def inherit(self, known: Ledger) -> None:
        """What came with the copied history."""
        mine = self.mine
        self.ledger.votes = dict(known.votes)
        # A fork has no key, so no message may start a run beside it.
        words = [s._replace(sender="forked") if s.sender == STARTS else s for s in known.words]
        self.ledger.words = [s for s in words if s.value in mine.words]
        self.ledger.orders = [s for s in known.orders if s.value in [o.n for o in mine.orders]]
        self.ledger.values = {n: [Sent(v, "v")] for n, v in mine.values.items()}
        for a in mine.answers:
            question = known.votes[a.votes[0]]
            self.answers.setdefault(question, a)
            self.ledger.decided[question] = set(a.votes)

    async def rerun(self) -> None:
        """A new run: it has no messages."""
        try:
            made = await self.call(lambda e: handle(e, self.run).rerun())
        except Lost:
            return
        self.happened("rerun")
        self.note(f"rerun {made.id}")
        history = await self.surely(lambda e: handle(e, made.id).history())
        fresh = records.past(made.id, self.style, history, self.base)
        heard = fresh.words or fresh.values or fresh.answers or fresh.events or fresh.updates
        if heard or (fresh.orders and self.style != "dag"):
            raise Broken(f"a run that was started anew has messages: {fresh}")
        await self.surely(lambda e: handle(e, made.id).terminate(), RunFinished, Conflict)

    async def deleted(self) -> None:
        """Nothing is left."""
        chain = [p.run for p in await self.chain()]
        for run in reversed(chain):
            await self.surely(lambda e, run=run: handle(e, run).delete(), NotFound, Conflict)
        for table in ("inbox", "set_aside_message", "promise", "vote", "message_key", "update_answer", "history"):
            n = await self.e.pool.fetchval(
                f"select count(*) from perdure.{table} where run_id = any($1::uuid[])", chain
            )
            if n:
                raise Broken(f"{n} rows of a deleted run are in {table}")
        self.happened("delete")
        with suppress(NotFound, Lost):
            value = self.new()
            await self.call(lambda e: word.send_on(e._backend, self.run, value))
            raise Broken("a word is taken for a run that was deleted")


class Carts(Story):
    """Runs that end when nobody has said anything for a while. Whoever speaks starts one, or adds to the one that is there."""

    async def tell(self, steps: int) -> None:
        self.style = "cart"
        self.tally.styles["cart"] += 1
        key = f"cart-{self.number}"

        async def sender(name: str) -> None:
            for _ in range(steps // 3):
                value = self.new()
                self.tally.acts["cart"] += 1
                self.ledger.words.append(Sent(value, name))
                at = len(self.ledger.words) - 1
                try:
                    await self.call(lambda e, value=value: self._add(e, key, value))
                except Lost:
                    self.ledger.words[at] = Sent(value, name, False)
                await busy(self.random.choice([0, 0.01, 0.03, 0.045]) * self.random.random() * 2)

        async def killer() -> None:
            for _ in range(2 if self._kills else 0):
                await busy(self.random.uniform(0.05, 0.5))
                self.tally.kills += 1
                await self.e.kill(self.random.randrange(2))

        await asyncio.gather(*(sender(name) for name in "xyz"), killer())
        for _ in range(int(WAIT_S * 20)):
            if not await self.e.pool.fetchval("select count(*) from perdure.run_queue where key = $1", key):
                break
            await busy(0.05)
        else:
            raise Broken(f"a cart under {key} does not end")
        rows = await self.e.pool.fetch("select run_id, status from perdure.run where key = $1 order by run_id", key)
        heard: list[int] = []
        for r in rows:
            self.run = str(r["run_id"])
            heard += msgspec.json.decode(await self.surely(lambda e: handle(e, self.run).result(f"{WAIT_S:g}s")))
        self.note(f"{len(rows)} carts")
        self.tally.pairs["signal_with_start", "succeeds"] += len(rows)
        self._judge_carts(heard)

    async def _add(self, e: Any, key: str, value: int) -> Any:
        start = cart.options(key=key)
        request = start._request(e._backend, start.signature.encode_call((), {}))
        return await e._backend.call(
            messages.SIGNAL_WITH_START, messages.SignalWithStart(request, word.name, word.encode(value))
        )

    def _judge_carts(self, heard: list[int]) -> None:
        wrong = [f"{v} is in {heard.count(v)} carts" for v in heard if heard.count(v) > 1]
        for s in self.ledger.words:
            if s.is_sure and s.value not in heard:
                wrong.append(f"{s.value} of {s.sender} is in no cart")
        for sender in "xyz":
            mine = [s.value for s in self.ledger.words if s.sender == sender and s.is_sure]
            order = [v for v in heard if v in mine]
            if order != [v for v in mine if v in order]:
                wrong.append(f"what {sender} put into the carts came as {order}, and was sent as {mine}")
        if wrong:
            raise Broken("\n".join(wrong))


async def told(story: Story, part: Awaitable[None]) -> str | None:
    """None: every promise was kept. Else what was not, and how it came to that."""
    try:
        async with asyncio.timeout(LIMIT_S):
            await part
    except (Exception, asyncio.CancelledError) as e:
        what = str(e) if isinstance(e, Broken) else "".join(traceback.format_exception(e)[-4:])
        steps = "\n  ".join(story.steps)
        return f"story {story.number}, style {story.style}:\n{what}\n  {steps}\n{await _shown(story)}"
    return None


def is_old(number: int) -> bool:
    """It began long ago."""
    return number % 20 == 3


def new_story(engines: Engines, number: int, seed: str, tally: Tally) -> Story:
    kind = Carts if number % 8 == 5 and not is_old(number) else Story
    return kind(engines, number, f"{seed}:{number}", tally, kills=number % 10 == 9)


async def _shown(story: Story) -> str:
    """The history of its last run."""
    try:
        last = await story.last()
        history = await story.surely(lambda e: handle(e, last).history())
        row = await story.e.pool.fetchrow(
            "select owner, status, wake_at, stuck, paused_at, waiting_on, halted from perdure.run_queue where run_id = $1",
            last,
        )
        inbox = await story.e.pool.fetchval("select count(*) from perdure.inbox where run_id = $1", last)
    except Exception as e:
        return f"its history cannot be read: {e!r}"
    events = " ".join(f"{r.seq}:{type(r.event).__name__}" for r in history)
    return f"  {last}: {events}\n  row {dict(row) if row else None}, inbox {inbox}"
