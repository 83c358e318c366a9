"""One table of exit codes: documented, and true of the program itself."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from perdure.programs.http_client import EXIT_CODES
from tests.cli.live import Cli
from tests.cli.processes import started
from tests.docs.pages import DOCS

WAYS: dict[int, list[str]] = {
    0: ["run", "cli_greet", "name=Ada", "--watch"],
    1: ["run", "cli_failing", "--watch"],
    2: ["run", "cli_greet", "--no-such-option"],
    3: ["watch", "key:cancelled-run"],
    4: ["show", "key:nobody"],
    5: ["list", "--url", "http://127.0.0.1:9"],
    6: ["check", "clock.py"],
    7: ["check", "broken.py"],
    130: ["watch", "key:endless-run"],
}
CLOCK = """
from datetime import datetime

from perdure import workflow


@workflow
async def clock() -> str:
    return str(datetime.now())
"""


def test_every_code_is_documented() -> None:
    page = (DOCS / "reference" / "cli.md").read_text()
    assert set(EXIT_CODES) == set(WAYS)
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in page


@pytest.mark.parametrize("code", WAYS)
def test_every_code_is_what_the_program_ends_with(code: int, cli: Cli, tmp_path: Path) -> None:
    if code == 3:
        cli.ok("run", "cli_forever", "--key", "cancelled-run")
        cli.ok("cancel", "key:cancelled-run")
    (tmp_path / "clock.py").write_text(CLOCK)
    (tmp_path / "broken.py").write_text("def\n")
    if code == 130:
        cli.ok("run", "cli_forever", "--key", "endless-run")
    with started(*WAYS[code], cwd=tmp_path, PERDURE_URL=cli.url) as program:
        if code == 130:
            program.until("running")
            program.process.send_signal(signal.SIGINT)
        assert program.process.wait(120) == code
        assert "Traceback" not in program.rest()
    if code == 130:
        cli.ok("cancel", "key:endless-run")
