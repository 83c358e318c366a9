"""The Cloud Run Admin API v2 on loopback, as far as jobs go: it reads requests by the schema of Google's own messages, refuses what the
documentation says is refused, has quotas, and runs the containers' commands as local processes.

    POST   /v2/PARENT/jobs?jobId=ID                 create, and start where start_execution_token is given
    GET    /v2/PARENT/jobs, /v2/PARENT/jobs/ID      list in pages, get
    DELETE /v2/PARENT/jobs/ID
    POST   /v2/PARENT/jobs/ID/executions/E:cancel
    GET    /v2/PARENT/jobs/ID/executions/E/tasks    exit codes

Images are names only: what begins with `missing/` stays pending. A file `lose-ID` in its folder kills the container without a word, as a machine that
fails does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from aiohttp import web
from google.cloud import run_v2
from google.protobuf import json_format

from tests.fakes.waiting import busy

IMAGE_ENV = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
JOB_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?\Z")
LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}\Z")
JOBS_MAX = 1_000
"""Of a project and region."""
NAME_AND_TOKEN_MAX = 62
TIMEOUT_S_MAX = 7 * 86_400
RETRIES_MAX = 10
KILL_S = 5.0
POLL_S = 0.05
Status = run_v2.ExecutionReference.CompletionStatus


class ApiError(Exception):
    def __init__(self, http: int, status: str, message: str) -> None:
        super().__init__(message)
        self.http, self.status = http, status


class CloudRun:
    def __init__(self, folder: Path, reads: int, writes: int) -> None:
        self.folder = folder
        self.jobs: dict[str, Any] = {}
        """By full name."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.cancelled: set[str] = set()
        self.codes: dict[str, int] = {}
        """Exit codes as processes have them: a signal is negative."""
        self.quotas = {"read": reads, "write": writes}
        self.used: dict[str, deque[float]] = defaultdict(deque)

    def spend(self, kind: str) -> None:
        used, now = self.used[kind], time.monotonic()
        while used and used[0] < now - 60:
            used.popleft()
        if len(used) >= self.quotas[kind]:
            raise ApiError(429, "RESOURCE_EXHAUSTED", f"Quota exceeded for quota metric '{kind} requests per minute'")
        used.append(now)

    def create(self, parent: str, ident: str, body: bytes) -> Any:
        self.spend("write")
        if not JOB_ID.match(ident):
            raise ApiError(400, "INVALID_ARGUMENT", f"job_id {ident!r} is not a valid name")
        name = f"{parent}/jobs/{ident}"
        job = parsed(body)
        checked(ident, job)
        if name in self.jobs:
            raise ApiError(409, "ALREADY_EXISTS", f"Resource '{ident}' already exists.")
        if len(self.jobs) >= JOBS_MAX:
            raise ApiError(429, "RESOURCE_EXHAUSTED", "Quota exceeded for the number of jobs")
        job.name = name
        job.create_time.GetCurrentTime()
        if job.start_execution_token:
            self.execute(job, ident)
        self.jobs[name] = job
        return operation(job)

    def execute(self, job: Any, ident: str) -> None:
        job.latest_created_execution.name = f"{ident}-{job.start_execution_token}"
        job.latest_created_execution.create_time.GetCurrentTime()
        job.latest_created_execution.completion_status = Status.EXECUTION_PENDING
        job.execution_count = 1
        self.tasks[job.name] = asyncio.create_task(self.run(job, ident))

    async def run(self, job: Any, ident: str) -> None:
        latest = job.latest_created_execution
        container = job.template.template.containers[0]
        while container.image.startswith("missing/") and job.name not in self.cancelled:
            await busy(POLL_S)
        if job.name in self.cancelled:
            latest.completion_status = Status.EXECUTION_CANCELLED
            return
        env = IMAGE_ENV | {e.name: e.value for e in container.env}
        env |= {"CLOUD_RUN_JOB": ident, "CLOUD_RUN_EXECUTION": latest.name, "CLOUD_RUN_TASK_INDEX": "0"}
        with (self.folder / f"{ident}.log").open("wb") as out:
            command = [*container.command, *container.args]
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, env=env, stdout=out, stderr=out, cwd="/tmp", start_new_session=True
                )
            except OSError:
                self.codes[job.name] = 127
                latest.completion_status = Status.EXECUTION_FAILED
                return
        latest.completion_status = Status.EXECUTION_RUNNING
        code = self.codes[job.name] = await self.wait(job, ident, process)
        latest.completion_time.GetCurrentTime()
        latest.completion_status = (
            Status.EXECUTION_CANCELLED
            if job.name in self.cancelled
            else Status.EXECUTION_SUCCEEDED
            if code == 0
            else Status.EXECUTION_FAILED
        )

    async def wait(self, job: Any, ident: str, process: asyncio.subprocess.Process) -> int:
        ended, began = asyncio.create_task(process.wait()), time.monotonic()
        kill_at = None
        while not ended.done():
            await asyncio.wait({ended}, timeout=POLL_S)
            if (self.folder / f"lose-{ident}").exists():
                kill_group(process, signal.SIGKILL)
            elif kill_at is None and (
                job.name in self.cancelled or time.monotonic() - began > job.template.template.timeout.seconds
            ):
                kill_group(process, signal.SIGTERM)
                kill_at = time.monotonic() + KILL_S
            elif kill_at is not None and time.monotonic() > kill_at:
                kill_group(process, signal.SIGKILL)
        kill_group(process, signal.SIGKILL)
        return ended.result()

    def get(self, name: str) -> Any:
        if name not in self.jobs:
            raise ApiError(404, "NOT_FOUND", f"Resource '{name}' was not found")
        return self.jobs[name]

    def list(self, parent: str, size: int, token: str) -> Any:
        names = sorted(name for name in self.jobs if name.startswith(f"{parent}/jobs/") and name > token)
        page = names[: min(size or 100, 100)]
        reply = run_v2.ListJobsResponse.pb()(jobs=[self.jobs[name] for name in page])
        if len(page) < len(names):
            reply.next_page_token = page[-1]
        return reply

    def tasks_of(self, name: str, execution: str) -> Any:
        if self.get(name).latest_created_execution.name != execution:
            raise ApiError(404, "NOT_FOUND", f"Resource '{execution}' was not found")
        reply = run_v2.ListTasksResponse.pb()()
        task = reply.tasks.add(name=f"{name}/executions/{execution}/tasks/{execution}-0")
        code = self.codes.get(name, 0)
        if code < 0:
            task.last_attempt_result.term_signal = -code
        task.last_attempt_result.exit_code = max(code, 0)
        return reply

    async def delete(self, name: str) -> Any:
        job = self.get(name)
        self.cancelled.add(name)
        self.jobs.pop(name)
        return operation(job)

    def cancel(self, name: str, execution: str) -> Any:
        job = self.get(name)
        latest = job.latest_created_execution
        if latest.name != execution:
            raise ApiError(404, "NOT_FOUND", f"Resource '{execution}' was not found")
        if latest.completion_status not in (Status.EXECUTION_PENDING, Status.EXECUTION_RUNNING):
            raise ApiError(400, "FAILED_PRECONDITION", "The execution has completed")
        self.cancelled.add(name)
        return operation(job)


