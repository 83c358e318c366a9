"""Creates a Job for each attempt, under the attempt's own name, and answers from a copy of the cluster's state.

Crashes of the worker:

    before the Job is created    nothing was started; the next worker starts it
    after it                     the name is taken (409): the next worker attaches

A Job that is cancelled or lost is not deleted but marked, and its pods are ended (parallelism 0): the mark makes it final, and starting it
again finds it. `forget` deletes it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from perdure.core.errors import Failure, clip
from perdure.core.limits import JOB_LINE_BYTES_MAX
from perdure.core.packages import missing
from perdure.executors.command_output import NOTHING, value_of
from perdure.executors.kubernetes.logs import PodLog, read_log
from perdure.executors.kubernetes.manifest import make_manifest, read_spec
from perdure.executors.kubernetes.mirror import Mirror
from perdure.executors.kubernetes.states import (
    CANCEL_MARK,
    LOST_MARK,
    Broke,
    Done,
    Gone,
    PodView,
    Runs,
    Stopped,
    Verdict,
    judge,
    needs_pods,
)
from perdure.executors.objects.attempts import ObjectAttempts
from perdure.executors.objects.layout import PLATFORM_STALE_S, START_S_MAX
from perdure.executors.objects.store import ObjectStore
from perdure.executors.port import (
    Executor,
    ExecutorHost,
    Job,
    JobFailed,
    JobLost,
    JobRefused,
    JobRunning,
    JobState,
    JobSucceeded,
)

POLL_S: Final = 5.0
TTL_S: Final = 86_400
"""A Job that no worker forgot is deleted by the cluster so long after it ended."""
FOLLOWED_MAX: Final = 100
"""Running jobs whose output is delivered while they run; that of others is delivered when they end."""
CALLS_MAX: Final = 16
"""Requests under way at a time."""
WATCHES: Final = 8
"""Connections beside them: two watches, and requests that stop and delete."""
REQUEST_S_MAX: Final = 30
TLS_CLOSE_S: Final = 0.25
"""aiohttp closes connections with TLS after its session; this is the time that its documentation names."""
STDERR_CHARS: Final = 4_000


class KubernetesOptions(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str = "default"
    image: str = ""
    """For specs without one."""
    store: str = ""
    """Where specs and outputs are: the URL of a bucket and a prefix. Empty: results come from what pods print."""
    env_from: str = ""
    """Secrets of the namespace with the store's credentials, as variables of every job's container; separated by commas."""
    kubeconfig: str = ""
    """Empty: the cluster that the worker runs in, or else the user's own file."""
    context: str = ""
    start_s: float = START_S_MAX
    """A job that has not begun after so long is lost."""
    ttl_s: int = TTL_S
    poll_s: float = POLL_S


