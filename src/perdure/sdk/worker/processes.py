"""Tasks in processes of their own: `@task(process=True)`.

Theory. Each thread of the process lane keeps one child, started with multiprocessing's `spawn` and used for one attempt after the
other. A child gets the place of the task and its input as the bytes the engine sent; it imports the module, runs the function and
sends back the result's bytes. Nothing of the user's is ever pickled.

    parent thread --Job--> child reader thread --> child main thread: the user's function
                  <--Lines, Pulse, Ended--

Laws:

1. Stopping an attempt ends its process: SIGTERM raises AttemptCancelled in the user's code, so that it can clean up; SIGKILL comes after a
   grace. The next attempt gets a fresh process.
2. A child that dies is an error of the attempt it ran, which says how it died. Whether to try again is for the task's policy.
3. No child outlives its parent: the kernel ends it (Linux), or the end of its pipe does.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import importlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, monotonic_ns  # bound here, before workflow guards wrap them
from types import FrameType
from typing import Any

import msgspec

from perdure.core.error_codes import error_for
from perdure.core.errors import Failure, NotRegistered, PayloadMissing, clip
from perdure.core.payloads import Reference
from perdure.core.retry import End
from perdure.core.work import LogLine, Report
from perdure.sdk import registry
from perdure.sdk.captured_output import OutputBuffer
from perdure.sdk.payloads.access import blob_access
from perdure.sdk.payloads.process_access import ProcessAccess
from perdure.sdk.secrets.known import known
from perdure.sdk.worker import output
from perdure.sdk.worker.attempts import Attempt, AttemptCancelled, AttemptHost, Slot, current_slot, pulse_of
from perdure.sdk.worker.cpu_time import process_cpu_us
from perdure.sdk.worker.output import FLUSH_LINES, FLUSH_S
from perdure.sdk.worker.process_contents import blob_file, secret_found, spooled_contents, with_contents
from perdure.sdk.worker.process_messages import (
    Answer,
    AttemptBegun,
    BlobFile,
    BlobWanted,
    Ended,
    OutputLines,
    ProcessCall,
    ProcessReady,
    Pulsed,
    SecretFound,
    SecretWanted,
    decode_answer,
    decode_order,
    encode,
)
from perdure.sdk.worker.reports import ended_report, error_report, success_report

KILL_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""
CHECK_S = 1.0
"""How often a silent child is checked: a process it forked may hold its pipe open after it has died."""
EXIT_S = 5.0
"""How long a child that closed its pipe may take to exit."""
PR_SET_PDEATHSIG = 1
MAIN_MODULES = ("__main__", "__mp_main__")


class TaskProcess:
    """One process. Its owner thread talks to it; `terminate` and `kill` may come from any thread."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(theirs, os.getpid()), name="perdure-child", daemon=True)
        try:
            self._process.start()
        finally:
            theirs.close()
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None
        self._ready = self._was_ready = self._began = False
        """It has started; it had when it got its attempt; it has begun with that."""

    def execute(
        self,
        attempt: Attempt,
        job: ProcessCall,
        host: AttemptHost,
        wrote: Callable[[Attempt, list[LogLine]], None],
        file_of: Callable[[Reference], Path],
    ) -> Report | str:
        """The report, or how the child died instead of giving one."""
        self._began, self._was_ready = False, self._ready
        with self._lock:
            self._attempt = attempt
        try:
            if attempt.cancelled:  # from here on `terminate` finds it
                return "it was cancelled"
            self._connection.send_bytes(encode(job))
            while True:
                match self._receive():
                    case Ended(report, contents):
                        return with_contents(report, contents)
                    case BlobWanted(reference):
                        self._connection.send_bytes(encode(blob_file(reference, file_of)))
                    case SecretWanted(name):
                        self._connection.send_bytes(encode(secret_found(attempt, host, name)))
                    case OutputLines(lines):
                        wrote(attempt, lines)
                    case Pulsed(details):
                        host.beat(attempt, details)
                    case ProcessReady():
                        self._ready = True
                    case AttemptBegun():
                        self._began = True
        except (EOFError, OSError):
            return self._death()
        finally:
            with self._lock:
                self._attempt = None

    def _receive(self) -> Answer:
        while not self._connection.poll(CHECK_S):
            if self._process.exitcode is not None:
                raise EOFError
        return decode_answer(self._connection.recv_bytes())

    def _death(self) -> str:
        with self._lock:  # from here on it gets no signal: its number may become another process's
            self._attempt = None
        self._process.join(EXIT_S)
        code = self._process.exitcode
        if code is None:
            return "it closed its connection"
        how = f"it was ended by {_signal_name(-code)}" if code < 0 else f"it exited with code {code}"
        if self._ready:
            return how
        return (
            f"{how} before it could begin; its own output says why. A script that is started directly must keep what it "
            'does under `if __name__ == "__main__":`, because every child imports it'
        )

    @property
    def died_idle(self) -> bool:
        """It had died before it got its attempt, which is not that one's doing."""
        return self._was_ready and not self._began

    def terminate(self, attempt: Attempt) -> None:
        """If it still runs this very attempt; so does `kill`."""
        with self._lock:
            if self._attempt is attempt:
                self._process.terminate()

    def kill(self, attempt: Attempt) -> None:
        with self._lock:
            if self._attempt is attempt:
                self._process.kill()

    def kill_any(self) -> None:
        with self._lock:
            if self._attempt is not None:
                self._process.kill()

    def discard(self) -> None:
        """Its owner is done with it."""
        self._connection.close()
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join(EXIT_S)
        with contextlib.suppress(ValueError):  # it is still there: nothing more can be done
            self._process.close()


