"""One attempt, in the cluster: an actor with the name of its job, which runs the task, notes how it ended, and ends.

It belongs to no worker (`lifetime="detached"`), so it goes on when the worker that started it is gone. It gives its CPUs and GPUs back as soon
as the task has ended, because the result is in the cluster's store and not in the actor.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import traceback
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.errors import Failure, InvalidInput, PerdureError, clip
from perdure.core.work import Assignment
from perdure.executors.port import JobFailed, JobPayloads, JobState, JobSucceeded, spec_of
from perdure.executors.ray.payloads import AttemptPayloads
from perdure.executors.ray.records import BEGAN, END, LOG, LOG_BYTES_MAX, LOG_PIECE_BYTES, Records, encode_end

FLUSH_S: Final = 0.5
"""How often output is passed on."""


class AttemptCall(msgspec.Struct, frozen=True, array_like=True):
    """What an attempt runs. The values of TaskCode, and the assignment, whose input may be by reference."""

    entry: str
    module: str
    qualname: str
    assignment: Assignment
    inline_bytes: int
    """A larger result goes to the payload store."""


class AttemptActor:
    """`call` is an AttemptCall."""

    def __init__(self, name: str, call: bytes) -> None:
        import ray

        me: Any = ray.get_runtime_context().current_actor
        self._thread = threading.Thread(target=_live, args=(me, name, call), daemon=True)
        self._thread.start()


def _live(me: Any, name: str, data: bytes) -> None:
    import ray

    records = Records()
    began = records.put(BEGAN + name, str(time.time_ns() // 1000).encode())
    if began and records.get(END + name) is None:  # else it was taken for lost or cancelled before it began
        output = CapturedOutput(records, name)
        state = _run(data, records)
        output.close()
        records.put(END + name, encode_end(state))
    ray.kill(me)


def _run(data: bytes, records: Records) -> JobState:
    try:
        call = msgspec.msgpack.decode(data, type=AttemptCall)
        a = call.assignment
        os.environ |= _variables(a)
        payloads = AttemptPayloads(records, a.job, call.inline_bytes)
        loaded = msgspec.structs.replace(a, input=payloads.loaded(a.input))
        state: JobState = find(call.entry)(call.module, call.qualname, loaded, payloads)
        if isinstance(state, JobSucceeded):
            return JobSucceeded(payloads.stored(state.value, f"the result of {a.name}"))
        return state
    except PerdureError as e:
        return JobFailed(e.to_failure(), is_final=isinstance(e, InvalidInput))
    except BaseException as e:  # also SystemExit, which would end this thread without a word
        return JobFailed(Failure("task_failed", clip(str(e)), type(e).__name__, clip(traceback.format_exc())))


def _variables(a: Assignment) -> dict[str, str]:
    """As those of a command. The process has no other attempt."""
    return {
        "PERDURE_JOB": a.job,
        "PERDURE_RUN_ID": ids.text(a.run_id),
        "PERDURE_TASK_ID": ids.text(ids.derive(a.run_id, ids.TASK, a.seq)),
        "PERDURE_ATTEMPT": str(a.attempt),
    }


def find(place: str) -> Any:
    """Of `module:name`, in the module or in something of it."""
    module, _, qualname = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def call_function(module: str, qualname: str, a: Assignment, payloads: JobPayloads) -> JobState:
    """The entry of perdure.job.ray: a function with the spec's input as its keyword arguments."""
    function = find(f"{module}:{qualname}")
    value = getattr(function, "fn", function)(**(spec_of(a).get("input") or {}))
    return JobSucceeded(msgspec.json.encode(value))


class CapturedOutput:
    """Everything that this process writes to stdout and stderr, also by programs that it starts."""

    def __init__(self, records: Records, name: str) -> None:
        self._records, self._name = records, name
        self._lock, self._number, self._bytes, self._dropped = threading.Lock(), 0, 0, 0
        self._readers = [self._capture(1, "stdout"), self._capture(2, "stderr")]

    def _capture(self, fd: int, stream: str) -> tuple[int, int, threading.Thread]:
        kept = os.dup(fd)
        read, write = os.pipe()
        os.dup2(write, fd)
        os.close(write)
        reader = threading.Thread(target=self._read, args=(read, stream), daemon=True)
        reader.start()
        return fd, kept, reader

    def _read(self, fd: int, stream: str) -> None:
        """Several small writes become one piece."""
        while data := os.read(fd, LOG_PIECE_BYTES):
            if len(data) < LOG_PIECE_BYTES:
                time.sleep(FLUSH_S / 5)
            self._pass_on(stream, data)

    def _pass_on(self, stream: str, data: bytes) -> None:
        with self._lock:
            if self._bytes >= LOG_BYTES_MAX:
                self._dropped += len(data)
                return
            self._bytes += len(data)
            self._number += 1
            self._records.put(f"{LOG}{self._name}/{self._number:06}/{stream}", data)

    def close(self) -> None:
        """Wait until all of it is passed on. A program that was left running keeps its end of a pipe open, hence the time limit."""
        for file in (sys.stdout, sys.stderr):
            file.flush()
        for fd, kept, reader in self._readers:
            os.dup2(kept, fd)
            reader.join(timeout=5.0)
        if self._dropped:
            text = f"{self._dropped} more bytes of output were left out: LOG_BYTES_MAX={LOG_BYTES_MAX}\n"
            self._bytes = 0
            self._pass_on("stderr", text.encode())
