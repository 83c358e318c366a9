"""`perdure.run`: a command as a task.

Laws:

1. A command runs in a session of its own. When its attempt ends, however it ends, nothing of that session is left: SIGTERM, and
   SIGKILL after a grace. What is to outlive the attempt must leave the session.
2. What it writes goes to the attempt's output as it comes; only the last of it is kept in memory.
3. Exit code 0 is success; any other is an error like an exception.
4. A command gets the variables of BASE_ENV, those that the worker's configuration names, and those of the call. The worker's own
   environment holds keys and addresses that are not the flow author's.

It is served only where the worker allows it explicitly: otherwise anyone who can start a run could run any command as the worker's user.
"""

from __future__ import annotations

import asyncio
import codecs
import contextvars
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from perdure.core.errors import InvalidInput, clip
from perdure.core.limits import RUN_ENV_MAX

BASE_ENV: Final = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "TZ",
        "TMPDIR",
        "LANG",
        "LANGUAGE",
        "LC_ALL",
        "LC_COLLATE",
        "LC_CTYPE",
        "LC_MESSAGES",
        "LC_MONETARY",
        "LC_NUMERIC",
        "LC_TIME",
    }
)
"""Variables of the worker that every command gets: where programs and files are, and language and time."""
STDOUT_BYTES_MAX: Final = 64 * 1024
"""Bytes kept of what a command wrote; its last ones."""
JSON_BYTES_MAX: Final = 96 * 1024
"""Bytes of output that are looked at as one JSON value. With the text beside it, every character of which may take two bytes in JSON,
a result stays below PAYLOAD_BYTES_MAX."""
STDERR_CHARS: Final = 4_000
"""Characters of what it complained about that an error shows; the last ones."""
GRACE_S: Final = 3.0
"""Between SIGTERM and SIGKILL; less than what a worker that closes waits."""
LOOK_S: Final = 0.02
LINGER_S: Final = 0.5
"""How long a process that has ended is listened to: one that it started may hold its pipes open."""


class ExitCode(Exception):
    """The command ended with another code than 0, or by a signal (then the code is negative)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class CommandRunner:
    """The commands of one worker. `passed` names variables of the worker that they get beside BASE_ENV."""

    def __init__(self, passed: Iterable[str] = ()) -> None:
        self._passed = BASE_ENV | frozenset(checked_names(passed))

    async def run(
        self, command: str | list[Any], env: dict[str, Any] | None = None, cwd: str | None = None, stdin: Any = None
    ) -> dict[str, Any]:
        """Run a command: a list as it is, text by the shell. Its exit code, its last output, and that as JSON if it is JSON."""
        return await run(command, environment(self._passed, env), cwd, stdin)


def checked_names(names: Iterable[str]) -> list[str]:
    """Names of variables that commands may get. Those that hold Perdure's own keys and databases are refused."""
    found = [name for name in map(str.strip, names) if name]
    if len(found) > RUN_ENV_MAX:
        raise InvalidInput(f"run_env has {len(found)} names; RUN_ENV_MAX={RUN_ENV_MAX} are allowed")
    for name in found:
        if "=" in name or "\0" in name:
            raise InvalidInput(f"run_env: {name!r} is not the name of a variable: write the name alone")
        if name.startswith("PERDURE_") or name == "DATABASE_URL":
            raise InvalidInput(
                f"run_env: {name} belongs to Perdure and is not passed to commands, which could use its keys and its database. "
                "Give a command a value of its own under another name."
            )
    return found


def environment(passed: Iterable[str], env: dict[str, Any] | None) -> dict[str, str]:
    """Of the worker's variables those that are passed, with those of the call over them; null takes a variable away."""
    found = {name: os.environ[name] for name in passed if name in os.environ}
    for name, value in (env or {}).items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _word(f"the variable {name!r}", value)
    return found


