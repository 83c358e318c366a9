"""`perdure dev`: the first minute of somebody who has never seen Perdure, and what happens after it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.cli.live import ROOT, perdure
from tests.cli.processes import Program, started
from tests.fakes.waiting import until_sync

FIRST_MINUTE_S = 60.0


@pytest.fixture
def directory(processes: None) -> Iterator[Path]:
    """An empty one that the private server's unprivileged user can enter."""
    made = Path(tempfile.mkdtemp(prefix="perdure-dev-")).resolve()
    made.chmod(0o755)
    yield made
    note = made / ".perdure" / "pg"
    if note.exists():
        from perdure.localpg.cluster import PrivateCluster

        PrivateCluster(note).stop("immediate")
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def installed(interpreter: None, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """`perdure` from the wheels of both packages, in an environment that has nothing else."""
    uv = shutil.which("uv")
    assert uv is not None
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run([uv, "build", "--quiet", "--wheel", "--all-packages", "--out-dir", place / "dist", ROOT], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    wheels = list((place / "dist").glob("*.whl"))
    python = place / "venv" / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *wheels], check=True)
    return [str(place / "venv" / "bin" / "perdure")]


def children(program: Program) -> list[psutil.Process]:
    return psutil.Process(program.process.pid).children(recursive=True)


def postgres_of(directory: Path) -> list[int]:
    """Servers that work on the directory's data."""
    out = []
    for p in psutil.process_iter(["name", "cwd"]):
        cwd = p.info["cwd"] or ""
        if p.info["name"] == "postgres" and cwd.startswith(str(directory)):
            out.append(p.pid)
    return out


def link_of(line: str) -> str:
    """The printed link without its token."""
    return signed_link_of(line).partition("?token=")[0]


def signed_link_of(line: str) -> str:
    found = re.search(r"http://\S+", line)
    assert found and "?token=" in found[0], line
    return found[0]


@pytest.mark.keep
def test_the_first_minute(installed: list[str], directory: Path) -> None:
    began = time.monotonic()
    with started("dev", cwd=directory, program=installed) as dev:
        said = dev.until("success", FIRST_MINUTE_S)
        link = signed_link_of(dev.until("http://"))
        with httpx2.Client(follow_redirects=True, timeout=120) as browser:
            page = browser.get(link)
            shown = browser.get(
                str(page.url).replace("/runs/", "/api/v1/runs/")
            ).json()  # as the page asks, with its cookie
        took = time.monotonic() - began
        assert page.status_code == 200 and "text/html" in page.headers["content-type"]
        assert shown["status"] == "success"
        assert took < FIRST_MINUTE_S, f"it took {took:.0f} s"
        assert "Hello, Ada! Hello, Grace! Hello, Barbara!" in said
        assert len([line for line in dev.seen if "http://" in line]) == 1, "one link"

        hello = directory / "hello.py"
        hello.write_text(hello.read_text().replace("Hello, {name}!", "Good morning, {name}!"))
        dev.until("reloaded")
        again = subprocess.run(
            [*installed, "run", "hello", 'names=["Edsger"]', "--watch", "-o", "json"],
            cwd=directory,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert json.loads(again.stdout)["result"] == "Good morning, Edsger!"

        family = children(dev)
        assert dev.stop(signal.SIGINT) == 0
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not postgres_of(directory)
    assert not (directory / ".perdure" / "dev.json").exists()
    with pytest.raises(httpx2.TransportError):
        httpx2.get(link, timeout=120)


def test_once_ends_with_the_outcome_of_the_first_run(directory: Path, dsn: str) -> None:
    with started("dev", "--once", "--dsn", dsn, cwd=directory) as dev:
        assert dev.process.wait(60) == 0
        assert "success" in dev.rest()
    (directory / "hello.py").write_text(
        "from perdure import workflow\n\n@workflow\nasync def hello() -> None:\n    raise ValueError('no')\n"
    )
    with started("dev", "--once", "--dsn", dsn, cwd=directory) as dev:
        assert dev.process.wait(60) == 1
        assert "ValueError: no" in dev.rest()


def test_a_broken_file_is_shown_and_the_last_good_one_goes_on(directory: Path, dsn: str) -> None:
    good = "from perdure import workflow\n\n@workflow\nasync def answer() -> int:\n    return 1\n"
    flows = directory / "flows.py"
    flows.write_text(good)
    with started("dev", "--dsn", dsn, cwd=directory) as dev:
        dev.until("worker")
        url = link_of(dev.until("http://"))

        def answer() -> object:
            done = perdure("run", "answer", "--watch", "--fields", "result", PERDURE_URL=url)
            assert done.code == 0, done.err
            return json.loads(done.out)["result"]

        assert answer() == 1
        flows.write_text(good.replace("return 1", "return nonsense("))
        dev.until("SyntaxError")
        dev.until("still serving the last good version")
        assert answer() == 1
        flows.write_text(good + "\n1 / 0\n")
        assert "ZeroDivisionError" in dev.until("ZeroDivisionError")
        dev.until("still serving")
        flows.write_text(good.replace("return 1", "return 2"))
        dev.until("reloaded")
        assert answer() == 2
        (directory / "more.py").write_text(good.replace("answer", "more"))
        assert "more" in dev.until("reloaded")
        assert dev.stop() == 0


def test_a_worker_that_keeps_dying_is_not_started_for_ever(directory: Path, dsn: str) -> None:
    flows = directory / "flows.py"
    good = (
        "import os\nfrom perdure import task, workflow\n\n@task(retry=9)\nasync def die() -> int:\n    os._exit(9)\n\n"
    )
    good += "@workflow\nasync def deadly() -> int:\n    return await die()\n"
    flows.write_text(good)
    state = str(directory / "state")
    with started("dev", "--dsn", dsn, cwd=directory, XDG_STATE_HOME=state) as dev:
        url = link_of(dev.until("http://"))
        assert perdure("run", "deadly", PERDURE_URL=url, XDG_STATE_HOME=state).code == 0
        dev.until("the worker ended with exit code 9")
        dev.until("3 times in a row; waiting for the next change")
        flows.write_text(good.replace("os._exit(9)", "return 4"))
        dev.until("flows.py changed")
        dev.until("worker")
        assert perdure("watch", "@last", PERDURE_URL=url, XDG_STATE_HOME=state).code == 0
        assert dev.stop() == 0


def test_kill_minus_nine_leaves_nothing_in_the_way(directory: Path) -> None:
    slow = "from perdure import wf, workflow\n\n@workflow\nasync def hello() -> str:\n    await wf.sleep('3s')\n    return 'awake'\n"
    (directory / "hello.py").write_text(slow)
    with started("dev", cwd=directory) as first:
        url = link_of(first.until("http://"))
        run = perdure("run", "hello", PERDURE_URL=url).out.split("\t")[0]
        family = children(first)
        assert family
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        until_sync(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family))
    with started("dev", cwd=directory) as second:
        url = link_of(second.until("http://"))
        assert perdure("watch", run, PERDURE_URL=url).code == 0, "the run goes on where it was"
        assert second.stop() == 0
    assert not postgres_of(directory)


