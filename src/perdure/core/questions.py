"""Questions: what a promise asks, and which values answer it.

A plain promise asks for a value by its name. An approval, or a wait for a named event, asks a question of its own: two of them may have the
same name in two histories of a run (before and after a retry, in a run and in its fork), and an answer counts only for the one it was given
to. The question is the spec without its times: asked again later, it is the same one.

Invariants:

1. A value that was given to a question answers that question and no other one of that name.
2. A value that was given to a name, before anything asked for it, answers the first thing of that name that may take it. An approval with
   assignees or a quorum takes it only from a caller who may answer for others.
3. The first value of a question stands.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from perdure.core import events as ev
from perdure.core.approvals import decode_spec

QUESTION_BYTES: Final = 8
QUESTION_CHARS: Final = 2 * QUESTION_BYTES
"""Of `name_question`."""
BY_NAME: Final = b""
"""The question of a plain promise, and of a value that was given to a name."""
_LEFT_OUT: Final = ("deadline_us", "escalate_us", "since_us")
"""Times of a spec."""


@lru_cache(1_024)
def question_of(kind: ev.PromiseKind, spec: bytes) -> bytes:
    if kind is ev.PromiseKind.PLAIN:
        return BY_NAME
    asked: dict[str, Any] = msgspec.json.decode(spec) if spec else {}
    for name in _LEFT_OUT:
        asked.pop(name, None)
    return blake2b(msgspec.json.encode(asked, order="sorted"), digest_size=QUESTION_BYTES).digest()


def name_question(run_id: bytes, question: bytes) -> str:
    """The question of an approval as people and programs name it. It counts the run: the next run of a chain may ask the same again, and
    an answer to the earlier one is none to it."""
    return blake2b(run_id + question, digest_size=QUESTION_BYTES).hexdigest()


def asked_by(created: ev.PromiseCreated) -> bytes:
    return question_of(created.kind, created.spec)


def is_restricted(created: ev.PromiseCreated) -> bool:
    """Whether only assignees may answer, or more than one answer is needed."""
    return created.kind is ev.PromiseKind.APPROVAL and decode_spec(created.spec).is_guarded


class Value(NamedTuple):
    data: bytes
    authorized: bool


class Values:
    """Values by name and question."""

    __slots__ = ("_by_question",)

    def __init__(self) -> None:
        self._by_question: dict[tuple[str, bytes], Value] = {}

    def put(self, name: str, question: bytes, value: bytes, *, authorized: bool) -> bool:
        """False: there is one already, which stands."""
        place = (name, question)
        if place in self._by_question:
            return False
        self._by_question[place] = Value(value, authorized)
        return True

    def has(self, name: str, question: bytes) -> bool:
        return (name, question) in self._by_question

    def of(self, created: ev.PromiseCreated) -> bytes | None:
        """The value that answers what this event asks."""
        question = asked_by(created)
        found = self._by_question.get((created.name, question))
        if found is None and question:
            found = self._by_question.get((created.name, BY_NAME))
            if found is not None and not found.authorized and is_restricted(created):
                return None
        return None if found is None else found.data

    def by_name(self) -> list[tuple[str, bytes]]:
        """Values that were given to names."""
        return [(name, value.data) for (name, question), value in self._by_question.items() if not question]

    def names(self) -> set[str]:
        return {name for name, _ in self._by_question}

    def authorized(self, name: str) -> bool:
        """Whether the value that was given to a name may resolve anything that is asked under it."""
        found = self._by_question.get((name, BY_NAME))
        return found is not None and found.authorized
