"""Times of messages that workflow code creates.

Pydantic AI reads the wall clock when it creates a message or a part of one, so a replay would send other messages to the model than
those that are recorded. Each message that was created in the run gets the time of the run instead, when it is first sent or returned,
and keeps it. What came from outside, such as responses of the model and an older conversation, keeps the time that it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest

from perdure.sdk import wf


class Stamps:
    """What has been stamped in one run of an agent. Objects are held, so that none gets the address of another."""

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id
        self._stamped: dict[int, Any] = {}

    def apply(self, messages: Iterable[ModelMessage], now: datetime) -> None:
        for message in messages:
            # Requests of earlier runs were stamped by these, or were read from a record.
            if isinstance(message, ModelRequest) and message.run_id in (None, self.run_id):
                for part in (message, *message.parts):
                    self._stamp(part, now)

    def _stamp(self, thing: Any, now: datetime) -> None:
        if id(thing) not in self._stamped and getattr(thing, "timestamp", None) is not None:
            self._stamped[id(thing)] = thing
            thing.timestamp = now


stamps: ContextVar[Stamps] = ContextVar("perdure_agent_stamps")
"""Of the run of an agent that this code belongs to."""


def stamp(messages: Iterable[ModelMessage]) -> None:
    """Give the messages that this run created the time of the run."""
    (stamps.get(None) or Stamps(None)).apply(messages, wf.now())