class TaskProcesses:
    """The children of a lane: one per thread of it, replaced when it died."""

    def __init__(
        self,
        clock_us: Callable[[], int],
        host: AttemptHost,
        wrote: Callable[[Attempt, list[LogLine]], None],
        find: Callable[[str], Any],
        file_of: Callable[[Reference], Path],
    ) -> None:
        self._clock_us, self._host, self._wrote, self._find, self._file_of = clock_us, host, wrote, find, file_of
        self._by_thread: dict[int, TaskProcess] = {}

    def run(self, attempt: Attempt, given: bytes) -> Report:
        """In a thread of the lane. `given`: the input, with its stored values."""
        a = attempt._assignment
        started = self._clock_us()
        try:
            job = self._job(attempt, given)
            child = self._child()
        except Exception as e:
            return error_report(a, e, started, self._clock_us())
        attempt._runner = child
        answer = child.execute(attempt, job, self._host, self._wrote, self._file_of)
        if isinstance(answer, Report) and not attempt.cancelled:
            return answer
        self.leave()
        if child.died_idle and not attempt.cancelled:
            return self.run(attempt, given)
        now = self._clock_us()
        if attempt.cancelled:
            return ended_report(a, End.CANCELLED, started, now)
        failure = Failure("task_failed", f"the process that ran {a.name} died: {answer}", "ProcessDied")
        return ended_report(a, End.ERROR, started, now, failure)

    def _job(self, attempt: Attempt, given: bytes) -> ProcessCall:
        a = attempt._assignment
        if given is not a.input:
            a = msgspec.structs.replace(a, input=given)
        fn, sink = self._find(a.name).fn, attempt._host.sink
        tee = sink is None or sink.tee
        now_us, monotonic_us = self._clock_us(), monotonic_ns() // 1000
        return ProcessCall(
            fn.__module__, fn.__qualname__, a, sink is not None, tee, now_us, monotonic_us, dict(attempt._secrets or {})
        )

    def _child(self) -> TaskProcess:
        me = threading.get_ident()
        child = self._by_thread.get(me)
        if child is None:
            child = self._by_thread[me] = TaskProcess()
        return child

    def kill(self) -> None:
        for child in list(self._by_thread.values()):
            child.kill_any()

    def leave(self) -> None:
        """In a thread of the lane, when it ends or its child has."""
        child = self._by_thread.pop(threading.get_ident(), None)
        if child is not None:
            child.discard()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def serve(connection: Connection, parent: int) -> None:
    """The main function of a child."""
    _die_with(parent)
    # Ctrl-C reaches the whole group; what becomes of this attempt is for the parent to say. Not SIG_IGN: programs that the
    # task starts would inherit it.
    signal.signal(signal.SIGINT, _let_pass)
    # It is a daemon so that the parent does not wait for it at exit. The user's code may start processes all the same.
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    server = ProcessServer(connection)
    signal.signal(signal.SIGTERM, server.stop)
    server.run()