async def run(command: str | list[Any], env: dict[str, str], cwd: str | None, stdin: Any) -> dict[str, Any]:
    """Run a command: a list as it is, text by the shell. Its exit code, its last output, and that as JSON if it is JSON."""
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else [_word("an argument", w) for w in command]
    if not command or not argv[0]:
        raise InvalidInput("there is no command: give a list of arguments, or text for the shell")
    data = None if stdin is None else stdin.encode() if isinstance(stdin, str) else msgspec.json.encode(stdin)
    transport, process = await _start(argv, env, cwd, data is not None)
    try:
        if data is not None:
            pipe: Any = transport.get_pipe_transport(0)
            pipe.write(data)
            pipe.close()
        await process.exited
        await asyncio.wait([process.drained], timeout=LINGER_S)
    finally:
        try:
            await _end(transport.get_pid())
        finally:
            transport.close()
    code = transport.get_returncode()
    assert code is not None
    if code:
        raise ExitCode(code, _why(argv if isinstance(command, list) else [command], code, process.stderr.text()))
    return _result(process.stdout)


async def _start(
    argv: list[str], env: dict[str, str], cwd: str | None, has_input: bool
) -> tuple[asyncio.SubprocessTransport, _Process]:
    """The cancellation of an attempt that is just beginning must not leave an unknown process behind."""
    starting = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            _Process,
            *argv,
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        if starting.exception() is None:
            transport, _ = starting.result()
            await _end(transport.get_pid())
            transport.close()
        raise
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        what = f"a command in {cwd!r}" if cwd is not None and error.filename == cwd else repr(argv[0])
        raise InvalidInput(
            f"this worker cannot run {what}: {error.strerror}. Provide it where the worker runs, or give the task a queue "
            "of workers that have it"
        ) from error
    except ValueError as error:  # a NUL, or an equals sign in a variable's name
        raise InvalidInput(f"{_shown(argv)} is no command that can be run: {error}") from error


class _Process(asyncio.SubprocessProtocol):
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()
        self.stdout, self.stderr = _Tail("stdout", JSON_BYTES_MAX), _Tail("stderr", STDOUT_BYTES_MAX)
        self._open = {1: self.stdout, 2: self.stderr}

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        self._open[fd].feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        tail = self._open.pop(fd, None)
        if tail is not None:
            tail.feed(b"", final=True)
        if not self._open and not self.drained.done():
            self.drained.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)


class _Tail:
    """The last bytes of a stream, which is passed on as it comes."""

    def __init__(self, name: str, limit: int) -> None:
        self._name, self._limit = name, limit
        self._data = bytearray()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        # Of the attempt: that is how its output finds it.
        self._context = contextvars.copy_context()
        self.is_whole = True

    def feed(self, data: bytes, *, final: bool = False) -> None:
        self._data += data
        if len(self._data) > 2 * self._limit:
            del self._data[: -self._limit]
            self.is_whole = False
        text = self._decode(data, final)
        stream = getattr(sys, self._name)
        if text and stream is not None:
            self._context.run(stream.write, text)

    def data(self) -> bytes | None:
        """All of it, unless it was too much."""
        return bytes(self._data) if self.is_whole and len(self._data) <= self._limit else None

    def text(self) -> str:
        """The end of it. Shorter where it is full of control characters, which take six bytes each in a result."""
        text = self._data[-STDOUT_BYTES_MAX:].decode("utf-8", "replace")
        while len(msgspec.json.encode(text)) > 2 * STDOUT_BYTES_MAX:
            text = text[len(text) // 4 + 1 :]
        return text


def _result(stdout: _Tail) -> dict[str, Any]:
    result: dict[str, Any] = {"exit_code": 0, "stdout": stdout.text()}
    data = stdout.data()
    if data is not None and data.strip():
        try:
            result["json"] = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            pass  # it is text
    return result


async def _end(group: int) -> None:
    """Processes that are left get SIGTERM, then SIGKILL. A second cancellation ends the wait between them."""
    if not _signal(group, signal.SIGTERM):
        return
    until = asyncio.get_running_loop().time() + GRACE_S
    try:
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(LOOK_S)
            if not _signal(group, 0):
                return
    except asyncio.CancelledError:
        _signal(group, signal.SIGKILL)
        raise
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Whether a process is there to get it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _word(what: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidInput(f"{what} of a command is a {type(value).__name__}; give text or a number")


def _why(argv: list[str], code: int, stderr: str) -> str:
    how = f"exited with code {code}" if code > 0 else f"was ended by {_signal_name(-code)}"
    said = stderr.strip()[-STDERR_CHARS:]
    return f"{_shown(argv)} {how}" + (f"\n{said}" if said else "")


def _shown(argv: list[str]) -> str:
    return clip(argv[0] if len(argv) == 1 else shlex.join(argv), 200)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
