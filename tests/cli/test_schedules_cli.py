"""`perdure schedule` and `perdure calendar`, as a person sees them and as a pipe does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.live import Cli

CRON = ("--cron", "0 8 * * *", "--tz", "Europe/Paris")


@pytest.fixture(autouse=True)
def tidy(cli: Cli) -> Iterator[None]:
    """The server is shared: nothing that a test makes stays."""
    yield
    for line in cli("schedule", "list").lines:
        cli("schedule", "delete", line[0])
    for line in cli("calendar", "list").lines:
        cli("calendar", "delete", line[0])


def test_a_schedule_is_created_listed_and_shown(cli: Cli) -> None:
    done = cli("schedule", "create", "nightly", "cli_greet", "name=Ada", *CRON, tty=True)
    assert re.match(
        r"schedule nightly starts cli_greet: at 08:00, every day \(Europe/Paris\), next at \d{4}-\d\d-\d\d \d\d:00:00\n",
        done.out,
    ), done
    assert "perdure schedule show nightly" in done.out
    (row,) = cli("schedule", "list").lines
    assert row[:4] == ["nightly", "cli_greet", "0 8 * * * Europe/Paris", "active"]
    assert row[5:] == ["0", "0", "0", ""]
    table = cli.ok("schedule", "list", tty=True, NO_COLOR="1")
    assert "schedule" in table and "nightly" in table
    shown = cli.ok("schedule", "show", "nightly", tty=True, NO_COLOR="1")
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0] == ["nightly", "active"]
    assert ["workflow", "cli_greet"] in lines
    assert ["when", "0", "8", "*", "*", "*", "Europe/Paris"] in lines and "at 08:00, every day (Europe/Paris)" in shown
    assert ["input", '{"name":', '"Ada"}'] in lines
    assert ["fired", "0,", "skipped", "0,", "missed", "0"] in lines
    assert sum(bool(re.search(r"\d{4}-\d\d-\d\d \d\d:00:00", line)) for line in shown.splitlines()) == 5
    whole = json.loads(cli.ok("schedule", "show", "nightly", "-o", "json"))
    assert whole["spec"] == {"cron": "0 8 * * *", "tz": "Europe/Paris"}
    assert len(whole["times"]) == 5 and whole["words"] == "at 08:00, every day (Europe/Paris)"


def test_cron_expressions_are_explained_without_a_server(cli: Cli) -> None:
    done = cli("schedule", "explain", "0 8 * * 1-5", "@hourly", PERDURE_URL="http://127.0.0.1:9")
    assert done.lines == [["0 8 * * 1-5", "at 08:00, Monday to Friday"], ["@hourly", "every hour"]]
    assert "the hour '25' cannot be read" in cli("schedule", "explain", "0 25 * * *").err


def test_a_name_that_is_taken_is_told_and_can_be_replaced(cli: Cli) -> None:
    cli.ok("schedule", "create", "nightly", "cli_greet", "name=Ada", *CRON)
    again = cli("schedule", "create", "nightly", "cli_greet", "name=Ada", *CRON)
    assert again.code == 1
    assert again.err.startswith("perdure: there is a schedule 'nightly' already")
    cli.ok("schedule", "create", "nightly", "cli_greet", "name=Bo", "--every", "2h", "--replace")
    assert json.loads(cli.ok("schedule", "show", "nightly", "-o", "json"))["spec"] == {"every": "2h"}


def test_mistakes_are_told_as_they_are(cli: Cli) -> None:
    done = cli("schedule", "create", "s", "cli_greet", "--cron", "0 25 * * *")
    assert (done.code, "the hour '25' cannot be read" in done.err) == (2, True)
    done = cli("schedule", "create", "s", "cli_greeet", "--every", "1h")
    assert (done.code, "did you mean 'cli_greet'" in done.err) == (4, True)
    done = cli("schedule", "pause", "nothing")
    assert (done.code, "there is no schedule 'nothing'" in done.err) == (4, True)
    done = cli("schedule", "next")
    assert (done.code, "name a schedule, or pass --cron" in done.err) == (2, True)


def test_pause_resume_trigger_and_fires(cli: Cli) -> None:
    cli.ok("schedule", "create", "nightly", "cli_greet", "name=Ada", *CRON)
    paused = cli("schedule", "pause", "nightly", "--reason", "a holiday", tty=True)
    assert paused.out.startswith("schedule nightly is paused\n")
    assert "by dev: a holiday" in cli.ok("schedule", "show", "nightly", tty=True, NO_COLOR="1")
    assert cli("schedule", "list").lines[0][3:5] == ["paused", ""]
    assert cli("schedule", "resume", "nightly", tty=True).out.startswith("schedule nightly is resumed, next at ")
    run = cli.ok("schedule", "trigger", "nightly").strip()
    assert cli("watch", "@last").code == 0
    (fire,) = cli("schedule", "fires", "nightly").lines
    assert fire[1:] == ["trigger", "started", "success", run]
    assert "✓ success" in cli.ok("schedule", "fires", "nightly", tty=True, NO_COLOR="1")
    assert cli("schedule", "delete", "nightly").err == "deleted schedule nightly\n"


def test_the_next_times_of_a_schedule_and_of_an_idea(cli: Cli) -> None:
    cli.ok("schedule", "create", "nightly", "cli_greet", "name=Ada", *CRON)
    done = cli("schedule", "next", "nightly", "-l", "3")
    stored = done.lines
    assert len(stored) == 3, done
    assert cli("schedule", "next", "-l", "3", *CRON).lines == stored
    seen = cli.ok("schedule", "next", "-l", "2", *CRON, tty=True, NO_COLOR="1")
    assert len(re.findall(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d 08:00:00 CES?T", seen)) == 2


def test_a_backfill_says_what_it_would_do_and_then_does_it(cli: Cli) -> None:
    cli.ok("schedule", "create", "nightly", "cli_greet", "name=Ada", *CRON)
    dry = cli("schedule", "backfill", "nightly", "--since", "2d", "--dry-run", tty=True, NO_COLOR="1")
    assert dry.out.count("would start") == 3
    assert "2 runs would start" in dry.out
    assert "perdure schedule backfill nightly --since 2d" in dry.out
    done = cli("schedule", "backfill", "nightly", "--since", "2d")
    assert [line[1] for line in done.lines] == ["started", "started"]
    assert done.err == "2 runs started\n"
    assert [line[1] for line in cli("schedule", "backfill", "nightly", "--since", "2d").lines] == ["exists", "exists"]


def test_calendars_are_set_from_files_and_options(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "holidays.yaml"
    file.write_text("yearly: [12-25, 01-01]\nranges: [[2026-08-01, 2026-08-15]]\n")
    assert cli("calendar", "set", "holidays", str(file), tty=True).out.startswith("saved calendar holidays\n")
    cli.ok("calendar", "set", "weekend", "--weekday", "sat", "--weekday", "sun")
    rows = cli("calendar", "list").lines
    assert [r[0] for r in rows] == ["holidays", "weekend"]
    assert json.loads(rows[1][1]) == {"weekdays": ["sat", "sun"]}
    cli.ok("schedule", "create", "s", "cli_greet", "name=x", *CRON, "--exclude", "holidays", "--exclude", "weekend")
    refused = cli("calendar", "delete", "weekend")
    assert (refused.code, "used by s" in refused.err) == (1, True)
    neither = cli("calendar", "set", "x")
    assert (neither.code, "give the days in a file" in neither.err) == (2, True)


def test_triggers_of_a_flow_are_schedules_with_a_slash(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "cli_etl.yaml"
    file.write_text('triggers: [{cron: "0 3 * * *", name: early}, {every: 6h}]\ntasks: {a: {value: 1}}\n')
    cli.ok("deploy", str(file))
    assert [line[0] for line in cli("schedule", "list").lines] == ["cli_etl/2", "cli_etl/early"]
    assert cli("schedule", "pause", "cli_etl/early").code == 0
    assert json.loads(cli.ok("schedule", "show", "cli_etl/early", "-o", "json"))["state"] == "paused"


def test_validate_checks_triggers(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text('triggers: [{cron: "0 99 * * *"}]\ntasks: {a: {value: 1}}\n')
    done = cli("validate", str(file))
    assert done.code == 1
    assert "bad.yaml:1:19: error: cron: '0 99 * * *': the hour '99' cannot be read" in done.err
