"""Brings containers up, follows them, and finds them again after the worker was restarted.

Theory. A container has the name of its job, so Docker or Podman refuses a second one. One loop per job asks what there is and takes the next
step, hence it does not matter who took the steps before, nor where a worker crashed:

    what there is                    what happens
    nothing, never started           get the image, create the container
    nothing, started before          Lost: it was removed
    created                          write its input, note that it starts, start it
    running                          follow its output
    exited                           read its result, end

That it starts is noted on disk before it is started. After the machine was restarted, what was noted before is Lost: what Podman says of
such a container is not how it ended.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar, Final

import msgspec

from perdure.core.errors import Failure, InvalidInput, SecretMissing, SecretUnavailable, clip
from perdure.core.jobs import CONTAINER
from perdure.core.limits import JOB_RESULT_BYTES_MAX
from perdure.executors.command_output import complaint, mask, outcome
from perdure.executors.commands import SECRET_KEYS
from perdure.executors.container.engine_api import (
    ContainerState,
    EngineApi,
    EngineError,
    EngineUnreachable,
    find_socket,
)
from perdure.executors.container.images import credentials
from perdure.executors.container.output import ContainerOutput
from perdure.executors.container.spec import (
    FILES,
    FILES_DIR,
    ContainerOptions,
    ContainerSpec,
    command_rules,
    read_spec,
)
from perdure.executors.job_dirs import AgentDirs, default_state_dir, read_job, write_job
from perdure.executors.port import (
    Executor,
    ExecutorHost,
    Job,
    JobFailed,
    JobLost,
    JobRefused,
    JobRunning,
    JobSecrets,
    JobState,
)

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Between steps that did not work; the last one repeats."""
REFUSALS_MAX: Final = 3
"""Times that Docker or Podman may refuse a step before the job has failed."""
IMAGES_MAX: Final = 1_000
"""Images whose pulls are kept apart."""
WRITABLE: Final = 0o777
_KILLED: Final = 137


class ContainerJob:
    """A job, and the container it has or is to have."""

    def __init__(self, job: Job, place: Path) -> None:
        self.job, self.place = job, place
        self.spec: ContainerSpec | None = None
        """None: it cannot be read any more, because what the worker allows has changed."""
        self.state: JobState = JobRunning()
        self.secrets: JobSecrets | None = None
        self.unmasked: Failure | None = None
        """Why its secrets are not known: what it writes cannot be shown."""
        self.is_stopping = False
        self.refusals = 0
        self.driver: asyncio.Task[None] | None = None
        self.output: ContainerOutput

    @property
    def is_over(self) -> bool:
        return not isinstance(self.state, JobRunning)


