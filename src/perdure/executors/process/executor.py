"""Starts commands, observes them, and finds them again after the worker was restarted.

Theory. A worker that dies must not take its children along, and the next one must learn how they ended. So a child has a shim as its parent,
which writes down that it began and how it ended; a lock that both hold says whether they live; and output goes to files. state.py has the table.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from perdure.core.calls import RUN
from perdure.core.errors import Failure, InvalidInput, SecretMissing, SecretUnavailable, clip
from perdure.core.jobs import PROCESS
from perdure.core.limits import JOB_RESULT_BYTES_MAX
from perdure.executors.command_output import JSON_BYTES_MAX, STDERR_BYTES, Written, command_shown, outcome
from perdure.executors.commands import KEYS, SECRET_KEYS, CommandRules, CommandSpec, checked_names, read_command
from perdure.executors.job_dirs import AgentDirs, default_state_dir
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
from perdure.executors.process.output import Follower, tail
from perdure.executors.process.state import SHIM, JobDir, start_time

FOLLOW_S: Final = 0.25
"""How often the output of children is read."""
LOCK_POLL_S: Final = 1.0
"""How often a child is looked at whose shim is gone."""
GRACE_S: Final = 3.0
"""Between SIGTERM and SIGKILL; less than what a worker that closes waits."""
BASE_ENV: Final = frozenset({"PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ"})
"""Variables of the worker that every command gets: where programs are, language and time."""
WORK_DIR: Final = "\0"
"""Stands for the directory of the attempt, which is not known when variables are read and which no value can be."""
PATH_DEFAULT: Final = "/usr/local/bin:/usr/bin:/bin"
LIMITS: Final[Mapping[str, tuple[str, int]]] = {
    "cpu_s": ("-t", 1),
    "memory_bytes": ("-v", 1024),
    "file_bytes": ("-f", 512),
    "open_files": ("-n", 1),
    "processes": ("-u", 1),
}
"""A limit -> the option of the shell's `ulimit`, and the unit it counts in."""


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    state_dir: str = ""
    """Where jobs are kept; default: /var/lib/perdure/jobs for root, `~/.local/state/perdure/jobs` for others."""
    scope: str = ""
    """Workers of one scope take over each other's jobs; the worker sets it to its server and namespace."""
    secrets: str = ""
    """Variables of the worker that commands may ask for, separated by commas."""
    user: str = ""
    """The user that commands run as. The worker must be root for that."""
    grace_s: float = GRACE_S
    """Between SIGTERM and SIGKILL."""


class ChildProcess:
    """A job of this machine."""

    def __init__(self, job: Job, place: JobDir, command: CommandSpec | None) -> None:
        self.job, self.place, self.command = job, place, command
        self.state: JobState = JobRunning()
        self.secrets: JobSecrets | None = None
        self.unmasked: Failure | None = None
        """Why its secrets are not known: what it writes cannot be shown."""
        self.pid = 0
        """Of the shim, which leads the process group."""
        self.started = 0
        """When the shim began, in clock ticks since boot."""
        self.pid_fd = -1
        """Readable once the shim has ended; -1: it is not watched."""
        self.is_own = False
        """This very worker started it, and has to reap it."""
        self.is_stopping = False
        self.followers: list[Follower] = []

    @property
    def is_over(self) -> bool:
        return not isinstance(self.state, JobRunning)


