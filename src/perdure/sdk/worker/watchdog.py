"""Detects that a task blocks the worker's event loop, reports it, and keeps all other attempts alive meanwhile.

Theory. A thread outside the loop asks it for a sign of life several times a second. A loop that gives none runs only
the blocking code: no heartbeat gets out, and the engine would end attempts of other tasks. So the thread beats for all of them, by a
way that does not need the loop, and shows the stack that holds it.

    asked --answered--> quiet                asked --blocked_s--> blocked: beats with the stack, again and again
                                             blocked --answered--> one more beat takes the mark off

It cannot help while C code holds the interpreter's lock: then no thread runs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from time import monotonic  # bound here, before workflow guards wrap it
from types import FrameType
from typing import Any

from perdure.core.limits import BLOCKED_STACK_CHARS_MAX
from perdure.core.work import Beat
from perdure.sdk.worker.attempts import Attempt, beat_of, current_slot

BLOCKED_S = 1.0
"""A loop that has not answered for this long is blocked."""
BLOCKED_MAX_S = 3_600.0
"""After this long no attempt is kept alive any more: the engine's heartbeat timeouts decide."""
PING_S = 0.25
"""How often the loop is probed, unless an attempt needs heartbeats more often."""
STEP_MIN_S = 0.05
"""The shortest pause between two checks."""

log = logging.getLogger("perdure.worker")


class Watchdog:
    """`beats` is called from the watchdog's thread, everything else of the caller's but `attempts` on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        attempts: Callable[[], list[Attempt]],
        beats: Callable[[list[Beat]], None],
        answered: Callable[[], None],
        *,
        blocked_s: float = BLOCKED_S,
        ping_s: float = PING_S,
    ) -> None:
        self._loop, self._attempts, self._beats, self._answered = loop, attempts, beats, answered
        self._blocked_s, self._ping_s = blocked_s, ping_s
        self.loop_thread = threading.get_ident()
        """It is made on the loop."""
        self._asked: float | None = None
        self._beat_at = float("-inf")
        self._marked: list[Attempt] = []
        self._warned = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Once there is something to watch; further calls do nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="perdure-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        try:
            while not self._stop.wait(self.step_s()):
                self.look(monotonic())
        except RuntimeError as e:  # the loop is closed
            log.debug("the watchdog leaves: %s", e)

    def step_s(self) -> float:
        return max(STEP_MIN_S, min(self._ping_s, self._patience_s() / 2))

    def _patience_s(self) -> float:
        """How long the most impatient attempt may be left without a beat."""
        needs = [a._assignment.options.heartbeat_us for a in self._attempts()]
        return min((us for us in needs if us), default=int(self._blocked_s * 3e6)) / 3e6

    def look(self, now_s: float) -> None:
        if self._asked is None:
            if self._marked:
                self._unmark()
            self._warned = False
            self._asked = now_s
            self._loop.call_soon_threadsafe(self._answer)
            return
        silent_s = now_s - self._asked
        patience_s = self._patience_s()
        if min(patience_s, self._blocked_s) <= silent_s <= BLOCKED_MAX_S and now_s - self._beat_at >= patience_s:
            self._beat_at = now_s
            self._beat_for_all(silent_s)

    def _answer(self) -> None:
        self._asked = None
        self._answered()

    def _beat_for_all(self, silent_s: float) -> None:
        running = self._attempts()
        stack = stack_of(self.loop_thread) if silent_s >= self._blocked_s else ""
        guilty = culprits(running, self._loop) if stack else []
        self._marked = guilty
        self._send([beat_of(a, blocked=stack if a in guilty else "") for a in running])
        if stack and not self._warned:
            self._warned = True
            names = ", ".join(sorted({a.task for a in guilty})) or "no task"
            log.warning(
                "the worker's event loop has been blocked for %.1f s (%s): nothing else runs on it. Make the task a plain "
                "`def`, which runs in a thread, or move the blocking call into asyncio.to_thread(). It is here:\n%s",
                silent_s,
                names,
                stack,
            )

    def _unmark(self) -> None:
        marked, self._marked = self._marked, []
        running = set(self._attempts())
        self._send([beat_of(a) for a in marked if a in running])

    def _send(self, beats: list[Beat]) -> None:
        if not beats:
            return
        try:
            self._beats(beats)
        except Exception:
            log.exception("heartbeats of %d attempts could not be sent", len(beats))


def culprits(running: list[Attempt], loop: asyncio.AbstractEventLoop) -> list[Attempt]:
    """Whose code the loop is in: the attempt of the current asyncio task, or every one on the loop if that is no attempt's."""
    on_loop = [a for a in running if isinstance(a._runner, asyncio.Task)]
    task: Any = asyncio.current_task(loop)
    if task is None:
        return on_loop
    slot = task.get_context().get(current_slot) if hasattr(task, "get_context") else None  # since Python 3.12
    own = [a for a in on_loop if a._runner is task or (slot is not None and slot.attempt is a)]
    return own or on_loop


def stack_of(thread: int) -> str:
    """Where a thread is, as text: the user's frames and what they called; ours around them are left out."""
    frame = sys._current_frames().get(thread)
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    frames.reverse()
    lines = traceback.format_list(
        traceback.StackSummary.extract(((f, f.f_lineno) for f in _theirs(frames)), capture_locals=False)
    )
    text = "".join(lines)
    if len(text) > BLOCKED_STACK_CHARS_MAX:
        text = "…\n" + text[2 - BLOCKED_STACK_CHARS_MAX :]
    return text


def _theirs(frames: list[FrameType]) -> list[FrameType]:
    """From the outermost frame that is neither Perdure's nor asyncio's, looking inward from where Perdure called it."""
    ours = [i for i, f in enumerate(frames) if _module(f) in _AROUND]
    inner = frames[ours[-1] + 1 :] if ours else frames
    while inner and _module(inner[-1]) == "perdure.sdk.workflow.guards":  # time.sleep() and the like pass through it
        inner = inner[:-1]
    return inner or frames[-10:]


_AROUND = (
    "perdure.sdk.worker.execution",
    "perdure.sdk.worker.relay",
    "perdure.sdk.workflow.loop",
    "asyncio.events",
    "asyncio.runners",
)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
