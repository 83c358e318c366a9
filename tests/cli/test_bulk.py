"""`perdure cancel --query` and `perdure bulk`, against a server with a worker."""

from __future__ import annotations

import json
from uuid import uuid4

from tests.cli.live import Cli


def begin(cli: Cli, count: int, mark: str) -> list[str]:
    return [cli.ok("run", "cli_waiting", "--attr", f"mark={mark}").split("\t")[0].strip() for _ in range(count)]


def test_many_runs_are_counted_and_then_cancelled(cli: Cli) -> None:
    mark = uuid4().hex
    runs, others = begin(cli, 3, mark), begin(cli, 1, uuid4().hex)
    query = f"attr.mark = '{mark}' and status in (pending, running)"
    dry = cli("cancel", "--query", query, "--dry-run")
    assert dry.code == 0 and dry.lines[0][1:] == ["success", "3", "0", "0", "0"]
    seen = cli("cancel", "--query", query, "--dry-run", tty=True)
    assert "3 runs match; nothing was done" in seen.out and "u001b" not in seen.out, (
        "the line of progress is written over"
    )
    asked = cli("cancel", "--query", query)
    assert asked.code == 2 and "3 runs match; nothing was done" in asked.err and "--yes" in asked.err
    done = cli("cancel", "--query", query, "--yes", "--reason", "wrong input")
    assert done.code == 0 and done.lines[0][1:] == ["success", "3", "3", "0", "0"]
    for run in runs:
        assert cli("watch", run).code == 3
    assert json.loads(cli.ok("show", others[0], "--json"))["status"] in ("pending", "running")
    job = done.lines[0][0]
    shown = json.loads(cli.ok("bulk", "show", job, "--json"))
    assert (shown["reason"], shown["action"], shown["done"]) == ("wrong input", "cancel", 3)
    assert {(line[0], line[1]) for line in cli("bulk", "runs", job).lines} == {(run, "done") for run in runs}
    assert cli("bulk", "runs", job, "--outcome", "failed").out == ""
    assert job in {line[0] for line in cli("bulk", "list").lines}
    again = cli("terminate", "--query", f"attr.mark = '{mark}'", "-y", tty=True)
    assert again.code == 0 and "0 terminated, 3 skipped of 3 runs" in again.out and "--outcome skipped" in again.out
    assert cli("terminate", others[0]).code == 0


def test_runs_that_refuse_are_reported_and_the_exit_code_says_so(cli: Cli) -> None:
    mark = uuid4().hex
    (run,) = begin(cli, 1, mark)
    done = cli("pause", "--query", f"attr.mark = '{mark}'", "-y")
    assert done.code == 0 and done.lines[0][3] == "1"
    resumed = cli("resume", "--query", f"attr.mark = '{mark}' and paused", "-y", "--detach")
    assert resumed.code == 0
    assert cli("bulk", "show", resumed.lines[0][0], "--wait").code == 0
    assert cli("terminate", run).code == 0
    deleted = cli("delete", "--query", f"attr.mark = '{mark}'", "-y")
    assert deleted.lines[0][1:] == ["success", "1", "1", "0", "0"]
    assert cli("show", run).code == 4


def test_many_runs_get_a_signal(cli: Cli) -> None:
    mark = uuid4().hex
    runs = [cli.ok("run", "cli_forever", "--attr", f"mark={mark}").split("\t")[0].strip() for _ in range(2)]
    done = cli("signal", "--query", f"attr.mark = '{mark}'", "go", "on", "-y")
    assert done.code == 0 and done.lines[0][1:] == ["success", "2", "2", "0", "0"], done.err
    for run in runs:
        assert cli("watch", run).code == 0
    again = cli("signal", "--query", f"attr.mark = '{mark}'", "go", "--yes", tty=True)
    assert again.code == 0 and "0 signalled, 2 skipped of 2 runs" in again.out


def test_what_is_not_clear_is_refused(cli: Cli) -> None:
    for words, said in (
        (("signal",), "--query"),
        (("signal", "@last"), "NAME"),
        (("signal", "@last", "go", "on", "--query", "stuck"), "no RUN"),
        (("signal", "@last", "go", "on", "--yes"), "--query or --view"),
        (("cancel",), "--query"),
        (("cancel", "@last", "--query", "stuck"), "not both"),
        (("cancel", "@last", "--yes"), "--query or --view"),
        (("cancel", "--query", "status ="), "status"),
        (("delete", "--query", "", "-y"), "query"),
    ):
        done = cli(*words)
        assert done.code == 2 and said in done.err, words
    assert cli("cancel", "--view", "none", "-y").code == 4
    assert cli("bulk", "show", "nonsense").code == 4