def parsed(body: bytes) -> Any:
    """By the message's own schema: a key that it does not have is refused."""
    try:
        return json_format.Parse(body, run_v2.Job.pb()(), ignore_unknown_fields=False)
    except json_format.ParseError as e:
        raise ApiError(400, "INVALID_ARGUMENT", str(e)) from e


def checked(ident: str, job: Any) -> None:
    task = job.template.template
    wrong = (
        "exactly one container is needed"
        if len(task.containers) != 1
        else "the container has no image"
        if not task.containers[0].image
        else "max_retries is out of range"
        if not 0 <= task.max_retries <= RETRIES_MAX
        else "timeout is out of range"
        if not 0 < task.timeout.seconds <= TIMEOUT_S_MAX
        else "the job's name and the execution token are too long"
        if len(ident) + len(job.start_execution_token) > NAME_AND_TOKEN_MAX
        else "output-only fields are set"
        if job.name or job.uid
        else next(
            (
                f"label {k}={v} is not valid"
                for k, v in job.labels.items()
                if not (LABEL.match(k) and LABEL_VALUE.match(v))
            ),
            "",
        )
    )
    if wrong:
        raise ApiError(400, "INVALID_ARGUMENT", wrong)


def kill_group(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def operation(job: Any) -> dict[str, Any]:
    done = {"@type": "type.googleapis.com/google.cloud.run.v2.Job", **as_json(job)}
    return {
        "name": f"{job.name.partition('/jobs/')[0]}/operations/{os.urandom(8).hex()}",
        "done": True,
        "response": done,
    }


def as_json(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(message, use_integers_for_enums=True)


def routes(cloud: CloudRun) -> web.Application:
    @web.middleware
    async def errors(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as e:
            return web.json_response({"error": {"code": e.http, "message": str(e), "status": e.status}}, status=e.http)

    async def create(request: web.Request) -> web.Response:
        ident = request.query.get("jobId", "")
        return web.json_response(cloud.create(parent(request), ident, await request.read()))

    async def listed(request: web.Request) -> web.Response:
        cloud.spend("read")
        size, token = int(request.query.get("pageSize", 0)), request.query.get("pageToken", "")
        return web.json_response(as_json(cloud.list(parent(request), size, token)))

    async def get(request: web.Request) -> web.Response:
        cloud.spend("read")
        return web.json_response(as_json(cloud.get(name(request))))

    async def delete(request: web.Request) -> web.Response:
        cloud.spend("write")
        return web.json_response(await cloud.delete(name(request)))

    async def cancel(request: web.Request) -> web.Response:
        cloud.spend("write")
        return web.json_response(cloud.cancel(name(request), request.match_info["execution"]))

    async def tasks(request: web.Request) -> web.Response:
        cloud.spend("read")
        return web.json_response(as_json(cloud.tasks_of(name(request), request.match_info["execution"])))

    def parent(request: web.Request) -> str:
        return f"projects/{request.match_info['project']}/locations/{request.match_info['location']}"

    def name(request: web.Request) -> str:
        return f"{parent(request)}/jobs/{request.match_info['job']}"

    app = web.Application(middlewares=[errors])
    base = "/v2/projects/{project}/locations/{location}/jobs"
    app.router.add_post(base, create)
    app.router.add_get(base, listed)
    app.router.add_get(base + "/{job}", get)
    app.router.add_delete(base + "/{job}", delete)
    app.router.add_post(base + "/{job}/executions/{execution:[^:]+}:cancel", cancel)
    app.router.add_get(base + "/{job}/executions/{execution}/tasks", tasks)
    return app


async def serve(port: int, folder: Path, reads: int, writes: int) -> None:
    runner = web.AppRunner(routes(CloudRun(folder, reads, writes)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