class ProcessExecutor(Executor):
    Options = ProcessOptions
    name: ClassVar[str] = PROCESS
    tasks: ClassVar[tuple[str, ...]] = (RUN,)
    poll_s = 30.0
    holds_slot = True
    secret_keys: ClassVar[tuple[str, ...]] = SECRET_KEYS
    keep_s = 0.0

    options: ProcessOptions

    def __init__(self, options: ProcessOptions | None = None) -> None:
        super().__init__(options)
        self._rules = _rules(self.options.secrets)
        self._user = _user(self.options.user)
        root = Path(self.options.state_dir or default_state_dir()) / (self.options.scope or "default")
        self._dirs = AgentDirs(root, f"{os.getpid()}-{os.urandom(4).hex()}")
        self._children: dict[str, ChildProcess] = {}
        self._following: asyncio.Task[None] | None = None

    async def open(self, host: ExecutorHost) -> None:
        await super().open(host)
        for place in map(JobDir, self._dirs.open()):
            job = place.job()
            if job is None:
                place.remove()
            else:
                child = ChildProcess(job, place, None)
                try:
                    child.secrets = await host.secrets(job)
                except (SecretMissing, SecretUnavailable) as e:
                    child.unmasked = e.to_failure()
                self._found(child)
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        loop = asyncio.get_running_loop()
        for child in self._children.values():
            if child.pid_fd >= 0:
                loop.remove_reader(child.pid_fd)
                os.close(child.pid_fd)
        self._dirs.close()

    async def recover(self) -> list[Job]:
        return [child.job for child in self._children.values()]

    async def start(self, job: Job) -> None:
        if job.name not in self._children:
            secrets = await self.host.secrets(job)
            command = read_command(job, self._rules, os.environ, secrets)
            command = _with_program(command)
            child = ChildProcess(job, JobDir(self._dirs.job(job.name)), command)
            child.secrets = secrets
            child.place.create(job, self._user)
            self._children[job.name] = child
            self._launch(child, command)

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        return [
            child.state if (child := self._children.get(job.name)) else JobLost("it is not known here") for job in jobs
        ]

    async def cancel(self, job: Job) -> None:
        child = self._children.get(job.name)
        if child is not None and not child.is_over and not child.is_stopping:
            child.is_stopping = True
            self._signal(child, signal.SIGTERM)
            asyncio.get_running_loop().call_later(self.options.grace_s, self._kill, child)

    async def forget(self, job: Job) -> None:
        child = self._children.pop(job.name, None)
        if child is not None:
            child.place.remove()

    def _found(self, child: ChildProcess) -> None:
        """A worker before this one started it, or was about to."""
        self._children[child.job.name] = child
        self._attach(child)

    def _begin(self, child: ChildProcess) -> None:
        """It was on disk, and its process had not begun."""
        if child.unmasked is not None:
            self._end(child, JobFailed(child.unmasked))
            return
        try:
            child.command = read_command(child.job, self._rules, os.environ, child.secrets)
            self._launch(child, child.command)
        except JobRefused as e:
            self._end(child, JobFailed(Failure("job_refused", clip(str(e)), "Refused"), is_final=True))

    def _launch(self, child: ChildProcess, command: CommandSpec) -> None:
        place = child.place
        if command.input is not None:
            place.input.write_bytes(command.input)
        if command.stdin is not None:
            place.stdin.write_bytes(command.stdin)
        try:
            child.pid = self._spawn(place, command)
        except OSError as e:
            self._end(child, _not_started(command, e))
            return
        child.is_own = True
        child.started = start_time(child.pid) or 0
        self._watch(child)

    def _spawn(self, place: JobDir, command: CommandSpec) -> int:
        env = {name: str(place.work) if value == WORK_DIR else value for name, value in command.env.items()}
        env["PERDURE_RESULT_FILE"] = str(place.result)
        if command.input is not None:
            env["PERDURE_INPUT_FILE"] = str(place.input)
            if self._user is not None:
                os.chown(place.input, *self._user)
        files = [_open(place.stdin if command.stdin is not None else Path(os.devnull), os.O_RDONLY)]
        lock = place.lock()
        if lock is None:
            raise BlockingIOError("another process holds the lock of this job")
        files += [lock, _appending(place.stdout), _appending(place.stderr)]
        cwd = os.path.abspath(command.cwd) if command.cwd else place.work
        try:
            process = subprocess.Popen(
                [
                    "/bin/sh",
                    "-c",
                    SHIM.format(limits=_ulimits(command.limits)),
                    "perdure",
                    str(place.path),
                    *command.argv,
                ],
                stdin=files[0],
                stdout=files[2],
                stderr=files[3],
                env=env,
                cwd=cwd,
                pass_fds=(lock,),
                start_new_session=True,
                umask=0o077,
                **self._identity(),
            )
        finally:
            for fd in files:
                os.close(fd)
        process.returncode = 0  # reaped by its pid; an object that is dropped while its process runs would warn
        return process.pid

    def _identity(self) -> dict[str, Any]:
        return {} if self._user is None else {"user": self._user[0], "group": self._user[1], "extra_groups": []}

    def _attach(self, child: ChildProcess) -> None:
        """Its process began under a worker before this one, or was about to."""
        begun = child.place.started()
        try:
            child.command = read_command(child.job, self._rules, os.environ, child.secrets)
        except JobRefused:
            child.command = None  # what it may be given has changed since; its end counts all the same
        if begun is not None:
            child.pid, child.started = begun
        if begun is not None and start_time(child.pid) == child.started:
            self._watch(child)
        else:
            self._poll_lock(child)

    def _watch(self, child: ChildProcess) -> None:
        """Follow its output, and be called when its shim ends."""
        secrets = child.command.secrets if child.command is not None else ()
        write, name = self.host.write, child.job.name
        if child.unmasked is None:
            child.followers = [
                Follower(child.place.stdout, secrets, lambda text: write(name, "stdout", text)),
                Follower(child.place.stderr, secrets, lambda text: write(name, "stderr", text)),
            ]
        child.state = JobRunning(self.host.now_us())
        self.host.changed(name)
        try:
            child.pid_fd = os.pidfd_open(child.pid)
        except ProcessLookupError:
            self._poll_lock(child)
            return
        asyncio.get_running_loop().add_reader(child.pid_fd, self._shim_ended, child)

    def _shim_ended(self, child: ChildProcess) -> None:
        asyncio.get_running_loop().remove_reader(child.pid_fd)
        os.close(child.pid_fd)
        child.pid_fd = -1
        if child.is_own:
            os.waitpid(child.pid, 0)
        self._poll_lock(child)

    def _poll_lock(self, child: ChildProcess) -> None:
        """Its shim is gone. The command may run on only if the shim was killed."""
        if child.is_over:
            return
        code = child.place.exit_code()
        if code is None:
            lock = child.place.lock()
            if lock is None:
                asyncio.get_running_loop().call_later(LOCK_POLL_S, self._poll_lock, child)
                return
            os.close(lock)
            code = child.place.exit_code()  # it may have begun and ended since the first look
            if code is None and not child.is_own and child.place.started() is None:
                self._begin(child)
                return
        for follower in child.followers:
            follower.finish()
        self._sweep(child)
        self._end(child, self._outcome(child, code))

    def _outcome(self, child: ChildProcess, code: int | None) -> JobState:
        if code is None:
            return JobLost(
                "the process vanished without an exit code: its machine was restarted, or it was killed with its parent"
            )
        if child.unmasked is not None:
            text = f"the command ended with code {code}, and what it wrote is not shown, because its secrets are not known: {child.unmasked.message}"
            return JobFailed(msgspec.structs.replace(child.unmasked, message=clip(text)))
        secrets = child.command.secrets if child.command is not None else ()
        return outcome(child.command, code, _written(child.place, secrets))

    def _end(self, child: ChildProcess, state: JobState) -> None:
        child.state = state
        self.host.changed(child.job.name)

    def _sweep(self, child: ChildProcess) -> None:
        """Processes that the command left in its group end with it."""
        if self._signal(child, signal.SIGTERM, leader_is_gone=True):
            asyncio.get_running_loop().call_later(self.options.grace_s, self._signal, child, signal.SIGKILL, True)

    def _kill(self, child: ChildProcess) -> None:
        if not child.is_over:
            self._signal(child, signal.SIGKILL)

    def _signal(self, child: ChildProcess, number: int, leader_is_gone: bool = False) -> bool:
        """Signal the whole group. A pid that another process has by now is left alone. Whether there was one to get it."""
        now = start_time(child.pid) if child.pid else None
        if not child.pid or (now is not None and now != child.started) or (now is None and not leader_is_gone):
            return False
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_S)
            for child in [c for c in self._children.values() if c.followers and not c.is_over]:
                for follower in child.followers:
                    follower.turn()


