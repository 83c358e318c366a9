"""Calls of a remote client: what is repeated, and what the error says when there is no answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.core.api import runs
from perdure.core.api.runs import CancelRun, GetRun
from perdure.core.deadlines import unanswered
from perdure.core.errors import Unavailable
from perdure.sdk.client.channel import access
from perdure.sdk.client.client import RemoteBackend
from perdure.sdk.client.payloads import PayloadOptions
from perdure.wire.acts import Reply


class FakeSession:
    """A server that answers every call alike, and counts them."""

    was_open, is_over = True, False

    def __init__(self, answer: Callable[[float], Reply]) -> None:
        self._answer = answer
        self.calls = 0

    async def call(self, act: str, request: bytes, within_s: float, waits_s: float) -> Reply:
        self.calls += 1
        return self._answer(within_s)


def backend(session: FakeSession, timeout_s: float) -> RemoteBackend:
    made = RemoteBackend(access("127.0.0.1:1", environ={}), timeout_s, PayloadOptions())
    made._open_session = lambda: session  # type: ignore[method-assign, assignment, return-value]
    return made


def away(within_s: float) -> Reply:
    return Reply(1, b"", "unavailable", str(unanswered(0.8 * within_s, effect=False)))


async def test_the_error_of_a_repeated_call_names_its_attempts_and_its_whole_time() -> None:
    session = FakeSession(away)
    with pytest.raises(Unavailable) as error:
        await backend(session, 0.5).call(runs.STATUS, GetRun("key:a"))
    assert session.calls > 1
    text = str(error.value)
    assert text.startswith(f"{runs.STATUS.name} failed after {session.calls} attempts in 0.")
    assert "its timeout is 0.5 s. The last error: no answer within 0." in text
    assert text.endswith("Try again later")


async def test_a_call_that_may_have_taken_effect_is_not_repeated_and_says_so() -> None:
    session = FakeSession(lambda within_s: Reply(1, b"", "unavailable", str(unanswered(0.8 * within_s, effect=True))))
    act = next(act for act in runs.ACTS if act.audits and not act.changes_once and not act.once_by)
    with pytest.raises(Unavailable, match=r"after 1 attempt in .*its timeout is 30 s.*took effect is unknown"):
        await backend(session, 30).call(act, CancelRun("key:a"))
    assert session.calls == 1


async def test_an_error_of_the_act_itself_is_raised_as_it_is() -> None:
    with pytest.raises(Exception, match=r"^there is no run$"):
        await backend(FakeSession(lambda _: Reply(1, b"", "not_found", "there is no run")), 30).call(
            runs.STATUS, GetRun("key:a")
        )
