"""The first page people see, how fast it is there, and that it tells the truth."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from perdure.cli.commands import COMMANDS, load
from perdure.cli.main import app
from perdure.sdk.worker.capacity import SLOTS_DEFAULT
from perdure.sdk.worker.stream import DRAIN_S_DEFAULT
from tests.cli.live import perdure
from tests.fakes.failures import Failures

HERE = Path(__file__).parent
HELP_FACTOR_MAX = 2.0
"""Processor time of `perdure --help`, over that of importing typer: 1.4 to 1.6."""


def test_help_is_the_page_that_was_approved() -> None:
    approved = HERE / "help.txt"
    done = perdure("--help", COLUMNS="80")
    assert done.code == 0
    assert done.out == approved.read_text(), "if the change is meant: perdure --help > tests/cli/help.txt"


def test_commands_are_listed_with_their_own_first_sentence() -> None:
    with Failures() as failures:
        for name, entry in COMMANDS.items():
            with failures.of(f"perdure {name}"):
                command = load(entry.module)[name]
                assert command.get_short_help_str(200).rstrip(".") == entry.help.rstrip(".")


def test_help_of_commands_explains_every_option() -> None:
    with Failures() as failures:
        for name in COMMANDS:
            with failures.of(f"perdure {name} --help"):
                done = perdure(name, "--help")
                assert done.code == 0
                assert done.out.startswith(f"Usage: perdure {name} ")
                assert "<" not in done.out.replace("<id>", ""), "types of the language mean nothing to people"


def test_help_of_a_worker_states_the_defaults_that_hold() -> None:
    done = perdure("worker", "--help", COLUMNS="100")
    assert f"at a time. [{SLOTS_DEFAULT}]" in done.out
    assert f"when stopping. [{DRAIN_S_DEFAULT:g}s]" in done.out


def test_every_command_can_be_built() -> None:
    group = get_command(app)
    context = group.make_context("perdure", ["list"])
    assert all(group.get_command(context, name) is not None for name in COMMANDS)


@pytest.mark.usefixtures("interpreter")
def test_help_is_instant() -> None:
    """By processor time, and the best of several in turns: other tests use the machine too, and machines differ by a factor of two."""
    # As installed: compiled once.
    compiled = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def processor_s(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", *arguments], capture_output=True, check=True, env=compiled)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    program = "from perdure.cli.main import main; main()"
    took = [(processor_s("import typer.main"), processor_s(program, "--help")) for _ in range(6)]
    least, ours = (min(column) for column in zip(*took, strict=True))
    assert ours < HELP_FACTOR_MAX * least


@pytest.mark.usefixtures("interpreter")
def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nsys.argv = ['perdure', '--help']\nfrom perdure.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('loaded', *sorted({'rich', 'httpx2', 'fastapi', 'grpc', 'asyncpg', 'asyncio'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "loaded"


def test_a_mistyped_command_is_guessed() -> None:
    done = perdure("lsit")
    assert done.code == 2
    assert "Did you mean `perdure list`?" in done.err


def test_version() -> None:
    assert perdure("--version").out.startswith("perdure 0.")