class KubernetesExecutor(Executor):
    Options = KubernetesOptions
    name: ClassVar[str] = "kubernetes"

    options: KubernetesOptions

    def __init__(self, options: KubernetesOptions | None = None) -> None:
        super().__init__(options)
        self.poll_s = self.options.poll_s
        self._store = ObjectStore(self.options.store) if self.options.store else None
        self._attempts: ObjectAttempts | None = None
        self._logs: dict[str, PodLog] = {}
        self._following: dict[str, asyncio.Task[bool]] = {}
        """Logs of pods that are read as they grow."""
        self._delivering: set[str] = set()
        """Jobs with an object store whose output is read as it grows."""
        self._calls = asyncio.Semaphore(CALLS_MAX)

    async def open(self, host: ExecutorHost) -> None:
        await super().open(host)
        try:
            from kubernetes_asyncio import client
        except ImportError as e:
            raise missing("the executor for Kubernetes", "kubernetes") from e
        self._api = client.ApiClient(await _configuration(self.options))
        # Any: answers are read as raw JSON, which the client's types do not know.
        self._batch: Any = client.BatchV1Api(self._api)
        self._core: Any = client.CoreV1Api(self._api)
        if self._store is not None:
            self._attempts = ObjectAttempts(self._store, host, start_s=self.options.start_s, stale_s=PLATFORM_STALE_S)
        self._mirror = Mirror(self._batch, self._core, self.options.namespace, host.changed)
        self._mirror.open()

    async def close(self) -> None:
        for task in self._following.values():
            task.cancel()
        await asyncio.gather(*self._following.values(), return_exceptions=True)
        await self._mirror.close()
        await self._api.close()
        await asyncio.sleep(TLS_CLOSE_S)

    async def start(self, job: Job) -> None:
        wanted = read_spec(job, self.options.image, self._attempts is not None)
        spec_url = ""
        if wanted.uses_store:
            assert self._attempts is not None
            await self._attempts.write_spec(job, wanted.work)
            spec_url = self._attempts.spec_url(job)
        manifest = make_manifest(
            job,
            wanted,
            image=self.options.image,
            spec_url=spec_url,
            ttl_s=self.options.ttl_s,
            env_from=tuple(filter(None, self.options.env_from.split(","))),
        )
        await self._create(manifest)

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        await self._mirror.fresh()
        return list(await asyncio.gather(*(self._observe(job) for job in jobs)))

    async def cancel(self, job: Job) -> None:
        if self._attempts is not None and self._uses_store(job):
            await self._attempts.cancel(job)
        await self._mark(job, CANCEL_MARK, "the run does not need it any more")

    async def forget(self, job: Job) -> None:
        self._drop(job)
        response = await self._batch.delete_namespaced_job(
            job.name, self.options.namespace, propagation_policy="Background", **_RAW
        )
        await _checked(response, 404)
        self._mirror.remove(job.name)
        if self._attempts is not None and self._uses_store(job):
            await self._attempts.forget(job)

    async def _create(self, manifest: dict[str, Any]) -> None:
        async with self._calls:
            response = await self._batch.create_namespaced_job(self.options.namespace, manifest, **_RAW)
            async with response:
                data = await response.read()
                if response.status in (400, 403, 422) and not _may_be_repeated(response.status, data):
                    raise JobRefused(f"Kubernetes refuses the Job: {_message(data)}")
                if response.status != 409:
                    response.raise_for_status()
                    self._mirror.put_job(msgspec.json.decode(data))

    async def _observe(self, job: Job) -> JobState:
        if job.name not in self._mirror.jobs:
            await self._fetch(job)
        pods = list(self._mirror.pods.get(job.name, {}).values())
        verdict = self._judge(job, pods)
        if needs_pods(verdict, pods):
            # Jobs and pods are two watches: the Job's end may be here before that of its pod.
            async with self._calls:
                pods = await self._mirror.read_pods(job.name)
            verdict = self._judge(job, pods)
        if isinstance(verdict, Runs):
            if verdict.started_us:
                await self._follow(job, pods)
            return JobRunning(verdict.started_us)
        self._delivering.discard(job.name)
        async with self._calls:
            return await self._ended(job, verdict)

    def _judge(self, job: Job, pods: Sequence[PodView]) -> Verdict:
        return judge(self._mirror.jobs.get(job.name), pods, time.time(), self.options.start_s)

    async def _fetch(self, job: Job) -> None:
        """A job that the copy does not have yet, or not any more."""
        async with self._calls:
            response = await self._batch.read_namespaced_job(job.name, self.options.namespace, **_RAW)
            async with response:
                if response.status != 404:
                    response.raise_for_status()
                    self._mirror.put_job(msgspec.json.decode(await response.read()))

    async def _ended(self, job: Job, verdict: Verdict) -> JobState:
        match verdict:
            case Gone(why, is_marked):
                if not is_marked:
                    await self._mark(job, LOST_MARK, why)
                    if self._attempts is not None and self._uses_store(job):
                        await self._attempts.lose(job, why)
                return JobLost(why)
            case Stopped():
                return JobFailed(Failure("task_failed", "the job was cancelled", "Cancelled"))
            case Done(pod) | Broke(pod):
                return await self._outcome(job, verdict, pod)
            case Runs():
                raise AssertionError(verdict)

    async def _outcome(self, job: Job, verdict: Done | Broke, pod: PodView | None) -> JobState:
        if self._attempts is not None and self._uses_store(job):
            said = await self._attempts.ended(job)
            if said is not None:
                return said
            if isinstance(verdict, Done):
                return await self._ended(job, Gone("the container ended without writing a status to the object store"))
        log = await self._whole_log(job, pod)
        if isinstance(verdict, Done):
            return _value(pod, log)
        complaint = bytes(log.tail[-STDERR_CHARS:]).decode("utf-8", "replace").strip()
        text = clip(f"{verdict.text}\n{complaint}" if complaint else verdict.text)
        code = "task_timeout" if verdict.kind == "TimeoutError" else "task_failed"
        return JobFailed(Failure(code, text, verdict.kind), is_final=verdict.is_final)

    async def _whole_log(self, job: Job, pod: PodView | None) -> PodLog:
        """The end of the log; what was not delivered yet is."""
        following = self._following.pop(job.name, None)
        is_read = following is not None and await _finished(following)
        log = self._log(job)
        if pod is not None and not is_read:
            try:
                await read_log(self._core, self.options.namespace, pod.metadata.name, log, follow=False)
            except Exception as e:
                self.host.warn(job.name, f"the log of pod {pod.metadata.name} cannot be read: {type(e).__name__}: {e}")
        self._logs.pop(job.name, None)
        return log

    async def _follow(self, job: Job, pods: Sequence[PodView]) -> None:
        """Deliver what a running job prints, for FOLLOWED_MAX of them."""
        if self._attempts is not None and self._uses_store(job):
            if len(self._delivering) < FOLLOWED_MAX or job.name in self._delivering:
                self._delivering.add(job.name)
                await self._attempts.follow(job)
            return
        if job.name not in self._following and len(self._following) < FOLLOWED_MAX:
            pod = next((p for p in pods if p.container.running is not None), None)
            if pod is not None:
                work = read_log(self._core, self.options.namespace, pod.metadata.name, self._log(job), follow=True)
                self._following[job.name] = asyncio.create_task(_quiet(work))

    def _log(self, job: Job) -> PodLog:
        found = self._logs.get(job.name)
        return (
            found
            if found is not None
            else self._logs.setdefault(job.name, PodLog(lambda text: self.host.write(job.name, "stdout", text)))
        )

    def _drop(self, job: Job) -> None:
        self._delivering.discard(job.name)
        self._logs.pop(job.name, None)
        following = self._following.pop(job.name, None)
        if following is not None:
            following.cancel()

    def _uses_store(self, job: Job) -> bool:
        return job.spec.get("result") != "log"

    async def _mark(self, job: Job, mark: str, why: str) -> None:
        """Make an end final, and end the pods."""
        patch = {"metadata": {"annotations": {mark: clip(why, 2_000)}}, "spec": {"parallelism": 0}}
        response = await self._batch.patch_namespaced_job(
            job.name, self.options.namespace, patch, _content_type="application/merge-patch+json", **_RAW
        )
        data = await _checked(response, 404)
        if data is not None:
            self._mirror.put_job(data)