LOADED_S = 5.0
"""What a machine that is busy with other tests may add."""
STUBBORN = """
import asyncio, threading
from perdure import flow, task, workflow

@task
async def ignores_cancellation() -> None:
    print("ready", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

@task
async def blocks() -> None:
    threading.Event().wait()

@workflow
async def stubborn(how: str) -> None:
    await (blocks() if how == "blocks" else ignores_cancellation())
"""
COMMAND = (
    "flow: command\ntasks:\n  wait:\n    run: [sh, -c, 'trap : TERM INT; (sleep 4321 & sleep 4321); sleep 4321']\n"
)


def commands() -> set[int]:
    return {p.pid for p in psutil.process_iter(["cmdline"]) if "4321" in " ".join(p.info["cmdline"] or [])}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_stops_at_once_whatever_its_runs_do(directory: Path, number: signal.Signals) -> None:
    """Within 5 s of SIGTERM, and with nothing left behind; after SIGKILL what it started goes by itself, PostgreSQL included."""
    (directory / "flows.py").write_text(STUBBORN)
    (directory / "command.yaml").write_text(COMMAND)
    before = commands()
    with started("dev", cwd=directory) as dev:
        url = link_of(dev.until("http://"))
        for words in (["stubborn", "how=ignores"], ["command"], ["stubborn", "how=blocks"]):
            assert perdure("run", *words, PERDURE_URL=url).code == 0
            if words == ["command"]:
                until_sync(lambda: len(commands() - before) >= 2)
        family = children(dev)
        began = time.monotonic()
        dev.process.send_signal(number)
        dev.process.wait(120)
        took = time.monotonic() - began
        assert took < 5.0 + LOADED_S, f"it took {took:.1f} s"
        within_s = 5.0 if number == signal.SIGTERM else 60.0
        until_sync(
            lambda: not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], within_s=within_s
        )
        until_sync(lambda: not commands() - before, within_s=within_s)
        until_sync(lambda: not postgres_of(directory), within_s=within_s + 15)


def test_two_projects_side_by_side(directory: Path, dsn: str, bare_dsn: str, tmp_path: Path) -> None:
    """The second gets the next free ports, and commands find the server of the directory they are called in."""
    other = tmp_path / "other"
    other.mkdir()
    for place in (directory, other):
        (place / "flows.py").write_text("from perdure import task\n\n@task\ndef one() -> int:\n    return 1\n")
    with started("dev", "--dsn", dsn, cwd=directory) as first, started("dev", "--dsn", bare_dsn, cwd=other) as second:
        urls = {directory: link_of(first.until("http://")), other: link_of(second.until("http://"))}
        assert urls[directory] != urls[other]
        for place, url in urls.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(place)
                from perdure.app.discovery import server_url

                assert server_url(Path.cwd()) == url
        assert first.stop() == 0
        assert second.stop() == 0


def test_a_directory_with_other_files_is_left_alone(directory: Path, dsn: str) -> None:
    (directory / "main.py").write_text(
        "import asyncio\nfrom perdure import task\n\n@task\ndef one() -> int:\n    return 1\n\nasyncio.run(1)\n"
    )
    with started("dev", "--dsn", dsn, cwd=directory) as dev:
        assert "__main__" in dev.until("main.py runs a program when it is imported")
        dev.until("no file here defines tasks or workflows")
        assert not (directory / "hello.py").exists()
        assert dev.stop() == 0


def test_init(tmp_path: Path) -> None:
    done = perdure("init", str(tmp_path / "new"))
    assert done.code == 0 and "perdure dev" in done.out
    text = (tmp_path / "new" / "hello.py").read_text()
    compile(text, "hello.py", "exec")
    (tmp_path / "new" / "hello.py").write_text("mine")
    refused = perdure("init", str(tmp_path / "new"))
    assert refused.code == 1 and "--force" in refused.err
    assert (tmp_path / "new" / "hello.py").read_text() == "mine"
    assert perdure("init", str(tmp_path / "new"), "--force").code == 0
    assert (tmp_path / "new" / "hello.py").read_text() == text