def _let_pass(number: int, frame: FrameType | None) -> None:
    pass


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before this took effect
            os._exit(1)


class ProcessServer:
    """Runs jobs in the main thread; a second one reads them, and sends what has been waiting."""

    sink: ProcessServer | None
    """Itself while output is captured: see captured_output.py."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._jobs: queue.SimpleQueue[ProcessCall] = queue.SimpleQueue()
        self._files: queue.SimpleQueue[BlobFile] = queue.SimpleQueue()
        self._secrets: queue.SimpleQueue[SecretFound] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._sending = threading.Lock()
        self._sender = 0
        """The thread that is sending: a finalizer that prints there must not send as well."""
        self._busy = False
        self._attempt: Attempt | None = None
        self._interruptible = self._stop_due = False
        """The user's code runs, and may be interrupted; it is to be as soon as a message is out."""
        self._output: OutputBuffer | None = None
        self._lines = 0
        self._flushed = float("-inf")
        self._ahead_us = 0
        self.tee = True
        self.sink = None

    def run(self) -> None:
        output.install()
        self._send(ProcessReady())
        threading.Thread(target=self._read, name="perdure-reader", daemon=True).start()
        while True:
            self._do(self._jobs.get())

    def _read(self) -> None:
        """Ends the process when its parent is gone, wherever the user's code is."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it must cut short what the main thread waits for
        try:
            while True:
                while not self._connection.poll(FLUSH_S if self._busy else None):
                    self._tick()
                self._busy = True
                order = decode_order(self._connection.recv_bytes())
                if isinstance(order, ProcessCall):
                    self._jobs.put(order)
                elif isinstance(order, SecretFound):
                    self._secrets.put(order)
                else:
                    self._files.put(order)
        except (EOFError, OSError):
            os._exit(1)

    def _send(self, message: Answer) -> None:
        data = encode(message)
        me = threading.get_ident()
        with self._sending:
            self._sender = me
            try:
                self._connection.send_bytes(data)
            finally:
                self._sender = 0
        if self._stop_due and me == threading.main_thread().ident:
            self._stop_due = False
            self._interrupt()

    def stop(self, number: int, frame: FrameType | None) -> None:
        """On SIGTERM, in the main thread: interrupt the attempt, wherever its code is, but not in the middle of a message."""
        attempt = self._attempt
        if attempt is None:  # the signal did not come from the worker
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        attempt.cancelled = True
        if self._sender == threading.get_ident():
            self._stop_due = True
        else:
            self._interrupt()

    def _interrupt(self) -> None:
        """Once: a second one would cut off what the first one made it clean up."""
        if self._interruptible:
            self._interruptible = False
            raise AttemptCancelled

    def _do(self, job: ProcessCall) -> None:
        a = job.assignment
        self._ahead_us = job.clock_us - job.monotonic_us
        self.sink, self.tee = (self if job.capture else None), job.tee
        self._output, self._lines = None, 0
        attempt = self._attempt = Attempt(a, self)
        for value, name in job.secrets.items():
            known.learn(name, value)
        context = contextvars.copy_context()
        slot = Slot(attempt)
        context.run(current_slot.set, slot)
        blobs = ProcessAccess(self._blob_file)
        context.run(blob_access.set, blobs)
        output.keep()
        self._send(AttemptBegun())
        started = self.now_us()
        report: Report | None = None
        began_us = process_cpu_us()
        try:
            report = self._call(job, attempt, context, started)
        except AttemptCancelled:  # it came when the code had just ended
            pass
        self._interruptible = self._stop_due = False
        if report is None or (attempt.cancelled and report.end is not End.SUCCESS):
            report = ended_report(a, End.CANCELLED, started, self.now_us())
        report.cpu_us = process_cpu_us() - began_us
        slot.attempt = self._attempt = None
        if attempt._output is not None:
            attempt._output.close()
            self._flush()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed, or of the user's making
                stream.flush()
        self._busy = False
        contents = spooled_contents(report.value)
        blobs.close()
        report.value = bytes(report.value)
        self._send(Ended(report, contents))

    def _call(self, job: ProcessCall, attempt: Attempt, context: contextvars.Context, started: int) -> Report:
        a = job.assignment
        try:
            self._interruptible = True
            attempt.raise_if_cancelled()
            task = find(job.module, job.qualname, a.name)
            args, kwargs = task.signature.decode_call(a.input)
            value = context.run(task.fn, *args, **kwargs)
            return success_report(a, task.signature.encode_result(value), started, self.now_us())
        except BaseException as e:
            return error_report(a, e, started, self.now_us())

    def _blob_file(self, reference: Reference) -> Path:
        self._send(BlobWanted(reference))
        answer = self._files.get()
        if answer.error:
            raise PayloadMissing(f"the blob cannot be read: {answer.error}")
        return Path(answer.path)

    def secret(self, attempt: Attempt, name: str) -> str:
        with self._asking:  # of several threads one at a time, so that each gets its own answer
            self._send(SecretWanted(name))
            answer = self._secrets.get()
        if answer.code:
            raise error_for(answer.code, answer.error)
        known.learn(name, answer.value)
        return answer.value

    def now_us(self) -> int:
        return monotonic_ns() // 1000 + self._ahead_us

    def grown(self, output: OutputBuffer, new: bool) -> None:
        self._output = output
        self._lines += 1
        if self._lines >= FLUSH_LINES or monotonic() - self._flushed >= FLUSH_S:
            self._flush()

    def _flush(self) -> None:
        if self._sender == threading.get_ident():
            return
        self._lines, self._flushed = 0, monotonic()
        lines = self._output.take() if self._output is not None else []
        if lines:
            self._send(OutputLines(lines))

    def beat(self, attempt: Attempt, details: bytes) -> None:
        pulse = pulse_of(attempt)
        if pulse.wait_s(monotonic(), details):
            pulse.waiting = True
        else:
            self._send(Pulsed(pulse.take(monotonic())))

    def _tick(self) -> None:
        if self._lines:
            self._flush()
        attempt = self._attempt
        if attempt is not None and attempt._pulse is not None and attempt._pulse.waiting:
            self.beat(attempt, b"")


def find(module: str, qualname: str, name: str) -> Any:
    """The task in this process: where its function is defined, else by its name."""
    found: Any = sys.modules["__main__"] if module in MAIN_MODULES else importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if getattr(found, "name", None) == name and hasattr(found, "signature"):
        return found
    try:
        return registry.tasks.get(name)
    except NotRegistered as e:
        raise NotRegistered(
            f"a child process cannot find the task {name!r}: it imported {module} and {qualname} is not a task there. Define "
            f"tasks with process=True at the top level of a module that can be imported ({clip(str(e))})"
        ) from None


def refuse_in_child_that_starts() -> None:
    """A worker inside a child that is still importing its main module would start the whole program over."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        raise RuntimeError(
            'this script starts Perdure while a child process imports it; put that under `if __name__ == "__main__":`'
        )
