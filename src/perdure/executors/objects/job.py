"""The job's side of the protocol: what `perdure job` does. It needs the store and the spec, and no server.

fetch spec -> create claim -> status running -> heartbeats, output, cancel -> work -> output -> status success or failed -> exit 0 or 1
                 \\-> the claim exists: exit 0, the work runs elsewhere or has ended
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.core.errors import InvalidInput, clip
from perdure.executors.objects import layout
from perdure.executors.objects.child import WorkProcess
from perdure.executors.objects.job_output import JobOutput
from perdure.executors.objects.layout import JobSpec, ReportedStatus
from perdure.executors.objects.store import ObjectStore, split_url

WRITE_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0, 10.0)
"""Between tries to write the end of a job. After the last the job counts as lost."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class JobProcess:
    """One attempt, from its spec to its status."""

    def __init__(self, store: ObjectStore, spec: JobSpec) -> None:
        self._store, self._spec = store, spec
        self._token = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(8).hex()}"
        self._output = JobOutput(store)
        self._stop = asyncio.get_running_loop().create_future()
        """Its result says why the work has to end."""

    async def run(self) -> int:
        if not await self._claim():
            return 0
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._stopped, f"it got {number.name}")
        await self._persist(lambda: self._write(layout.STATUS, ReportedStatus(status="running", at=time.time())))
        beside = [asyncio.create_task(work) for work in (self._beat(), self._watch_cancel())]
        uploading = asyncio.create_task(self._output.upload())
        with tempfile.TemporaryDirectory(prefix="perdure-job-") as directory:
            status = await self._work(WorkProcess(self._spec, Path(directory), self._output.add))
        self._output.finish()
        await uploading
        await self._persist(self._output.flush)
        await self._persist(lambda: self._write(layout.STATUS, status))
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        return 0 if status.status == "success" else 1

    def _stopped(self, why: str) -> None:
        if not self._stop.done():
            self._stop.set_result(why)

    async def _claim(self) -> bool:
        claim = msgspec.json.encode({"by": self._token, "at": time.time()})
        if await self._store.create(layout.CLAIM, claim):
            return True
        # A request that was repeated because its answer was lost finds its own claim.
        if await self._store.get(layout.CLAIM, layout.OBJECT_BYTES_MAX) == claim:
            return True
        _say(f"{self._store.url} is claimed by another process: there is nothing to do")
        return False

    async def _work(self, child: WorkProcess) -> ReportedStatus:
        """How the work ended."""
        running = asyncio.create_task(child.run())
        limit = self._spec.timeout_s
        await asyncio.wait({running, self._stop}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            status = self._cut_off(limit)
            await child.stop()
            await asyncio.gather(running, return_exceptions=True)
            return status
        try:
            return await self._finished(child, running.result())
        except (OSError, ValueError) as e:
            return _failed(f"{type(e).__name__}: {e}", type(e).__name__, is_final=isinstance(e, ValueError))

    def _cut_off(self, limit: float | None) -> ReportedStatus:
        if self._stop.done():
            return ReportedStatus(status="cancelled", error=self._stop.result(), at=time.time())
        return _failed(f"the work did not end within its timeout of {limit:g} s", "TimeoutError")

    async def _finished(self, child: WorkProcess, code: int) -> ReportedStatus:
        meaning = self._spec.exit_codes.get(str(code), "success" if code == 0 else "retry")
        if meaning == "success":
            value = child.value()
            await self._persist(lambda: self._store.put(layout.OUTPUT, value))
            return ReportedStatus(status="success", exit_code=code, at=time.time())
        raised = child.error()
        said = raised.get("error") or f"the work {_how(code)}" + (f"\n{c}" if (c := child.complaint()) else "")
        return _failed(str(said), str(raised.get("type") or "ExitCode"), code, is_final=meaning == "fail")

    async def _beat(self) -> None:
        """Heartbeats. If they cannot be written for a while the work ends: the executor is about to count it as lost."""
        loop = asyncio.get_running_loop()
        written, fence_s = loop.time(), layout.FENCE * self._spec.stale_s
        while True:
            began = loop.time()
            try:
                beat = msgspec.json.encode({"at": time.time(), "by": self._token})
                await self._store.put(layout.HEARTBEAT, beat)
                written = began
            except Exception as e:
                _say(f"the heartbeat was not written: {type(e).__name__}: {e}")
                if loop.time() - written > fence_s:
                    self._stopped(f"the heartbeat could not be written for {fence_s:g} s")
            await asyncio.sleep(self._spec.heartbeat_s if written == began else min(1.0, self._spec.heartbeat_s))

    async def _watch_cancel(self) -> None:
        while True:
            try:
                if await self._store.get(layout.CANCEL, layout.OBJECT_BYTES_MAX) is not None:
                    self._stopped("it was cancelled")
            except Exception as e:
                _say(f"{layout.CANCEL} was not read: {type(e).__name__}: {e}")
            await asyncio.sleep(min(layout.CANCEL_POLL_S, self._spec.heartbeat_s))

    async def _persist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write what must not be missing."""
        for pause_s in WRITE_PAUSES_S:
            try:
                await write()
                return
            except Exception as e:
                _say(f"the store cannot be written: {type(e).__name__}: {e}")
                await asyncio.sleep(pause_s)
        await write()

    async def _write(self, name: str, value: Any) -> None:
        await self._store.put(name, msgspec.json.encode(value))


def run_job(spec_url: str) -> int:
    """Run the job of a spec. The exit code."""
    return asyncio.run(_run(spec_url))


async def _run(spec_url: str) -> int:
    place, name = split_url(spec_url)
    store = ObjectStore(place)
    data = await store.get(name, layout.SPEC_BYTES_MAX)
    if data is None:
        raise InvalidInput(f"there is no spec at {spec_url}: it was removed, or {layout.SPEC_ENV} is wrong")
    try:
        spec = msgspec.json.decode(data, type=JobSpec)
    except msgspec.DecodeError as e:
        raise InvalidInput(f"{spec_url} is no spec of a job: {e}") from e
    if spec.version > layout.VERSION:
        raise InvalidInput(
            f"{spec_url} has version {spec.version}; this Perdure knows {layout.VERSION}: install a newer one"
        )
    return await JobProcess(store, spec).run()


def _failed(error: str, kind: str, code: int | None = None, is_final: bool = False) -> ReportedStatus:
    return ReportedStatus(
        status="failed", error=clip(error), error_type=kind, exit_code=code, is_final=is_final, at=time.time()
    )


def _how(code: int) -> str:
    number = -code if code < 0 else code - 128
    try:
        return f"was ended by {signal.Signals(number).name}" if code < 0 or code > 128 else f"exited with code {code}"
    except ValueError:
        return f"exited with code {code}"


def _say(text: str) -> None:
    sys.stderr.write(f"perdure job: {text}\n")
    sys.stderr.flush()
