"""The text of a response while the model writes it.

The task of a model writes pieces of text to its output, as lines of the stream `tokens`, and the recorded result is the whole response.
Lines take the way of all task output: they arrive about a second later, an attempt keeps LOG_BYTES_PER_ATTEMPT_MAX bytes of them, and a
crash may lose the last ones. The result is durable, the lines are not. A reader therefore gets what is missing from the record:

    lines of attempt 1 -> lines of attempt 2 (restart) -> the rest of the recorded response (done)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pydantic_ai.messages import AgentStreamEvent, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.tools import RunContext

from perdure.core import events as ev
from perdure.core.api import runs
from perdure.core.api.runs import ListHistory, ListLogs, LogItem, LogPosition
from perdure.sdk.client.handles import Handle
from perdure.sdk.secrets.known import redacted
from perdure.sdk.worker.attempts import attempt
from perdure.sdk.worker.output import output_of

STREAM: Final = "tokens"
"""Of the lines of a task's output that are pieces of text. Each line is a JSON string."""
TASK_SUFFIX: Final = ".model_stream"
WRITE_EVERY_S: Final = 0.1
"""Text is gathered for this long before it becomes a line."""
LINE_TEXT_CHARS_MAX: Final = 1_000
"""Characters of one line; as JSON it is at most six times as long, and still a line that is kept whole."""
POLL_S: Final = 0.2
"""A reader looks for new lines this often."""
LOG_PAGE_LINES: Final = 200


class _TextLines:
    """Gathers the text of one attempt and writes it as lines of its output."""

    def __init__(self) -> None:
        self._output = output_of(attempt())
        self._loop = asyncio.get_running_loop()
        self._text = ""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        if self._output is None or not text:  # the worker captures no output
            return
        self._text += text
        if self._timer is None:
            self._timer = self._loop.call_later(WRITE_EVERY_S, self.write)

    def write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        text, self._text = self._text, ""
        for at in range(0, len(text), LINE_TEXT_CHARS_MAX):
            assert self._output is not None
            piece = text[at : at + LINE_TEXT_CHARS_MAX].encode("utf-8", "replace").decode()
            # Secrets are masked before the text is JSON: escaped they would not be found.
            self._output.add(STREAM, "info", msgspec.json.encode(redacted(piece)).decode())


async def write_deltas(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
    """The event handler of an agent: runs in the task of the model, while the response comes in."""
    lines = _TextLines()
    try:
        async for event in events:
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    lines.add(text)
                case _:
                    pass
    finally:
        lines.write()


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of the text of a response."""

    text: str
    """Append it to the text so far."""
    task: int
    """Number of the model request in the run. Another one: another response begins."""
    attempt: int
    """Of the request. 0: the text comes from the record alone."""
    restart: bool = False
    """The text so far of this response is void: it was that of another attempt, or lines of it were lost."""
    done: bool = False
    """The response is recorded, and this is the end of its text."""


class _ReadResponse:
    """The text of one response as far as the reader has it."""

    def __init__(self) -> None:
        self.text, self.attempt = "", 0

    def grow(self, item: LogItem) -> TextPiece | None:
        if item.attempt < self.attempt:
            return None  # late lines of an attempt that was given up
        try:
            text = msgspec.json.decode(item.line.text, type=str)
        except msgspec.DecodeError:  # a line that was cut; the record has its text
            return None
        restart = bool(self.text) and item.attempt > self.attempt
        if item.attempt > self.attempt:
            self.text, self.attempt = "", item.attempt
        self.text += text
        return TextPiece(text, item.seq, item.attempt, restart)

    def close(self, seq: int, recorded: str) -> TextPiece:
        if recorded.startswith(self.text):
            return TextPiece(recorded[len(self.text) :], seq, self.attempt, done=True)
        return TextPiece(recorded, seq, self.attempt, restart=True, done=True)


class TextReader:
    """Reads the pieces of one run from its output and its history."""

    def __init__(self, handle: Handle[Any], agent: str = "") -> None:
        self._backend, self._run, self._agent = handle._backend, handle.id, agent
        self._open: dict[int, _ReadResponse] = {}
        self._position: LogPosition | None = None
        self._event = 0
        self.ended = False

    async def poll_once(self) -> list[TextPiece]:
        """What has come since. Lines are read first: what follows from the history completes them."""
        scheduled = await self._events()
        pieces = [piece async for piece in self._lines()]
        return [*pieces, *self._recorded(scheduled)]

    async def _events(self) -> list[ev.Event]:
        """New events with their stored values. Tasks of models become open responses."""
        found: list[ev.Event] = []
        while True:
            page = await self._backend.call(runs.HISTORY, ListHistory(self._run, self._event))
            for record in page.items:
                event, self._event = record.event, record.seq
                if isinstance(event, ev.TasksScheduled) and self._is_stream(event.name):
                    self._open |= {event.first + n: _ReadResponse() for n in range(len(event.inputs))}
                if isinstance(event, ev.TasksSucceeded) and not self._open.keys().isdisjoint(event.seqs):
                    found.append(await self._backend.payloads.resolve_record(event))
                # A failed run may be retried, but nothing says when; the stream ends with it.
                self.ended = self.ended or isinstance(event, ev.TERMINAL)
            if not page.has_more:
                return found

    def _is_stream(self, task: str) -> bool:
        return task == f"{self._agent}{TASK_SUFFIX}" if self._agent else task.endswith(TASK_SUFFIX)

    async def _lines(self) -> AsyncIterator[TextPiece]:
        while True:
            wanted = ListLogs(self._run, after=self._position, limit=LOG_PAGE_LINES)
            page = await self._backend.call(runs.LOGS, wanted)
            for item in page.items:
                self._position = item.position
                response = self._open.get(item.seq)
                if response is not None and item.line.stream == STREAM and (piece := response.grow(item)):
                    yield piece
            if page.next is None:
                return

    def _recorded(self, events: list[ev.Event]) -> Iterator[TextPiece]:
        for event in events:
            assert isinstance(event, ev.TasksSucceeded)
            for seq, result in zip(event.seqs, event.results, strict=True):
                response = self._open.pop(seq, None)
                if response is not None:
                    yield response.close(seq, text_of(result))


class _RecordedPart(msgspec.Struct):
    part_kind: str
    content: Any = ""


class _RecordedResponse(msgspec.Struct):
    parts: list[_RecordedPart]


def text_of(result: bytes) -> str:
    """The text of a recorded response."""
    return "".join(
        p.content for p in msgspec.json.decode(result, type=_RecordedResponse).parts if p.part_kind == "text"
    )


async def stream_text(handle: Handle[Any], agent: str = "") -> AsyncIterator[TextPiece]:
    """The text of the responses of a run's agents while they are made, until the run ends.

        async for piece in stream_text(handle):
            print(piece.text, end="", flush=True)

    For agents with `PerdureDurability(stream=True)`. Every response is there in full, from the record where lines were lost or are not
    there any more; so a reader that comes late, or after the end, gets the same text.

    Args:
        handle: the run.
        agent: the name of an agent, where the run has several; those of all of them unless given.
    """
    reader = TextReader(handle, agent)
    while True:
        for piece in await reader.poll_once():
            yield piece
        if reader.ended:
            return
        await asyncio.sleep(POLL_S)