def _written(place: JobDir, secrets: tuple[bytes, ...]) -> Written:
    stdout, is_whole = tail(place.stdout, secrets, JSON_BYTES_MAX)
    result = None
    if place.result.is_file() and not place.result.is_symlink():
        result = tail(place.result, secrets, JOB_RESULT_BYTES_MAX + 1)[0]
    return Written(stdout=stdout, is_whole=is_whole, stderr=tail(place.stderr, secrets, STDERR_BYTES)[0], result=result)


def _rules(secrets: str) -> CommandRules:
    return CommandRules(
        executor=PROCESS,
        task=RUN,
        keys=KEYS,
        limits=tuple(LIMITS),
        allowed=frozenset(checked_names(secrets.split(","))),
        base_env={
            "PATH": PATH_DEFAULT,
            "HOME": WORK_DIR,
            **{name: os.environ[name] for name in BASE_ENV if name in os.environ},
        },
    )


def _with_program(command: CommandSpec) -> CommandSpec:
    """A relative path of a program counts from `cwd`, or else from the worker's directory."""
    if command.cwd and not os.path.isdir(command.cwd):
        raise JobRefused(f"cannot run a command there: this worker's machine has no directory {command.cwd!r}")
    name = command.argv[0]
    if "/" in name:
        name = os.path.abspath(os.path.join(command.cwd, name))
    if not (os.path.exists(name) if "/" in name else shutil.which(name, path=command.env.get("PATH"))):
        raise JobRefused(f"cannot run {command.argv[0]!r}: there is no such program on this worker's machine")
    return msgspec.structs.replace(command, argv=[name, *command.argv[1:]])


def _ulimits(limits: dict[str, int | float]) -> str:
    lines = [
        f"ulimit {LIMITS[name][0]} {max(1, int(value) // LIMITS[name][1])} || exit 126\n"
        for name, value in limits.items()
    ]
    return "".join(lines)


def _not_started(command: CommandSpec, error: OSError) -> JobState:
    text = f"{command_shown(command)} was not started: {error.strerror or error}"
    return JobFailed(Failure("task_failed", text, type(error).__name__))


def _open(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


def _appending(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _user(name: str) -> tuple[int, int] | None:
    """(uid, gid) that commands run as; None: the worker's."""
    if not name:
        return None
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise InvalidInput(f"process.user={name!r}: there is no such user on this machine") from None
    if os.getuid() != 0 and found.pw_uid != os.getuid():
        raise InvalidInput(f"process.user={name!r}: only a worker that runs as root can run commands as another user")
    return found.pw_uid, found.pw_gid
