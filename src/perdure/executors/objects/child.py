"""The process that does the user's work: a command, or a Python function by call.py.

The work has a process group of its own, which ends with it. On Linux the kernel kills the work when `perdure job` dies, so that no work goes
on whose job counts as lost.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.core.limits import JOB_LINE_BYTES_MAX, JOB_RESULT_BYTES_MAX
from perdure.executors.command_output import NOTHING, as_text, value_of
from perdure.executors.objects.layout import SPEC_ENV, JobSpec

GRACE_S: Final = 5.0
"""Between SIGTERM and SIGKILL."""
EXIT_POLL_S: Final = 0.02
READ_BYTES: Final = 64 * 1024
INPUT_ENV_BYTES_MAX: Final = 32 * 1024
"""Input up to this size is in PERDURE_INPUT as well as on stdin and in PERDURE_INPUT_FILE."""
STDERR_BYTES: Final = 4_000
"""Bytes of the last complaints that an error shows."""
DIE_WITH_PARENT: Final = """\
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as e:
    sys.exit(f"{sys.argv[2]} was not started: {e.strerror}")
"""
"""PR_SET_PDEATHSIG with SIGKILL, then the command itself. A parent that died before that is noticed by its pid."""

Sink = Callable[[str, bytes], None]
"""Takes output: the stream's name and bytes."""


class WorkProcess:
    def __init__(self, spec: JobSpec, directory: Path, sink: Sink) -> None:
        self._spec, self._sink = spec, sink
        self._input, self._result, self._error = (directory / n for n in ("input.json", "result.json", "error.json"))
        self._tails: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._is_whole = True
        self._process: asyncio.subprocess.Process | None = None
        self._is_spawned = asyncio.Event()
        """The process exists, or could not be made."""

    async def run(self) -> int:
        """The exit code. Returns once the process and its output have ended."""
        try:
            self._process = await self._spawn()
        finally:
            self._is_spawned.set()
        out, err = self._process.stdout, self._process.stderr
        assert out is not None and err is not None
        reading = asyncio.gather(self._read("stdout", out), self._read("stderr", err))
        code = await self._exited(self._process)
        self._signal(signal.SIGKILL)  # what it left behind in its group would keep the pipes open
        await reading
        return code

    async def _spawn(self) -> asyncio.subprocess.Process:
        data = msgspec.json.encode(self._spec.merged_input)
        self._input.write_bytes(data)
        with self._input.open("rb") as stdin:
            return await asyncio.create_subprocess_exec(
                *argv_of(self._spec),
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment(data),
                cwd=self._spec.cwd or None,
                start_new_session=True,
            )

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after GRACE_S. To be called while `run` is under way."""
        await self._is_spawned.wait()
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE_S):
                await self._exited(process)
        except TimeoutError:
            self._signal(signal.SIGKILL)

    async def _exited(self, process: asyncio.subprocess.Process) -> int:
        """Its exit code. asyncio's own `wait` also waits for the pipes, which processes that it left behind may hold."""
        waiting = asyncio.create_task(process.wait())
        while process.returncode is None:
            await asyncio.wait({waiting}, timeout=EXIT_POLL_S)
        waiting.cancel()
        return process.returncode

    def value(self) -> bytes:
        """The result as JSON: the result file, or else the last JSON that it printed. Raises ValueError."""
        if self._result.is_file():
            if self._result.stat().st_size > JOB_RESULT_BYTES_MAX:
                raise ValueError(f"the result file has more than JOB_RESULT_BYTES_MAX={JOB_RESULT_BYTES_MAX} bytes")
            found = value_of(self._result.read_bytes(), True, as_text)
            if found is NOTHING:
                raise ValueError("the result file is not JSON")
        else:
            found = value_of(bytes(self._tails["stdout"]), self._is_whole, as_text)
        return b"null" if found is NOTHING else bytes(found)

    def complaint(self) -> str:
        """The end of what it wrote to stderr."""
        return bytes(self._tails["stderr"][-STDERR_BYTES:]).decode("utf-8", "replace").strip()

    def error(self) -> dict[str, Any]:
        """What a Python function raised; empty: nothing is known."""
        try:
            found: Any = msgspec.json.decode(self._error.read_bytes())
        except (OSError, msgspec.DecodeError):
            return {}
        return found if isinstance(found, dict) else {}

    async def _read(self, name: str, stream: asyncio.StreamReader) -> None:
        tail = self._tails[name]
        while data := await stream.read(READ_BYTES):
            self._sink(name, data)
            tail += data
            if len(tail) > 2 * JOB_LINE_BYTES_MAX:
                del tail[:-JOB_LINE_BYTES_MAX]
                if name == "stdout":
                    self._is_whole = False

    def _signal(self, number: int) -> None:
        assert self._process is not None
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended

    def _environment(self, data: bytes) -> dict[str, str]:
        spec = self._spec
        own = {
            k: v for k, v in os.environ.items() if not k.startswith("PERDURE_") and k not in (SPEC_ENV, "DATABASE_URL")
        }
        identity = {
            "PERDURE_JOB": spec.name,
            "PERDURE_RUN_ID": spec.run_id,
            "PERDURE_TASK_ID": spec.task_id,
            "PERDURE_TASK_NAME": spec.task_name,
            "PERDURE_ATTEMPT": str(spec.attempt),
            "PERDURE_WORKFLOW_NAME": spec.workflow_name,
            "PERDURE_INPUT_FILE": str(self._input),
            "PERDURE_RESULT_FILE": str(self._result),
            "PERDURE_ERROR_FILE": str(self._error),
        }
        if spec.parallel_index is not None:
            identity["PERDURE_PARALLEL_INDEX"] = str(spec.parallel_index)
        if spec.parallel_count is not None:
            identity["PERDURE_PARALLEL_COUNT"] = str(spec.parallel_count)
        if len(data) <= INPUT_ENV_BYTES_MAX:
            identity["PERDURE_INPUT"] = data.decode()
        if spec.trace:
            identity["TRACEPARENT"] = spec.trace
        return {**own, **spec.env, **identity}


def argv_of(spec: JobSpec) -> list[str]:
    if spec.python is not None:
        work = [sys.executable, "-m", "perdure.executors.objects.call", spec.python]
    elif isinstance(spec.command, str):
        work = ["/bin/sh", "-c", spec.command]
    else:
        work = spec.command or []
    return [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *work]
