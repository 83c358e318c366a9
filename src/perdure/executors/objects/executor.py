"""The executor `objects`: writes a spec to an object store and has a program of this machine launch the job, such as sbatch.

Without a launcher the spec is all: a poller of the user's own finds it in the store. Either way the state comes from the store alone, so any worker
can take over.

Crashes of the worker:

    before spec.json                     nothing was started; the next worker starts it
    after spec.json, before the launch   the next worker launches it
    after the launch, before launched.json   it is launched twice; the job's claim lets one of them run
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from perdure.core.errors import InvalidInput, clip
from perdure.core.limits import JOB_VARIABLES_MAX
from perdure.executors.objects.attempts import ObjectAttempts
from perdure.executors.objects.layout import HEARTBEAT_STALE_S, SPEC_ENV, START_S_MAX
from perdure.executors.objects.spec import read_work
from perdure.executors.objects.store import ObjectStore
from perdure.executors.port import Executor, ExecutorHost, Job, JobState

LAUNCH_S_MAX: Final = 40.0
"""The longest that a launcher may take; it is killed after that, and tried again."""
LAUNCHES_MAX: Final = 8
"""Launchers that run at a time."""
BASE_VARIABLES: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Variables of the worker that every launcher gets."""
POLL_S: Final = 5.0


class ObjectsOptions(msgspec.Struct, frozen=True, kw_only=True):
    store: str = ""
    """Where objects are: a directory, or the URL of a bucket and a prefix."""
    launch: str = ""
    """The program that launches a job, with its arguments. {spec}, {name}, {run} and {attempt} are filled in. Empty: none."""
    env: str = ""
    """Further variables of the worker that the launcher gets, separated by commas."""
    start_s: float = START_S_MAX
    """A job that has not begun after so long is lost."""
    stale_s: float = HEARTBEAT_STALE_S
    """A job whose heartbeat has not changed for so long is lost."""
    poll_s: float = POLL_S
    keep: bool = False
    """Keep the objects of jobs that have ended."""


class LaunchFailed(Exception):
    """The launcher did not take the job."""


class ObjectsExecutor(Executor):
    Options = ObjectsOptions
    name: ClassVar[str] = "objects"

    options: ObjectsOptions

    def __init__(self, options: ObjectsOptions | None = None) -> None:
        super().__init__(options)
        self.poll_s = self.options.poll_s
        self._store = ObjectStore(self.options.store)
        self._words = shlex.split(self.options.launch)
        self._launches = asyncio.Semaphore(LAUNCHES_MAX)
        self._environ = clean_environment(self.options.env)

    async def open(self, host: ExecutorHost) -> None:
        await super().open(host)
        self.attempts = ObjectAttempts(self._store, host, start_s=self.options.start_s, stale_s=self.options.stale_s)

    async def start(self, job: Job) -> None:
        work = read_work(job.spec, self.name)
        is_new = await self.attempts.write_spec(job, work)
        if self._words and (is_new or not await self.attempts.is_launched(job)):
            await self.attempts.launched(job, await self._launch(job))

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        return await self.attempts.observe(jobs)

    async def cancel(self, job: Job) -> None:
        await self.attempts.cancel(job)

    async def forget(self, job: Job) -> None:
        if not self.options.keep:
            await self.attempts.forget(job)

    async def _launch(self, job: Job) -> str:
        """What the launcher said, such as the number of the batch job."""
        spec = self.attempts.spec_url(job)
        argv = [filled(word, job, spec) for word in self._words]
        async with self._launches:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**self._environ, SPEC_ENV: spec},
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(LAUNCH_S_MAX):
                    said, _ = await process.communicate()
            except BaseException:
                process.kill()
                raise
        text = clip(said.decode("utf-8", "replace").strip(), 1_000)
        if process.returncode != 0:
            raise LaunchFailed(f"{argv[0]} exited with code {process.returncode}: {text}")
        return text


def filled(word: str, job: Job, spec: str) -> str:
    run, attempt = spec.rsplit("/", 5)[1], str(job.attempt)
    for key, value in (("{spec}", spec), ("{name}", job.name), ("{run}", run), ("{attempt}", attempt)):
        word = word.replace(key, value)
    return word


def clean_environment(names: str) -> dict[str, str]:
    """The launcher's variables: what programs need, and what the options name. Perdure's own keys are refused."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if len(wanted) > JOB_VARIABLES_MAX:
        raise InvalidInput(f"env has {len(wanted)} names; JOB_VARIABLES_MAX={JOB_VARIABLES_MAX} are allowed")
    for name in wanted:
        if name.startswith("PERDURE_") or name == "DATABASE_URL":
            raise InvalidInput(f"env: {name} belongs to Perdure and is not passed to launchers")
    return {name: os.environ[name] for name in (*BASE_VARIABLES, *wanted) if name in os.environ}
