"""What tests start ends with them: real runs of pytest are interrupted and killed in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import supervisor
from tests.executors.container.podman import SKIP as WITHOUT_PODMAN
from tests.executors.ray.cluster import SKIP as WITHOUT_RAY
from tests.fakes.waiting import until_sync
from tests.starts import LEFT, name_program

ROOT = Path(__file__).parents[2]
WITHIN_S = 60.0
CONFTEST = """
import os, threading
from pathlib import Path
import pytest
from tests import starts, supervisor

starts.GRACE_S = 0.3

def pytest_configure(config):
    starts.install(config)

@pytest.fixture
def ready(request):
    "Tells that a test has come to its middle, and waits there for ever."
    def tell():
        Path(__file__).with_name(f"ready-{request.node.name}").write_text(f"{os.getpid()} {os.environ[supervisor.VARIABLE]}")
        threading.Event().wait()
    return tell
"""
DAEMON = """
import os, signal, subprocess, sys, tempfile, pytest
PROGRAM = '''
import os, signal, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
if not os.fork(): os.execve("/bin/sleep", ["sleep", "1000"], {})
threading.Event().wait()
'''
@pytest.mark.parametrize("number", [1, 2])
def test_daemon(interpreter, ready, number):
    tempfile.mkdtemp(prefix="made-by-a-test-")
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
    ready()
"""
AGAIN = """
    from pathlib import Path
    first = Path(__file__).with_name(f"first-{number}")
    if first.exists():
        ready()
    first.touch()
    assert 0
"""
SERVERS = """
import contextlib
from pathlib import Path
import pytest
from perdure.localpg.cluster import PrivateCluster
from tests.cli.processes import server, started
@pytest.mark.parametrize("number", [1, 2])
def test_servers(processes, ready, number, tmp_path):
    from tests.shared_server import FAST
    import tempfile
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    cluster = PrivateCluster(directory / "pg", settings=FAST)
    cluster.start()
    with server(cluster.create_database("one"), tmp_path, "--auth", "open") as one:
        with started("worker", "perdure.programs.starter.hello", "--server", one.grpc, cwd=tmp_path) as worker:
            worker.until("connected")
            ready()
"""
PODMAN = """
import tempfile
from pathlib import Path
from tests.executors.container.podman import Podman
def test_podman(processes, ready):
    podman = Podman(Path(tempfile.mkdtemp(prefix="podman-")))
    podman.import_image()
    podman.start()
    podman.run("run", "--detach", "--network=none", "--name=one", "busybox", "sleep", "1000")
    ready()
"""
RAY = """
import os
from tests.executors.ray.cluster import LOOPBACK, RayCluster
def test_ray(processes, ready):
    os.environ.update(LOOPBACK)
    RayCluster().start()
    ready()
"""
WAITS = 'sys.executable, "-c", "import threading; threading.Event().wait()"'
FIXTURE = f"""
import subprocess, sys
import pytest
@pytest.fixture(scope="session")
def kept():
    return subprocess.Popen([{WAITS}, "of a fixture"])
def test_first(interpreter, kept): ...
"""
BODY = f"""
import subprocess, sys
def test_body(interpreter):
    subprocess.Popen([{WAITS}, "of a body"])
def test_next(): ...
"""
SILENT = """
import subprocess, sys
def test_silent():
    try:
        subprocess.run([sys.executable, "-c", ""])
    except BaseException:
        pass
