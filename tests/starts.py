"""Which test starts which process: each says beforehand that it starts any, and each ends what it started.

A plugin of pytest, registered by conftest.py. The sidecar of supervisor.py ends what is left when the tests' process ends.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests import supervisor
from tests.supervisor import Found, Supervisor
from tests.tiers import LIGHT_FIXTURES, MARK, PROCESS_FIXTURES, fixtures_of

LEFT: Final = 6
"""pytest's exit code when processes outlived the tests. Its own end at 5."""
GRACE_S = 20.0
"""For processes that are ending, as what watches over a PostgreSQL does when its last user has gone."""
SERVERS: Final = frozenset(
    (
        "azurite-blob",
        "etcd",
        "node",
        "patroni",
        "pgbouncer",
        "podman",
        "postgres",
        "prometheus",
        "ray",
        "redis-server",
        "weed",
    )
)
PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*|perdure")
IN_A_SHELL: Final = re.compile(r"(?:^|[;&|(\n]\s*|\bexec\s+)(?:\S*/)?((?:python|pypy)[0-9.]*|perdure)(?=\s|$)")
SHELLS: Final = frozenset(("sh", "bash", "dash"))
WRAPPERS: Final = frozenset(("env", "nice", "setpriv", "setsid", "systemd-run", "timeout", "unshare"))


@pytest.fixture(scope="session")
def processes() -> None:
    """Requested by tests that start servers, workers or other heavy programs, and by the fixtures that do so for them."""


@pytest.fixture(scope="session")
def thorough() -> None:
    """Requested by tests that check in a longer way what a faster test checks."""


@pytest.fixture(scope="session")
def interpreter() -> None:
    """Requested by tests that start a short Python process: under about a second, so they stay in the gate."""


def name_program(executable: object, words: object) -> str:
    """The program that counts as heavy or as Python, or nothing. It may be behind a shell or a wrapper."""
    given = [os.fsdecode(word) for word in words] if isinstance(words, list | tuple) else [_text(words)]  # type: ignore[arg-type]
    program = _text(executable) or (given[0] if given else "")
    if "--version" in given:
        return ""
    base = Path(program).name
    if base in SHELLS and len(given) > 2:
        in_text = IN_A_SHELL.search(given[2]) if given[1].startswith("-") else None
        return in_text[1] if in_text else next(filter(None, map(_own_name, given[4:7])), "")  # "$@", behind "$0"
    if base in WRAPPERS:
        return next(filter(None, map(_own_name, given[1:])), "")
    return _own_name(program)


def _text(given: object) -> str:
    return os.fsdecode(given) if isinstance(given, str | bytes | os.PathLike) else ""


def _own_name(program: str) -> str:
    base = Path(program).name
    if base in SERVERS or PYTHON.fullmatch(base):
        return base
    if program.startswith("/"):
        with_python = _shebang(program)
        return base if "python" in with_python else ""
    return ""


def _shebang(program: str) -> str:
    """As of the scripts in the environment's bin."""
    try:
        with open(program, "rb") as file:
            first = file.read(200).partition(b"\n")[0]
    except OSError:
        return ""
    return first.decode(errors="replace") if first.startswith(b"#!") else ""


class Watch:
    """Sees each start of a process, as an audit hook: it cannot be removed, so a process has one."""

    def __init__(self) -> None:
        self.item: pytest.Item | None = None
        self.started = False
        self.refused = ""
        self._is_allowed = False

    @contextmanager
    def during(self, item: pytest.Item) -> Iterator[None]:
        """What is refused fails here and not where it is started: code under test swallows errors, or waits for what did not start."""
        self.item = item
        try:
            yield
        finally:
            self.item = None
        self.fail_refused()

    def fail_refused(self) -> None:
        message, self.refused = self.refused, ""
        if message:
            pytest.fail(message, pytrace=False)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """For what all tests of a process share, such as its PostgreSQL."""
        before, self._is_allowed = self._is_allowed, True
        try:
            yield
        finally:
            self._is_allowed = before

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in EVENTS or self.item is None:
            return
        self.started = True
        if self._is_allowed or not (program := EVENTS[event](*args)):
            return
        needed = PROCESS_FIXTURES if program in SERVERS else (*PROCESS_FIXTURES, *LIGHT_FIXTURES)
        if fixtures_of(self.item).isdisjoint(needed):
            self.refused = (
                f"{self.item.nodeid} starts {program} and has none of the fixtures {', '.join(needed)}. {HELP}"
            )


EVENTS: Final[dict[str, Callable[..., str]]] = {
    "subprocess.Popen": lambda executable, words, *_: name_program(executable, words),
    "os.posix_spawn": lambda path, words, *_: name_program(path, words),
    "os.fork": lambda: "a fork of Python",
    "os.forkpty": lambda: "a fork of Python",
}
HELP: Final = (
    "Request `processes` if it starts servers, workers or anything that takes a second of processor time: "
    "the test then runs in `just long`. Request `interpreter` for one short Python process."
)
watch: Final = Watch()
_installed: list[Watch] = []


class Starts:
    """The plugin."""

    def __init__(self, mine: Supervisor) -> None:
        self._mine = mine
        self._left: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        watch.started, watch.refused = False, ""
        with watch.during(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        watch.started = False  # what fixtures start may have a wider scope
        with watch.during(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """What a test starts in its own body has ended when its fixtures have gone."""
        result = yield
        watch.fail_refused()  # where the test failed otherwise too
        if watch.started and (left := self._wait_for_none(f"{item.nodeid} (call)")):
            supervisor.end(None, left)
            pytest.fail(_describe(f"{item.nodeid} left", left), pytrace=False)
        return result

    def _wait_for_none(self, test: str = "") -> list[Found]:
        """What the test started and has not ended within the grace; what any test started, if none is named."""
        deadline = time.monotonic() + GRACE_S
        while True:
            found = [one for one in supervisor.find_carriers(self._mine.token) if not one.is_pythons_own]
            left = [one for one in found if not test or one.test == test]
            if not left or time.monotonic() > deadline:
                return left
            select.select([], [], [], 2 * supervisor.POLL_S)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """The controller of pytest-xdist hears from its workers in their output. A run that was interrupted blames no test."""
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            supervisor.end(self._mine.token)
        elif left := self._wait_for_none():
            supervisor.end(None, left)
            self._left.append(_describe("The tests left", left))
        if output := getattr(session.config, "workeroutput", None):
            output["left"] = self._left
        elif self._left:
            session.exitstatus = LEFT

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._left += getattr(node, "workeroutput", {}).get("left", [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for message in self._left:
            terminalreporter.write_line(message, red=True)

    def pytest_unconfigure(self) -> None:
        self._mine.close_directory()


def _describe(what: str, left: Sequence[Found]) -> str:
    """A process below another that is named is left out: it went with its parent."""
    named = {one.pid for one in left}
    shown = [str(one) for one in left if one.parent not in named]
    count = "1 process" if len(left) == 1 else f"{len(left)} processes"
    return "\n  ".join([f"{what} {count} running. Each was killed. A test ends what it starts.", *shown])


def install(config: pytest.Config) -> None:
    """Called when pytest is configured, before a test module is imported."""
    config.pluginmanager.register(sys.modules[__name__], "perdure-fixtures")
    config.addinivalue_line("markers", f"{MARK}(fixture): one parameter of a test starts processes; see tiers.py")
    mine = supervisor.start()
    if mine is None:
        return
    config.pluginmanager.register(Starts(mine), "perdure-starts")
    if not _installed:
        _installed.append(watch)
        sys.addaudithook(watch)
