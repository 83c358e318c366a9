"""The shell's completion asks the program itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.live import PROGRAM, Cli, clean_environment, perdure


def suggested(line: str, cwd: Path, **environment: str) -> list[str]:
    """What bash would be offered at the end of the line."""
    asked = {"_PERDURE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=cwd,
        env=clean_environment() | asked | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.usefixtures("interpreter")
def test_commands_and_options(tmp_path: Path) -> None:
    assert suggested("perdure wor", tmp_path) == ["workflow", "worker", "workers"]
    assert suggested("perdure list --sta", tmp_path) == ["--status"]
    assert set(suggested("perdure api-key ", tmp_path)) == {"create", "list", "revoke"}


def test_names_come_from_the_server(cli: Cli, tmp_path: Path) -> None:
    assert suggested("perdure run cli_gr", tmp_path, PERDURE_URL=cli.url) == ["cli_greet"]
    run = cli.ok("run", "cli_greet", "name=Ada").split("\t")[0]
    assert run in suggested("perdure show 0", tmp_path, PERDURE_URL=cli.url)
    assert suggested("perdure show @", tmp_path, PERDURE_URL="http://127.0.0.1:9") == ["@last"]


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, tmp_path: Path) -> None:
    script = perdure("completion", shell)
    assert script.code == 0 and f"_PERDURE_COMPLETE=complete_{shell}" in script.out
    program = shutil.which(shell)
    if program is not None:
        (tmp_path / "script").write_text(script.out)
        subprocess.run([program, "-n", tmp_path / "script"], check=True)
