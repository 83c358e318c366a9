"""What is promised about messages, without a line of the implementation.

    acknowledged messages (the ledger)  --'
                                          |--> judge --> every broken promise, in words
    histories, messages set aside       --'

A workflow of these tests reads orders, one after the other, and does what they say: hear a word, ask people, wait for a value, an event or
an update, take a step. So it is a network of queues: what it does depends on what each queue held, in which order, and not on the moment at
which anything came. `follow` says what it has done with its messages; it knows nothing of retries or lost engines, and neither may a run.

Promises:

1. A message that was acknowledged is in one place: in the history of a run of its chain, or pending, or set aside with the end of its run.
   One whose sender got no answer is there once or not at all. One under a key is there once however often it is sent.
2. The messages of one sender stay in their order.
3. An answer counts for the question that was open when it was given: its place among the orders and all that the code had learned by then.
4. A run that continues hands on what its code did not read, all of it, before anything newer.
5. A run that succeeds has heard what came before its end, unless it was asked once more and ended again.
6. A retry finds everything again that the failure had set aside.
7. A fork has what the history has that it was made from, and nothing of what is said to the original later.
8. A message that may start its run is read by a run: if the chain succeeds without reading it, a run under the same key has it, and all that
   the chain left unread, in its order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

Question = tuple[int, str, int]
"""Number of the order, what failed before it, and the last result that the code had: whatever the question depends on."""
ASKING: Final = {"ask": "deal", "board": "board", "late": "quick"}
"""Orders that ask people, and the name under which they do."""
STARTS: Final = "s"
"""The sender whose messages start a run if none is there."""
BAD_EVENTS: Final = 500_000_000
"""Added to the number of the event that the code waits for once a step has failed."""


class Order(NamedTuple):
    act: str
    n: int


class Place(NamedTuple):
    """What the code waits for, or how it has ended."""

    what: str
    n: int = 0
    question: Question | None = None
    nth: int = 0


class Answer(NamedTuple):
    name: str
    approved: bool
    votes: tuple[int, ...]
    value: int | None


class Past(msgspec.Struct):
    """What the history of a run says, taken apart by kind."""

    run: str
    carried: list[Any]
    """What the code had done before, where the run continues another."""
    orders: list[Order] = []
    words: list[int] = []
    values: dict[int, int] = {}
    """The first value of each promise."""
    answers: list[Answer] = []
    events: list[int] = []
    updates: list[int] = []
    failed: set[int] = set()
    """Steps whose last outcome is a failure."""
    results: dict[int, int] = {}
    end: str = ""
    """success, failed, cancelled, continued; empty: it goes on."""
    result: list[Any] = []
    next_run: str = ""
    withdrawn: int = 0
    """How often its end was taken back because of messages."""
    retries: int = 0
    ends_before_retry: list[str] = []


class Set(NamedTuple):
    """A message that was set aside or is pending."""

    run: str
    kind: str
    value: Any
    reason: str
    """How its run ended; empty: it is pending."""


class Sent(NamedTuple):
    value: int
    sender: str
    is_sure: bool = True
    """False: its sender got no answer."""
    may_be_aside: frozenset[str] = frozenset()
    """Ends that may have overtaken it: it was sent while the run ended."""


class Ledger(msgspec.Struct):
    """What the senders know."""

    words: list[Sent] = []
    orders: list[Sent] = []
    values: dict[int, list[Sent]] = {}
    votes: dict[int, Question] = {}
    """By the number of the vote: the question that its giver saw."""
    decided: dict[Question, set[int]] = {}
    """Votes whose givers were told that they decided it."""
    emitted: set[int] = set()
    updates: dict[int, str] = {}
    """By value: `answered`, `finished` or `unknown`."""


class Reading(NamedTuple):
    log: list[Any]
    place: Place
    orders: list[Order]
    words: list[int]
    updates: list[int]
    unused: dict[int, int]
    """Values of promises that were not asked for."""


def of(question: Sequence[Any]) -> Question:
    n, mode, last = question
    return (n, mode, last)


def follow(p: Past, answers: Mapping[Question, Answer], seen: Sequence[Any] = ()) -> Reading:
    """What the code has done with these messages. `seen`: its own account, for what only the clock decides."""
    log, words, updates, values = list(p.carried), list(p.words), list(p.updates), dict(p.values)
    mode, last, asked = "good", 0, Counter[str]()

    def end(place: Place, i: int) -> Reading:
        return Reading(log, place, list(p.orders[i:]), words, updates, values)

    for i, (act, n) in enumerate(p.orders):
        question: Question = (n, mode, last)
        match act:
            case "hear":
                if not words:
                    return end(Place("word", n), i)
                log.append(["word", words.pop(0)])
            case "ask" | "board" | "late":
                asked[act] += 1
                given = answers.get(question)
                is_late = act == "late" and len(seen) > len(log) and seen[len(log)][0] == "late"
                if given is None and act != "late":
                    return end(Place(act, n, question, asked[act]), i)
                if given is None or is_late:
                    log.append(["late", [*question]])
                else:
                    log.append(["yes", [*question], given.value] if given.approved else ["no", [*question]])
            case "value":
                if n not in values:
                    return end(Place("value", n), i)
                log.append(["value", n, values.pop(n)])
            case "event":
                wanted = n if mode == "good" else n + BAD_EVENTS
                if wanted not in p.events:
                    return end(Place("event", wanted), i)
                log.append(["event", wanted])
            case "update":
                if not updates:
                    return end(Place("update", n), i)
                log.append(["update", updates.pop(0)])
            case "try" | "must":
                if n in p.failed:
                    if act == "must":
                        return end(Place("failed", n), i)
                    mode = "bad"
                    log.append(["step", n, "bad"])
                elif n in p.results:
                    last = p.results[n]
                    log.append(["step", n, last])
                else:
                    return end(Place("step", n), i)
            case "again":
                return end(Place("again", n), i + 1)
            case "end":
                return end(Place("failed" if mode == "bad" else "end", n), i + 1)
            case _:
                raise ValueError(act)
    return end(Place("order"), len(p.orders))


class Judge:
    """Collects what is wrong with the runs of one chain."""

    def __init__(self, ledger: Ledger, chain: Sequence[Past], left: Iterable[Set], heir: Past | None = None) -> None:
        """`heir`: the run under the same key that got the signals which the chain left unread."""
        self._ledger, self._chain, self._left = ledger, chain, list(left)
        self._heir = heir
        self._heard_by = [*chain, heir] if heir else [*chain]
        self.wrong: list[str] = []
        self._passed_on: dict[str, set[tuple[str, int]]] = {"word": set(), "order": set()}
        """Run and message: it has gone to the next run."""

    def judge(self) -> list[str]:
        for p in self._chain:
            self._followed(p)
        for p, successor in zip(self._chain, self._chain[1:], strict=False):
            self._handed_on(p, successor)
        self._inherited(self._chain[-1])
        self._places("word", [p.words for p in self._heard_by], self._ledger.words)
        self._places("order", [[o.n for o in p.orders] for p in self._heard_by], self._ledger.orders)
        self._promises()
        self._decisions()
        self._left_rows()
        self._updates()
        return self.wrong

    def _say(self, what: str) -> None:
        self.wrong.append(what)

    def answers(self, p: Past) -> dict[Question, Answer]:
        """By question. What the votes were given for, as their givers know it."""
        found: dict[Question, Answer] = {}
        for a in p.answers:
            asked = {self._ledger.votes[v] for v in a.votes if v in self._ledger.votes}
            if len(asked) != 1:
                self._say(
                    f"run {p.run}: the answer {a} is made of votes for {asked or 'nothing that anybody was asked'}"
                )
            for question in asked:
                found.setdefault(question, a)
        return found

    def _followed(self, p: Past) -> None:
        """Promises 3 and 4, and that the code has heard what its history says."""
        r = follow(p, self.answers(p), p.result)
        wanted = {"success": "end", "continued": "again", "failed": "failed"}.get(p.end)
        if wanted is not None and r.place.what != wanted:
            self._say(f"run {p.run} is {p.end}, and its messages lead it to {r.place}")
        elif p.end == "success" and p.result != r.log:
            self._say(f"run {p.run} did {p.result}, and its messages say {r.log}")

    def _handed_on(self, p: Past, successor: Past) -> None:
        r = follow(p, self.answers(p), successor.carried)
        if successor.carried != r.log:
            self._say(f"run {successor.run} began with {successor.carried}, and {p.run} ended with {r.log}")
        self._signals_handed_on(p, r, successor)
        waiting = [s.value for s in self._left if s.run == successor.run]
        for n, value in r.unused.items():
            if successor.values.get(n) != value and (n, value) not in waiting:
                self._say(
                    f"run {successor.run} was to have the value {value} of {n}, and has {successor.values.get(n)}"
                )
        if missing := set(r.updates) - {*successor.updates, *(v for v in waiting if isinstance(v, int))}:
            self._say(f"run {successor.run} was to have the updates {sorted(missing)}")

    def _signals_handed_on(self, p: Past, r: Reading, successor: Past) -> None:
        for what, left, there in (
            ("order", [o.n for o in r.orders], [o.n for o in successor.orders]),
            ("word", r.words, successor.words),
        ):
            unread = [s.value for s in self._left if s.run == successor.run and s.kind == what]
            if [*there, *unread][: len(left)] != left:
                self._say(f"run {successor.run} was to begin with the {what}s {left}, and has {there}")
            self._passed_on[what] |= {(p.run, value) for value in left}

    def _inherited(self, p: Past) -> None:
        """Promise 8."""
        if p.end != "success":
            return
        r = follow(p, self.answers(p), p.result)
        if self._heir is not None:
            self._signals_handed_on(p, r, self._heir)
        elif promised := {s.value for s in self._ledger.words if s.sender == STARTS} & {*r.words}:
            self._say(f"run {p.run} ended without reading {sorted(promised)}, and no run was started for them")

    def _places(self, what: str, histories: Sequence[list[int]], sent: Sequence[Sent]) -> None:
        """Promises 1, 2, 5 and 6."""
        for p, there in zip(self._heard_by, histories, strict=True):
            for value, times in Counter(there).items():
                if times > 1:
                    self._say(f"{what} {value} is in the history of {p.run} {times} times")
        passed_on = self._passed_on[what]
        heard = [
            v for p, there in zip(self._heard_by, histories, strict=True) for v in there if (p.run, v) not in passed_on
        ]
        left = [s for s in self._left if s.kind == what]
        known = {s.value: s for s in sent}
        for value in heard:
            if value not in known:
                self._say(f"{what} {value} is in a history, and nobody sent it")
        for one in sent:
            aside = [s for s in left if s.value == one.value]
            places = heard.count(one.value) + len(aside)
            if places > 1 or (one.is_sure and places == 0):
                self._say(f"{what} {one.value} of {one.sender} is in {places} places")
            for s in aside:
                if s.reason and s.reason not in one.may_be_aside:
                    self._say(f"{what} {one.value} of {one.sender} was set aside ({s.reason}), and came before the end")
        line = [*heard, *(s.value for s in left)]
        for sender in {s.sender for s in sent}:
            # A message without an answer may still be on its way through a server when its sender goes on.
            mine = [s.value for s in sent if s.sender == sender and s.is_sure]
            order = [v for v in line if v in mine]
            if order != [v for v in mine if v in order]:
                self._say(f"the {what}s of {sender} came in the order {order}, and were sent as {mine}")

    def _promises(self) -> None:
        """The first value stands."""
        for n, sent in self._ledger.values.items():
            found = {p.values[n] for p in self._chain if n in p.values}
            aside = {s.value[1] for s in self._left if s.kind == "value" and s.value[0] == n}
            sure = [s.value for s in sent if s.is_sure]
            if len(sure) > 1:
                self._say(f"the promise {n} took {sure}, and only the first value stands")
            if len(found | aside) > 1:
                self._say(f"the promise {n} has the values {found | aside}")
            if sure and (found | aside) != set(sure):
                self._say(f"the promise {n} took {sure[0]}, and has {found | aside}")
            if (found | aside) - {s.value for s in sent}:
                self._say(f"the promise {n} has {found | aside}, which nobody gave it")

    def _decisions(self) -> None:
        """Whoever was told that an answer decides finds it in one history, or set aside with the end that overtook it."""
        for question, votes in self._ledger.decided.items():
            there = [a for p in self._chain for a in p.answers if set(a.votes) & votes]
            aside = [s for s in self._left if s.kind == "answer" and set(s.value) & votes]
            if len(there) + len(aside) != 1:
                self._say(
                    f"the decision {sorted(votes)} of {question} is in {len(there)} histories, {len(aside)} times aside"
                )

    def _left_rows(self) -> None:
        """Who may have messages that no history has."""
        runs = {p.run: p for p in self._heard_by}
        for s in self._left:
            p = runs.get(s.run)
            if p is None:
                self._say(f"a message lies with {s.run}, which is no run of the chain: {s}")
            elif s.reason and s.reason != p.end:
                self._say(f"{s} was set aside, and run {p.run} is {p.end or 'active'}")
            elif not s.reason and p.end:
                self._say(f"{s} is pending, and run {p.run} is {p.end}")
            elif s.reason == "success" and not p.withdrawn:
                self._say(f"{s} was set aside, and the end of {p.run} was never taken back for it")

    def _updates(self) -> None:
        account = [e for p in self._chain for e in (p.result or [])[len(p.carried) :] if e[0] == "update"]
        for value, reply in self._ledger.updates.items():
            times = sum(e[1] == value for e in account)
            if times > 1:
                self._say(f"the update {value} was handled {times} times")
            if self._chain[-1].end == "success" and reply == "answered" and not times and len(self._chain) == 1:
                self._say(f"the update {value} was answered, and the code has never had it")


def judge_fork(copy: Past, source: Past, votes: Mapping[int, Question], edited: int) -> list[str]:
    """Promise 7. `edited`: the step whose result is another one there; 0: none. What was asked after it is not asked yet."""
    place = {o.n: i for i, o in enumerate(source.orders)}
    until = place.get(edited, len(place))

    def is_before(n: int) -> bool:
        return place.get(n % BAD_EVENTS, -1) < until

    wrong: list[str] = []
    given = {votes[a.votes[0]]: a for a in source.answers}
    account = follow(source, given)
    asked = {of(e[1]) for e in account.log if e[0] in ("yes", "no", "late")} | {account.place.question}
    kept = [a for q, a in given.items() if is_before(q[0]) and q in asked]
    void = [a for q, a in given.items() if q not in asked]
    """A retry took back what they answer. They count if the very same is asked again."""
    if [a for a in copy.answers if a not in void] != kept:
        wrong.append(f"the fork {copy.run} has the answers {copy.answers}, and should have {kept}")
    events = [n for n in source.events if is_before(n)]
    if not set(events) - {n for n in source.events if n >= BAD_EVENTS} <= set(copy.events) <= set(source.events):
        wrong.append(f"the fork {copy.run} has the events {copy.events}, and should have {events}")
    for what in ("orders", "words", "updates"):
        if getattr(copy, what) != getattr(source, what):
            wrong.append(
                f"the fork {copy.run} has the {what} {getattr(copy, what)}, and the original {getattr(source, what)}"
            )
    for n, value in source.values.items():
        if copy.values.get(n, value) != value or (is_before(n) and n not in copy.values):
            wrong.append(f"the fork {copy.run} has the value {copy.values.get(n)} of {n}, and the original {value}")
    return wrong