"""


class Run:
    """A run of pytest in a process group of its own, as in a terminal."""

    def __init__(self, directory: Path, process: subprocess.Popen[str]) -> None:
        self.directory, self.process = directory, process
        self.tokens: set[str] = set()
        self.workers: dict[int, str] = {}
        """The processes that run the tests, and the token of each."""

    def wait_for_middle(self, count: int) -> None:
        above = len(list(filter(None, os.environ.get(supervisor.VARIABLE, "").split(":"))))

        def said() -> list[str]:
            assert self.process.poll() is None, self.output()
            return [text for file in self.directory.glob("ready-*") if (text := file.read_text())]

        until_sync(lambda: len(said()) == count)
        for text in said():
            pid, _, tokens = text.partition(" ")
            self.tokens.update(tokens.split(":")[above:])
            self.workers[int(pid)] = tokens.split(":")[-1]
        assert all(supervisor.find_carriers(token) for token in self.tokens), "each has started a process"

    def is_clean(self) -> bool:
        """Nothing carries a token, and the directories are gone."""
        bases = [Path(os.environ[supervisor.TEMPORARY]), *supervisor.BASES]
        left = [base / token for token in self.tokens for base in bases if (base / token).exists()]
        return not left and not any(map(supervisor.find_carriers, self.tokens))

    def output(self) -> str:
        self.process.wait(WITHIN_S)
        return (self.directory / "output").read_text()


@contextmanager
def run(directory: Path, test: str, *options: str, program: str = "") -> Iterator[Run]:
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_it.py").write_text(test)
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    started = [program] if program else ["-m", "pytest"]
    command = [sys.executable, *started, "-q", "-p", "no:cacheprovider", *options]
    lean = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    with (directory / "output").open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=lean,
            stdout=output,
            stderr=output,
            text=True,
            process_group=0,
            # Started in the background of a shell, the tests ignore SIGINT, and a child would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    one = Run(directory, process)
    try:
        yield one
    finally:
        process.kill()
        process.wait()


PARALLEL = ("-p", "xdist", "-n", "2")


def end_run(tests: Run, how: str) -> None:
    if how == "interrupted":
        os.killpg(tests.process.pid, signal.SIGINT)
    elif how == "a worker killed":  # pytest-xdist starts another: only what this one had started is gone
        pid = next(iter(tests.workers))
        tests.tokens = {tests.workers[pid]}
        os.kill(pid, signal.SIGKILL)
    else:
        os.kill(tests.process.pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["interrupted", "the controller killed", "a worker killed"])
def test_parallel_run_ended_midway_leaves_nothing(interpreter: None, tmp_path: Path, how: str) -> None:
    with run(tmp_path, DAEMON, *PARALLEL) as tests:
        tests.wait_for_middle(2)
        end_run(tests, how)
        until_sync(tests.is_clean, f"{how}: processes or directories are left", WITHIN_S)


def test_plain_run_killed_leaves_nothing(interpreter: None, tmp_path: Path) -> None:
    with run(tmp_path, DAEMON) as tests:
        tests.wait_for_middle(1)
        end_run(tests, "killed")
        until_sync(tests.is_clean, "processes or directories are left", WITHIN_S)


def test_second_run_of_a_killed_rerun_leaves_nothing(interpreter: None, tmp_path: Path) -> None:
    with run(tmp_path, DAEMON.replace("    ready()", AGAIN), program=str(ROOT / "tests" / "rerun.py")) as tests:
        tests.wait_for_middle(1)
        assert len(tests.tokens) == 2, "the second run has a token of its own"
        end_run(tests, "killed")
        until_sync(tests.is_clean, "processes or directories are left", WITHIN_S)


@pytest.mark.parametrize("how", ["interrupted", "the controller killed", "a worker killed"])
def test_servers_of_a_run_ended_midway_end(processes: None, tmp_path: Path, how: str) -> None:
    with run(tmp_path, SERVERS, "-p", "pytest_asyncio.plugin", *PARALLEL) as tests:
        tests.wait_for_middle(2)
        end_run(tests, how)
        until_sync(tests.is_clean, f"{how}: processes or directories are left", WITHIN_S)


@pytest.mark.skipif(bool(WITHOUT_PODMAN), reason=WITHOUT_PODMAN)
def test_containers_of_a_killed_run_end(processes: None, tmp_path: Path) -> None:
    """Podman gives the monitor of a container an environment without the token."""
    with run(tmp_path, PODMAN) as tests:
        tests.wait_for_middle(1)
        end_run(tests, "killed")
        until_sync(tests.is_clean, "processes or directories are left", WITHIN_S)


@pytest.mark.skipif(bool(WITHOUT_RAY), reason=WITHOUT_RAY)
def test_ray_of_a_killed_run_ends(processes: None, tmp_path: Path) -> None:
    with run(tmp_path, RAY) as tests:
        tests.wait_for_middle(1)
        end_run(tests, "killed")
        until_sync(tests.is_clean, "processes or directories are left", WITHIN_S)


@pytest.mark.parametrize("options", [(), PARALLEL], ids=["plain", "parallel"])
def test_process_of_a_fixture_left_fails_the_run(interpreter: None, tmp_path: Path, options: tuple[str, ...]) -> None:
    with run(tmp_path, FIXTURE, *options) as tests:
        shown = tests.output()
    assert tests.process.returncode == LEFT, shown
    assert "The tests left 1 process running" in shown
    assert re.search(r"pid \d+: \S*python\S* -c .* of a fixture\n +started by test_it.py::test_first \(setup\)", shown)


def test_process_of_a_body_left_fails_its_test(interpreter: None, tmp_path: Path) -> None:
    with run(tmp_path, BODY) as tests:
        shown = tests.output()
    assert tests.process.returncode == 1, shown
    assert "1 error" in shown and "2 passed" in shown
    assert re.search(r"test_it.py::test_body left 1 process running.*\n.* of a body\n", shown)


def test_process_that_is_not_declared_fails_its_test(interpreter: None, tmp_path: Path) -> None:
    """Also where the code under test swallows the error."""
    with run(tmp_path, SILENT) as tests:
        shown = tests.output()
    assert (
        "test_it.py::test_silent starts python and has none of the fixtures processes, interpreter."
        in shown.replace(Path(sys.executable).name, "python")
    )


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["git", "status"], ""),
        ([sys.executable, "-c", ""], Path(sys.executable).name),
        ([f"{Path(sys.executable).parent}/perdure", "server"], "perdure"),
        ([f"{Path(sys.executable).parent}/ray", "start"], "ray"),
        (["/bin/sh", "-c", "cd /tmp && perdure show"], "perdure"),
        (["/bin/sh", "-c", '"$@" & echo $!', "sh", "/usr/lib/postgresql/bin/postgres", "-D", "data"], "postgres"),
        (["/usr/lib/postgresql/bin/postgres", "--version"], ""),
        (["/usr/lib/postgresql/bin/pg_dump", "postgres"], ""),
        (["setpriv", "--no-new-privs", sys.executable], Path(sys.executable).name),
    ],
)
def test_program_of_a_command_is_named(words: list[str], program: str) -> None:
    assert name_program(words[0], words) == program


def test_token_of_a_stranger_is_refused() -> None:
    """A text that any process may have would end any process."""
    for text in ("", "perdure", "\0"):
        with pytest.raises(AssertionError, match="no token"):
            supervisor.find_carriers(text)