class ContainerExecutor(Executor):
    Options = ContainerOptions
    name: ClassVar[str] = CONTAINER
    poll_s = 30.0
    holds_slot = True
    secret_keys: ClassVar[tuple[str, ...]] = SECRET_KEYS
    keep_s = 0.0

    options: ContainerOptions

    def __init__(self, options: ContainerOptions | None = None) -> None:
        super().__init__(options)
        self._rules = command_rules(self.options)
        root = Path(self.options.state_dir or default_state_dir()) / "containers" / (self.options.scope or "default")
        self._dirs = AgentDirs(root, f"{os.getpid()}-{os.urandom(4).hex()}")
        self._children: dict[str, ContainerJob] = {}
        self._pulls: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._api: EngineApi
        self._boot = _boot_id()

    async def open(self, host: ExecutorHost) -> None:
        await super().open(host)
        self._api = EngineApi(find_socket(self.options.socket))
        try:
            await self._api.ping()
        except (EngineUnreachable, EngineError) as e:
            raise InvalidInput(f"the executor container cannot reach Docker or Podman: {e}") from e
        for place in self._dirs.open():
            job = read_job(place)
            if job is None:
                rmtree(place, ignore_errors=True)
            else:
                child = ContainerJob(job, place)
                try:
                    child.secrets = await host.secrets(job)
                except (SecretMissing, SecretUnavailable) as e:
                    child.unmasked = e.to_failure()
                self._add(child)

    async def close(self) -> None:
        tasks = [*self._tasks, *(c.driver for c in self._children.values() if c.driver is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._api.close()
        self._dirs.close()

    async def recover(self) -> list[Job]:
        return [child.job for child in self._children.values()]

    async def start(self, job: Job) -> None:
        """Note the job and begin; what takes long, such as getting the image, goes on after it."""
        if job.name in self._children:
            return
        secrets = await self.host.secrets(job)
        read_spec(job, self._rules, self.options, os.environ, secrets)
        await self._api.ping()
        if job.name not in self._children:
            place = self._dirs.job(job.name)
            place.mkdir(mode=0o700, exist_ok=True)
            write_job(place, job)
            child = ContainerJob(job, place)
            child.secrets = secrets
            self._add(child)

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        return [
            child.state if (child := self._children.get(job.name)) else JobLost("it is not known here") for job in jobs
        ]

    async def cancel(self, job: Job) -> None:
        child = self._children.get(job.name)
        if child is not None and not child.is_over and not child.is_stopping:
            child.is_stopping = True
            if _marker(child.place).exists():
                self._spawn(self._stop(child))
            else:  # it waits for its image, perhaps for long
                self._drive(child)

    async def forget(self, job: Job) -> None:
        child = self._children.get(job.name)
        if child is None:
            return
        # The container goes first: a job that is not noted any more is not looked for.
        await self._api.remove(job.name)
        rmtree(child.place, ignore_errors=True)
        self._children.pop(job.name, None)

    def _add(self, child: ContainerJob) -> None:
        self._children[child.job.name] = child
        try:
            child.spec = read_spec(child.job, self._rules, self.options, os.environ, child.secrets)
        except JobRefused as e:
            if not _marker(child.place).exists():
                self._end(child, JobFailed(Failure("job_refused", clip(str(e)), "Refused"), is_final=True))
                return
        secrets = child.spec.command.secrets if child.spec is not None else ()
        child.output = ContainerOutput(self._api, self.host, child.job.name, secrets)
        self._drive(child)

    def _drive(self, child: ContainerJob) -> None:
        if child.driver is not None:
            child.driver.cancel()
        child.driver = asyncio.get_running_loop().create_task(self._until_over(child))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_over(self, child: ContainerJob) -> None:
        failures = 0
        while not child.is_over:
            try:
                await self._step(child)
                failures = 0
            except EngineUnreachable as e:
                if failures == 0:
                    self.host.warn(child.job.name, f"{e}; the container is looked at again when it does")
                await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
                failures += 1
            except EngineError as e:
                await self._refused(child, e)

    async def _refused(self, child: ContainerJob, error: EngineError) -> None:
        """A container that was removed amid a step is found to be lost by the next one."""
        child.refusals += 1
        is_hopeless = error.status in (400, 404) and not _begun(child.place)
        if child.refusals >= REFUSALS_MAX or is_hopeless:
            text = f"the container cannot be run: {error.message}"
            self._end(child, JobFailed(Failure("task_failed", clip(text), "ContainerRefused")))
        else:
            await asyncio.sleep(PAUSES_S[min(child.refusals, len(PAUSES_S) - 1)])

    async def _step(self, child: ContainerJob) -> None:
        found = await self._api.inspect(child.job.name)
        begun = _begun(child.place)
        if begun and begun != self._boot:
            self._end(child, JobLost("the machine was restarted while the container ran"))
        elif found is None and begun:
            self._end(child, JobLost("the container was removed"))
        elif found is None or found.status in ("created", "configured", "initialized"):
            await self._begin(child, found is not None)
        elif found.status in ("exited", "dead"):
            await self._finish(child, found)
        else:
            await self._follow(child, found)

    async def _follow(self, child: ContainerJob, found: ContainerState) -> None:
        if isinstance(child.state, JobRunning) and not child.state.started_us:
            age_us = time.time_ns() // 1000 - found.started_us if found.started_us else 0
            child.state = JobRunning(self.host.now_us() - max(0, age_us))
            self.host.changed(child.job.name)
        if child.is_stopping:  # it was being started when it was asked to stop
            await self._api.stop(child.job.name, self.options.grace_s)
        if child.unmasked is None:
            await child.output.follow()
        await asyncio.sleep(PAUSES_S[0])  # its output ends shortly before it has exited

    async def _begin(self, child: ContainerJob, is_created: bool) -> None:
        name, spec = child.job.name, child.spec
        if child.is_stopping:
            self._end(child, JobFailed(Failure("task_cancelled", "it was cancelled before its container was started")))
        elif child.unmasked is not None:
            self._end(child, JobFailed(child.unmasked))
        elif spec is None:
            self._end(child, JobLost("the worker was restarted with other options before the container was started"))
        elif not is_created:
            await self._get_image(child, spec)
            if not child.is_over:
                await self._api.create(name, spec.body)
        else:
            await self._api.put(name, FILES, spec.files, WRITABLE)
            _note_begin(child.place, self._boot)
            await self._api.start(name)

    async def _get_image(self, child: ContainerJob, spec: ContainerSpec) -> None:
        """One pull of an image at a time."""
        if len(self._pulls) >= IMAGES_MAX:
            self._pulls.clear()  # at worst an image is pulled twice
        async with self._pulls.setdefault(spec.reference, asyncio.Lock()):
            if spec.pull != "always" and await self._api.has_image(spec.reference):
                return
            try:
                if spec.pull == "never":
                    raise ValueError("it is not on this machine, and pull is never")
                header = credentials(self.options.registries, spec.image.registry)
                await self._api.pull(spec.image.name, spec.image.tag, header)
            except (EngineError, OSError, ValueError) as e:
                text = f"the image {spec.reference} cannot be had: {e}"
                self._end(child, JobFailed(Failure("task_failed", clip(text), "ImageUnavailable")))

    async def _finish(self, child: ContainerJob, found: ContainerState) -> None:
        if child.unmasked is not None:
            text = f"the container ended with code {found.exit_code}, and what it wrote is not shown, because its secrets are not known: "
            self._end(
                child,
                JobFailed(msgspec.structs.replace(child.unmasked, message=clip(text + child.unmasked.message))),
            )
            return
        name, command = child.job.name, child.spec.command if child.spec is not None else None
        await child.output.finish()
        secrets = command.secrets if command is not None else ()
        result = await self._api.read(name, f"{FILES}/{FILES_DIR}/result.json", JOB_RESULT_BYTES_MAX + 1)
        written = child.output.written(mask(result, secrets) if result is not None else None)
        state = outcome(command, found.exit_code, written)
        limit = child.spec.memory_bytes if child.spec is not None else 0
        killed = found.exit_code == _KILLED and limit and not child.is_stopping
        if found.is_out_of_memory or killed:
            # Podman on cgroup v1 does not always say why a container was killed.
            text = f"the container ran out of memory: it was killed at its limit of {limit} bytes"
            state = JobFailed(Failure("task_failed", clip(text + complaint(written.stderr)), "OutOfMemory"))
        self._end(child, state)

    async def _stop(self, child: ContainerJob) -> None:
        for pause_s in PAUSES_S:
            try:
                await self._api.stop(child.job.name, self.options.grace_s)
                return
            except (EngineUnreachable, EngineError) as e:
                self.host.warn(child.job.name, f"the container is not stopped yet: {e}")
                await asyncio.sleep(pause_s)
        child.is_stopping = False  # the next request to stop it tries again

    def _end(self, child: ContainerJob, state: JobState) -> None:
        child.state = state
        self.host.changed(child.job.name)


def _marker(place: Path) -> Path:
    return place / "started"


def _begun(place: Path) -> str:
    """The boot of the machine in which it was started; empty: it was not."""
    try:
        return _marker(place).read_text()
    except OSError:
        return ""


def _note_begin(place: Path, boot: str) -> None:
    new = place / "started.new"
    new.write_text(boot)
    os.rename(new, _marker(place))


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