_RAW: Final[dict[str, Any]] = {"_preload_content": False, "_request_timeout": REQUEST_S_MAX}


async def _configuration(options: KubernetesOptions) -> Any:
    from kubernetes_asyncio import client, config

    found = client.Configuration()
    if options.kubeconfig or "KUBERNETES_SERVICE_HOST" not in os.environ:
        await config.load_kube_config(
            config_file=options.kubeconfig or None, context=options.context or None, client_configuration=found
        )
    else:
        config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
    found.connection_pool_maxsize = FOLLOWED_MAX + CALLS_MAX + WATCHES
    return found


async def _checked(response: Any, *allowed: int) -> Any:
    """The answer as JSON; None where the status is one of `allowed`."""
    async with response:
        data = await response.read()
        if response.status in allowed:
            return None
        response.raise_for_status()
        return msgspec.json.decode(data)


async def _quiet(work: Any) -> bool:
    """Whether it was read to its end; what is missing is read when the job ends."""
    try:
        await work
    except Exception:
        return False
    return True


async def _finished(following: asyncio.Task[bool]) -> bool:
    await asyncio.wait({following}, timeout=REQUEST_S_MAX)
    if following.done():
        return following.result()
    following.cancel()
    return False


def _value(pod: PodView | None, log: PodLog) -> JobState:
    """The termination message, or else the last JSON that the container printed."""
    end = pod.container.terminated if pod is not None else None
    found: Any = NOTHING
    if end is not None and end.message.strip():
        found = value_of(end.message.encode(), True)
    if found is NOTHING:
        found = value_of(bytes(log.tail), log.is_whole)
    value = msgspec.json.encode(None if found is NOTHING else found)
    if len(value) > JOB_LINE_BYTES_MAX:
        text = f"the last line has more than JOB_LINE_BYTES_MAX={JOB_LINE_BYTES_MAX} bytes: use an object store"
        return JobFailed(Failure("payload_too_large", text, "PayloadTooLarge"), is_final=True)
    return JobSucceeded(value)


def _message(data: bytes) -> str:
    try:
        found: Any = msgspec.json.decode(data)
        return str(found.get("message") or found)
    except (msgspec.DecodeError, AttributeError):
        return data[:500].decode("utf-8", "replace")


def _may_be_repeated(status: int, data: bytes) -> bool:
    """A quota that is used up has room later."""
    return status == 403 and b"exceeded quota" in data
