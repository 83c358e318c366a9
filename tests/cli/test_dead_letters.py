"""`perdure dead-letter`, against a server with a worker."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

from tests.cli.live import Cli


def fail(cli: Cli, workflow: str = "cli_failing", *words: str) -> str:
    run = cli.ok("run", workflow, *words).split("\t")[0].strip()
    assert cli("watch", run).code == 1
    return run


def test_list_shows_what_failed_and_why_to_programs_and_people(cli: Cli) -> None:
    mark = uuid4().hex
    run = fail(cli, "cli_failing", f"reason={mark}")
    (row,) = cli("dead-letter", "list", "--text", mark).lines
    assert row[:4] == [run, "cli_failing", "cli_explode", "1"] and row[5] == f"it broke: {mark}"
    (item,) = json.loads(cli.ok("dead-letter", "list", "-t", mark, "-o", "json"))
    assert item["run_id"] == run and item["queue"] == "default"
    seen = cli("dead-letter", "list", "-w", "cli_failing", "--task", "cli_explode", "--since", "1h", tty=True)
    assert run in seen.out and "perdure dead-letter retry --dry-run" in seen.out
    assert "no dead letters match" in cli("dead-letter", "list", "-q", "nowhere", tty=True).out
    assert cli("dead-letter", "list", "--until", "1h", "-t", mark).out == ""


def test_retry_wants_to_be_told_which_and_dry_run_changes_nothing(cli: Cli) -> None:
    refused = cli("dead-letter", "retry")
    assert refused.code == 2 and "choose what to retry" in refused.err and "--dry-run" in refused.err
    mark = uuid4().hex
    run = fail(cli, "cli_failing", f"reason={mark}")
    assert cli("dead-letter", "retry", run, "-w", "cli_failing").code == 2
    dry = cli("dead-letter", "retry", "-t", mark, "--dry-run")
    assert dry.code == 0 and dry.lines[0][:2] == [run, "would_retry"] and "without --dry-run" in dry.err
    assert json.loads(cli.ok("show", run, "-o", "json"))["status"] == "failed"


def test_retry_opens_what_it_finds_and_says_what_it_could_not(cli: Cli, repaired: Path) -> None:
    repaired.unlink(missing_ok=True)
    runs = {fail(cli, "cli_repair") for _ in range(3)}
    repaired.touch()
    try:
        done = cli("dead-letter", "retry", "--workflow", "cli_repair", "--since", "1d")
        assert done.code == 0 and {row[0] for row in done.lines} >= runs
        assert {row[1] for row in done.lines} == {"retried"} and "retried" in done.err
        for run in runs:
            assert cli("watch", run).code == 0
        again = cli("dead-letter", "retry", "--workflow", "cli_repair", tty=True)
        assert again.code == 0 and "nothing to retry" in again.out
        refused = cli("dead-letter", "retry", runs.pop())
        assert refused.code == 1 and refused.lines[0][1] == "refused" and "only failed runs" in refused.lines[0][2]
    finally:
        repaired.unlink(missing_ok=True)
