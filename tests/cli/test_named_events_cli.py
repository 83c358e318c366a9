"""`perdure event`, `perdure webhook`, and `perdure signal` to a run that may not be there yet."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx2

from perdure.core import webhooks
from tests.cli.live import Cli


def test_an_event_is_sent_once_under_its_key_and_listed(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text('{"order_id": 42}')
    first = cli("event", "send", "cli.paid", "-d", f"@{file}", "--key", "p1")
    assert first.code == 0, first.err
    assert "perdure event list --name cli.paid" in first.err
    id_, name, fresh = first.lines[0]
    assert (name, fresh) == ("cli.paid", "true")
    assert cli("event", "send", "cli.paid", "--key", "p1").lines[0] == [id_, "cli.paid", "false"]
    assert json.loads(cli.ok("event", "send", "cli.paid", "-o", "json"))["is_new"] is True
    listed = json.loads(cli.ok("event", "list", "--name", "cli.paid", "-o", "json"))
    assert [e["payload"] for e in listed] == [None, {"order_id": 42}]
    assert "cli.paid" in cli.ok("event", "list", tty=True, NO_COLOR="1")


def test_what_is_wrong_with_an_event_is_said(cli: Cli) -> None:
    assert cli("event", "send", "cli.x", "-d", "{broken").code == 2
    assert cli("event", "send", "x" * 300).code == 2
    assert "no named events" in cli("event", "list", "--name", "cli.nothing", tty=True).out


def test_a_webhook_from_its_making_to_its_end(cli: Cli) -> None:
    made = cli("webhook", "create", "shop", "--event", "cli.hooked")
    assert made.code == 0, made.err
    name, url, secret = made.lines[0]
    assert name == "shop" and url == f"{cli.url}/hooks/default/shop" and "not shown again" in made.err
    body = b'{"a": 1}'
    header = {webhooks.HEADER: webhooks.header(secret.encode(), int(time.time()), body)}
    assert httpx2.post(url, content=body, headers=header).status_code == 200
    assert json.loads(cli.ok("event", "list", "--name", "cli.hooked", "-o", "json"))[0]["payload"] == {"a": 1}
    again = cli("webhook", "create", "shop", "--event", "cli.other")
    assert again.code == 0 and "keeps its secret" in again.err and secret not in again.out + again.err
    assert json.loads(cli.ok("webhook", "list", "-o", "json"))[0]["event"] == "cli.other"
    assert secret not in cli.ok("webhook", "list", "-o", "json")
    fresh = cli("webhook", "rotate", "shop").lines[0][2]
    assert fresh != secret
    assert httpx2.post(url, content=body, headers=header).status_code == 404
    assert "deleted webhook" in cli("webhook", "delete", "shop").err + cli("webhook", "list").out
    assert cli("webhook", "delete", "shop").code == 4


def test_a_signal_can_start_the_run_it_is_for(cli: Cli) -> None:
    path = ("signal", "key:cli-events-1", "go", '"a"', "--start", "cli_waiting")
    first = cli(*path)
    assert first.code == 0, first.err
    run = first.lines[0][0]
    assert run in cli.ok("show", "key:cli-events-1", "-o", "json")
    assert cli("signal", "cli-events-1", "go", "--start", "cli_waiting").code == 2
    missing = cli("signal", "key:x", "go", "--start", "cli_waitng")
    assert missing.code == 4 and "Did you mean cli_waiting?" in missing.err
