"""`perdure limit`, `workflow pause`, and deferred starts, against a server with a worker."""

from __future__ import annotations

import json

import pytest

from perdure.cli.limits import parse_rate, parse_scope, rate_text
from perdure.core.errors import InvalidInput
from tests.cli.live import Cli


def test_a_limit_is_set_listed_and_taken_back(cli: Cli) -> None:
    made = json.loads(cli.ok("limit", "set", "queue/cli_io", "--max", "10", "--rate", "100/s", "-o", "json"))
    assert (made["scope"], made["name"], made["concurrency"]) == ("queue", "cli_io", 10)
    assert (made["rate"]["count"], made["rate"]["per_s"]) == (100, 1)
    out = cli.ok("limit", "set", "queue/cli_io", "--rate", "5000/1h30m", "--burst", "7", tty=True, NO_COLOR="1")
    assert "queue/cli_io: at most 5000/1h30m" in out
    assert "perdure limit clear queue/cli_io" in out
    rows = {line[0]: line for line in cli("limit", "list").lines}
    assert rows["queue/cli_io"][1:3] == ["", "5000/1h30m"]
    done = cli("limit", "clear", "queue/cli_io")
    assert (done.code, "queue/cli_io" in cli.ok("limit", "list")) == (0, False)
    done = cli("limit", "clear", "queue/cli_io")
    assert done.code == 4
    assert "no limit is set for queue/cli_io" in done.err


def test_what_is_paused_waits_and_goes_on(cli: Cli) -> None:
    out = cli.ok("workflow", "pause", "cli_greet", "--reason", "the bank is down", tty=True, NO_COLOR="1")
    assert "workflow/cli_greet: paused by" in out
    assert "the bank is down" in out
    assert "perdure workflow resume cli_greet" in out
    try:
        run = cli.ok("run", "cli_greet", "name=Ada").split("\t")[0]
        assert "the bank is down" in cli.ok("limit", "list")
        assert cli.ok("show", run, "--fields", "status").strip() in ('{"status": "pending"}', '{"status":"pending"}')
    finally:
        cli.ok("workflow", "resume", "cli_greet")
    assert cli("watch", run).code == 0
    done = cli("workflow", "resume", "cli_greet")
    assert done.code == 4
    assert "not paused" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["limit", "set", "queue/x"], "--max"),
        (["limit", "set", "queu/x", "--max", "1"], "did you mean 'queue'?"),
        (["limit", "set", "queue", "--max", "1"], "write queue/NAME"),
        (["limit", "set", "queue/x", "--rate", "100"], "100/s"),
        (["limit", "set", "queue/x", "--rate", "x/s"], "not N/TIME"),
        (["limit", "set", "queue/x", "--max", "1", "--burst", "2"], "--rate"),
        (["pause", "queue/x"], "perdure queue pause NAME"),
        (["run", "cli_greet", "--dedup-within", "10m"], "--dedup"),
        (["run", "cli_greet", "--debounce-key", "k"], "--debounce"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(cli: Cli, words: list[str], said: str) -> None:
    done = cli(*words)
    assert done.code == 2
    assert said in done.err


def test_a_second_start_under_a_key_is_the_first_run(cli: Cli) -> None:
    runs = {
        cli.ok("run", "cli_greet", f"name=n{i}", "--dedup", "cli-k", "--dedup-within", "10m").split("\t")[0]
        for i in range(3)
    }
    assert len(runs) == 1


def test_a_debounced_start_says_when_it_begins_and_can_be_watched(cli: Cli) -> None:
    words = ("run", "cli_greet", "--debounce", "500ms", "--debounce-key", "cli-d")
    first = cli(*words, "name=Ada").lines[0]
    assert first[1] == "deferred"
    done = cli(*words, "name=Grace", "--watch")
    assert done.code == 0
    found = json.loads(cli.ok("show", first[0], "-o", "json"))
    assert found["input"] == {"name": "Grace"}


def test_words_of_rates_and_scopes() -> None:
    assert parse_rate("100/s") == {"count": 100, "per": "1s"}
    assert parse_rate("2.5/90s") == {"count": 2.5, "per": "90s"}
    assert parse_rate("10/PT1M30S") == {"count": 10, "per": "PT1M30S"}
    with pytest.raises(InvalidInput, match="--rate: .*months, which differ in length"):
        parse_rate("10/P1M")
    assert rate_text({"rate": {"count": 100, "per_s": 60, "burst": None}}) == "100/m"
    assert rate_text({"rate": None}) is None
    assert parse_scope("namespace") == ("namespace", "-")
    with pytest.raises(InvalidInput):
        parse_scope("nowhere/x")
