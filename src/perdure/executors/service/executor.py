"""Calls services over HTTP: `POST URL/exec/SERVICE` with `{"input", "params"}`, answered by `{"result", "error"}`.

Phases of a job here:

    CALLING --answer--> ENDED
        \\--accepted: the end comes later, by callback--> ACCEPTED --reported to the server--> ENDED

Theory. A call that is under way lives in this worker alone: after a crash the next worker makes it again, under the same Idempotency-Key,
which is the name of the job. An accepted job lives in the service. The server records the acceptance and the end, so that any worker can
go on watching it and none calls again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar, Final
from urllib.parse import quote

import msgspec

from perdure.core import ids
from perdure.core.api import services as acts
from perdure.core.api.services import BeginCall, CallBegun, CallEnd, JobNames
from perdure.core.errors import AddressRefused, Failure, InvalidInput, PayloadTooLarge, Unavailable, clip
from perdure.core.jobs import SERVICE
from perdure.core.limits import SERVICE_CALLS_MAX, SERVICE_WAIT_S
from perdure.executors.http.exchange import (
    RETRYABLE,
    HttpClient,
    HttpFailed,
    HttpStatus,
    ServiceFailed,
    service_hosts,
    service_result,
)
from perdure.executors.http.services import checked_service, configured_allow, configured_services, parse_services
from perdure.executors.port import Executor, Job, JobFailed, JobLost, JobRefused, JobRunning, JobState, JobSucceeded
from perdure.executors.service.balance import Balancer, CallTarget
from perdure.executors.service.spec import ServiceCall, read_call, secret_names

CALLBACK_HEADER: Final = "X-Perdure-Callback"
KEY_HEADER: Final = "Idempotency-Key"
ACCEPTED_STATUS: Final = 202
PLACE_WAIT_S: Final = 2.0
"""How long a job waits here for a free place; then it is tried again later, perhaps elsewhere."""
NO_INSTANCE_PAUSE_S: Final = 1.0
"""Between two questions for an instance where none is online."""
UNAVAILABLE_PAUSE_S: Final = 1.0
"""Between two tries to tell the server about an accepted job."""


class ServiceExecutorOptions(msgspec.Struct, frozen=True, kw_only=True):
    services: str | dict[str, str] | None = None
    """Services with a fixed address: `name=url`, separated by commas; default: PERDURE_SERVICES."""
    allow: str | None = None
    """Hosts and networks that calls may reach beside the public internet, separated by commas; default: PERDURE_HTTP_ALLOW."""
    secrets: str = ""
    """Variables of the worker that calls may send, separated by commas."""
    calls_max: int = SERVICE_CALLS_MAX
    """Calls under way at a time."""
    wait_s: float = SERVICE_WAIT_S
    """How long a call waits for an instance where none is online."""


class Busy(Exception):
    """There is no free place for another call."""


class CallPhase(Enum):
    CALLING = "calling"
    ACCEPTED = "accepted"
    ENDED = "ended"


class CallState:
    """A job of this worker."""

    def __init__(self, job: Job, call: ServiceCall, now_us: int) -> None:
        self.job, self.call = job, call
        self.phase = CallPhase.CALLING
        self.state: JobState = JobRunning(now_us)
        self.was_accepted = False
        """The server has a record of it."""
        self.task: asyncio.Task[None] | None = None


class ServiceExecutor(Executor):
    Options = ServiceExecutorOptions
    name: ClassVar[str] = SERVICE
    poll_s = 1.0
    keep_s = 0.0

    options: ServiceExecutorOptions

    def __init__(self, options: ServiceExecutorOptions | None = None) -> None:
        super().__init__(options)
        o = self.options
        self._services = _services(o.services)
        self._secrets = secret_names(o.secrets)
        allow = configured_allow() if o.allow is None else o.allow.split(",")
        # A connection to a configured service must not serve an instance, to which its address may be closed: one client each.
        self._client = HttpClient(allow)
        self._own_client = (
            HttpClient([*allow, *service_hosts(self._services.values())]) if self._services else self._client
        )
        self._balancer = Balancer()
        self._jobs: dict[str, CallState] = {}
        self._places = asyncio.Semaphore(o.calls_max)

    async def close(self) -> None:
        tasks = [s.task for s in self._jobs.values() if s.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()
        await self._own_client.close()

    def can_move(self, job: Job) -> bool:
        """A call under way would be made again elsewhere."""
        known = self._jobs.get(job.name)
        return known is None or known.phase is CallPhase.ACCEPTED

    async def start(self, job: Job) -> None:
        if job.name in self._jobs:
            return
        call = read_call(job, self._secrets, os.environ)
        if call.secrets and call.service and call.service not in self._services:
            raise JobRefused(
                f"{call.shown} registers its own instances, to which no secret is sent: give the call a url, or "
                f"configure the service with PERDURE_SERVICES={call.service}=https://..."
            )
        begun = await self._begin(job, call)
        entry = CallState(job, call, self.host.now_us())
        if begun.end is not None or begun.is_accepted:
            entry.was_accepted = True
            entry.phase = CallPhase.ACCEPTED
            self._jobs[job.name] = entry
            if begun.end is not None:
                self._reported(entry, begun.end)
            return
        await self._place()
        self._jobs[job.name] = entry
        entry.task = asyncio.create_task(self._run(entry, begun))
        entry.task.add_done_callback(
            lambda _: self._places.release()
        )  # also of one that is cancelled before its first step

    async def _place(self) -> None:
        try:
            async with asyncio.timeout(PLACE_WAIT_S):
                await self._places.acquire()
        except TimeoutError:
            raise Busy(f"calls_max={self.options.calls_max} calls of services are under way here") from None

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        waiting = [j.name for j in jobs if j.name in self._jobs and self._jobs[j.name].phase is CallPhase.ACCEPTED]
        if waiting:
            found = await self.host.call(acts.CALL_ENDS, JobNames(waiting))
            for end in found.ends:
                self._reported(self._jobs[end.job], end)
        return [entry.state if (entry := self._jobs.get(job.name)) else JobLost("it is not known here") for job in jobs]

    async def cancel(self, job: Job) -> None:
        entry = self._jobs.get(job.name)
        if entry is not None and entry.phase is not CallPhase.ENDED:
            if entry.task is not None:
                entry.task.cancel()
            self._end(entry, JobFailed(Failure("task_cancelled", "the call was cancelled")))

    async def forget(self, job: Job) -> None:
        entry = self._jobs.pop(job.name, None)
        if entry is not None and entry.was_accepted:
            await self.host.call(acts.CLOSE_CALL, JobNames([job.name]))

    async def _begin(self, job: Job, call: ServiceCall) -> CallBegun:
        asked = "" if call.service in self._services else call.service
        return await self.host.call(acts.BEGIN_CALL, BeginCall(asked, job.name))

    def _end(self, entry: CallState, state: JobState) -> None:
        entry.phase, entry.state = CallPhase.ENDED, state
        self.host.changed(entry.job.name)

    def _reported(self, entry: CallState, end: CallEnd) -> None:
        """The service has sent the end to the callback URL."""
        if entry.phase is CallPhase.ACCEPTED:
            answer = {"result": msgspec.Raw(end.result), "error": end.error}
            self._end(entry, _outcome(entry.call, answer))

    async def _run(self, entry: CallState, begun: CallBegun) -> None:
        try:
            state = await self._call(entry, begun)
        except asyncio.CancelledError:
            raise
        except Exception as e:  # a defect here must not leave the job without an end
            text = clip(entry.call.masked(f"{type(e).__name__}: {e}"))
            state = JobFailed(Failure("task_failed", text, type(e).__name__))
        if state is None:
            entry.phase, entry.task = CallPhase.ACCEPTED, None
            self.host.changed(entry.job.name)
        else:
            self._end(entry, state)

    async def _call(self, entry: CallState, begun: CallBegun) -> JobState | None:
        """The end of the job; None: a service has accepted it."""
        call, loop = entry.call, asyncio.get_running_loop()
        tried: set[str] = set()
        give_up_at = loop.time() + self.options.wait_s
        calls = 0
        while True:
            targets = self._targets(call, begun)
            target = self._balancer.choose(call.service, targets, tried, loop.time(), is_weighted=call.is_weighted)
            if target is None:
                if loop.time() >= give_up_at:
                    return _no_instance(call, self.options.wait_s)
                begun = await self._ask_again(entry, begun, NO_INSTANCE_PAUSE_S)
                continue
            calls += 1
            tried.add(target.url)
            try:
                return await self._post(entry, target, begun.callback_url)
            except (AddressRefused, HttpFailed, HttpStatus) as e:
                others = any(t.url not in tried for t in targets)
                failed = _failed(call, e)
                if failed.is_final and not (isinstance(e, AddressRefused) and others):
                    return failed
                if calls >= call.max_attempts:
                    return failed
                self.host.warn(entry.job.name, f"call {calls} of {call.max_attempts}: {failed.failure.message}")
            begun = await self._ask_again(entry, begun, call.delay_s)

    def _targets(self, call: ServiceCall, begun: CallBegun) -> list[CallTarget]:
        if call.url:
            return [CallTarget(call.url)]
        path = f"/exec/{quote(call.service, safe='')}"
        if call.service in self._services:
            return [CallTarget(self._services[call.service] + path)]
        return [CallTarget(i.url + path, i.load) for i in begun.instances]

    async def _ask_again(self, entry: CallState, begun: CallBegun, pause_s: float) -> CallBegun:
        """The instances as they are after a pause; as they were where the server does not answer."""
        await asyncio.sleep(pause_s)
        if entry.call.url or entry.call.service in self._services:
            return begun
        try:
            return await self._begin(entry.job, entry.call)
        except Unavailable:
            return begun

    async def _post(self, entry: CallState, target: CallTarget, callback_url: str) -> JobState | None:
        call = entry.call
        client = self._own_client if call.service in self._services else self._client
        self._balancer.began(target.url)
        try:
            answer = await client.send(
                target.url,
                "POST",
                headers={**call.headers, **_own_headers(entry.job, callback_url)},
                body=call.body,
                timeout=call.timeout_s,
            )
        except HttpFailed:
            self._balancer.is_away(target.url, asyncio.get_running_loop().time())
            raise
        except AddressRefused:
            raise  # another instance may be allowed
        except (PayloadTooLarge, InvalidInput) as e:
            return JobFailed(Failure(e.code, clip(call.masked(str(e))), type(e).__name__), is_final=True)
        finally:
            self._balancer.ended(target.url)
        self._balancer.answered(target.url)
        if _is_accepted(answer):
            return await self._accept(entry, callback_url)
        return _outcome(call, answer["body"])

    async def _accept(self, entry: CallState, callback_url: str) -> JobState | None:
        if not callback_url:
            text = (
                f"{entry.call.shown} accepted the job to report its end later, and there is no server that could receive "
                "that: set PERDURE_URL to the server's address"
            )
            return JobFailed(Failure("task_failed", text, "ServiceFailed"), is_final=True)
        while True:
            try:
                await self.host.call(acts.ACCEPT_CALL, JobNames([entry.job.name]))
                entry.was_accepted = True
                return None
            except Unavailable:
                await asyncio.sleep(UNAVAILABLE_PAUSE_S)


def _services(given: str | dict[str, str] | None) -> dict[str, str]:
    if given is None:
        return configured_services()
    if isinstance(given, str):
        return parse_services(given.split(","))
    return {name: checked_service(name, url) for name, url in given.items()}


def _own_headers(job: Job, callback_url: str) -> dict[str, Any]:
    a = job.assignment
    headers: dict[str, Any] = {
        KEY_HEADER: job.name,
        "X-Perdure-Run-Id": ids.text(a.run_id),
        "X-Perdure-Task-Id": ids.text(ids.derive(a.run_id, ids.TASK, a.seq)),
        "X-Perdure-Attempt": a.attempt,
    }
    if callback_url:
        headers[CALLBACK_HEADER] = callback_url
    if a.trace:
        headers["traceparent"] = a.trace
    return headers


def _is_accepted(answer: dict[str, Any]) -> bool:
    body = answer["body"]
    is_end = isinstance(body, dict) and bool({"result", "error"} & body.keys())
    return not is_end and (
        answer["status"] == ACCEPTED_STATUS or (isinstance(body, dict) and body.get("accepted") is True)
    )


def _outcome(call: ServiceCall, answer: Any) -> JobState:
    try:
        value = service_result(call.service or call.url.partition("?")[0], answer)
    except ServiceFailed as e:
        return JobFailed(Failure("task_failed", clip(call.masked(str(e))), "ServiceFailed"))
    data = msgspec.json.encode(value)
    return JobSucceeded(call.masked(data.decode()).encode() if call.secrets else data)


def _failed(call: ServiceCall, error: AddressRefused | HttpFailed | HttpStatus) -> JobFailed:
    text = clip(call.masked(str(error)))
    if isinstance(error, AddressRefused):
        return JobFailed(Failure(error.code, text, "AddressRefused"), is_final=True)
    if isinstance(error, HttpFailed):
        return JobFailed(Failure("task_failed", text, "HttpFailed"))
    after_us = int((error.retry_after or 0) * 1e6)
    is_final = error.status < 500 and error.status not in RETRYABLE
    return JobFailed(Failure("task_failed", text, "HttpStatus", retry_after_us=after_us), is_final=is_final)


def _no_instance(call: ServiceCall, wait_s: float) -> JobFailed:
    text = (
        f"no instance of {call.shown} was online for {wait_s:g} s: start one that registers itself, "
        "see `perdure services`"
    )
    return JobFailed(Failure("task_failed", text, "ServiceUnavailable"))
