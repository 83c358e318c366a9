"""The README's demonstration, as printed: start hello.py, kill -9 it in the middle, start it again. Nobody is greeted twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.docs.pages import ROOT, blocks_of
from tests.docs.test_snippets import environment
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

NAMES = ["Ada", "Grace", "Edsger", "Barbara"]


def hello_program() -> str:
    """From the README. Only the lease is shorter, so that the test need not wait a quarter of a minute, and the sleeps with it."""
    (block,) = [b for b in blocks_of(ROOT / "README.md") if b.remark_text == "hello.py"]
    short = "Perdure(settings=EngineSettings(lease_s=2, heartbeat_s=0.5)):"
    text = block.text.replace("Perdure():", short).replace("import Perdure,", "import EngineSettings, Perdure,")
    assert short in text and '"2s"' in text
    return text.replace('"2s"', '"900ms"')


async def recorded(dsn: str, tasks: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await until(lambda: connection.fetchval("select count(*) >= $1 from perdure.task", tasks))
    finally:
        await connection.close()


def greetings(lines: list[str]) -> list[str]:
    return [line.removeprefix("greeting ") for line in lines if line.startswith("greeting ")]


def test_a_killed_program_goes_on_where_it_was(dsn: str, tmp_path: Path) -> None:
    program = tmp_path / "hello.py"
    program.write_text(hello_program())
    seen: list[str] = []
    with subprocess.Popen([sys.executable, program], env=environment(dsn), stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for line in first.stdout:
            seen.append(line.rstrip())
            if line.startswith("greeting Grace"):
                break
        # Its result must be on record: a task that was killed before that is executed again, and rightly so.
        asyncio.run(recorded(dsn, tasks=2))
        first.kill()
        seen += first.stdout.read().splitlines()
    again = subprocess.run(
        [sys.executable, program], env=environment(dsn), capture_output=True, text=True, timeout=120, check=True
    )
    lines = again.stdout.splitlines()
    assert lines[0] == seen[0], "the second process attaches to the same run"
    assert greetings(seen) + greetings(lines) == NAMES
    assert lines[-1] == str([f"Hello, {name}!" for name in NAMES])
