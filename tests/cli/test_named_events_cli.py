"""`perdure event`, `perdure webhook`, and `perdure signal` to a run that may not be there yet."""

from __future__ import annotations

import hmac
import json
from datetime import UTC, datetime
from pathlib import Path

import httpx2
from standardwebhooks import Webhook

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


def signed(secret: str, body: bytes) -> dict[str, str]:
    at = datetime.now(UTC)
    signature = Webhook(secret).sign("msg_1", at, body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}


def test_a_webhook_from_its_making_to_its_end(cli: Cli) -> None:
    made = cli("webhook", "create", "shop", "--event", "cli.hooked")
    assert made.code == 0, made.err
    name, url, secret = made.lines[0]
    assert name == "shop" and url == f"{cli.url}/hooks/default/shop" and "not shown again" in made.err
    body = b'{"a": 1}'
    header = signed(secret, body)
    assert httpx2.post(url, content=body, headers=header, timeout=120).status_code == 200
    assert json.loads(cli.ok("event", "list", "--name", "cli.hooked", "-o", "json"))[0]["payload"] == {"a": 1}
    again = cli("webhook", "create", "shop", "--event", "cli.other")
    assert again.code == 0 and "keeps its secret" in again.err and secret not in again.out + again.err
    assert json.loads(cli.ok("webhook", "list", "-o", "json"))[0]["event"] == "cli.other"
    assert secret not in cli.ok("webhook", "list", "-o", "json")
    kept = cli("webhook", "rotate", "shop", "--keep-old", "24h")
    assert "stays valid until" in kept.err
    assert httpx2.post(url, content=body, headers=header, timeout=120).status_code == 200
    fresh = cli("webhook", "rotate", "shop").lines[0][2]
    assert fresh not in (secret, kept.lines[0][2])
    assert httpx2.post(url, content=body, headers=header, timeout=120).status_code == 404
    assert "deleted webhook" in cli("webhook", "delete", "shop").err + cli("webhook", "list").out
    assert cli("webhook", "delete", "shop").code == 4


def test_a_webhook_can_signal_one_run_and_start_it(cli: Cli) -> None:
    target = ("--signal", "go", "--run", "key:cli-hook-${ body.id }", "--start", "cli_waiting", "--value", "body.word")
    made = cli("webhook", "create", "runs", *target)
    assert made.code == 0, made.err
    _, url, secret = made.lines[0]
    body = b'{"id": 1, "word": "a"}'
    answer = httpx2.post(url, content=body, headers=signed(secret, body), timeout=120)
    assert answer.status_code == 202
    assert answer.json()["run_id"] in cli.ok("show", "key:cli-hook-1", "-o", "json")
    (listed,) = json.loads(cli.ok("webhook", "list", "-o", "json"))
    assert [listed[name] for name in ("event", "signal", "start", "input")] == [None, "go", "cli_waiting", None]
    assert "signal go to key:cli-hook-${ body.id }, starts cli_waiting" in cli.ok("webhook", "list")
    again = cli("webhook", "create", "runs", "--signal", "go", "--run", "key:cli-hook-1")
    assert "now sends signal go to key:cli-hook-1 and keeps its secret" in again.err
    wrong = cli("webhook", "create", "runs", "--signal", "go", "--run", "cli-hook-1")
    assert wrong.code == 2 and "invalid run: 'cli-hook-1'. Use key:KEY" in wrong.err
    assert cli("webhook", "create", "runs", "--event", "e", "--signal", "go", "--run", "key:1").code == 2
    assert cli("webhook", "delete", "runs").code == 0


def test_the_secret_of_a_provider_comes_from_a_file_and_is_not_shown(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hush hush hush\n")
    made = cli("webhook", "create", "gh", "--scheme", "github", "--secret-file", str(file))
    assert made.code == 0 and "hush" not in made.out + made.err
    body = b'{"ref": "main"}'
    mac = hmac.new(b"hush hush hush", body, "sha256").hexdigest()
    headers = {"X-Hub-Signature-256": f"sha256={mac}", "X-GitHub-Event": "push", "X-GitHub-Delivery": "1"}
    assert httpx2.post(made.lines[0][1], content=body, headers=headers, timeout=120).status_code == 200
    assert [e["key"] for e in json.loads(cli.ok("event", "list", "--name", "github.push", "-o", "json"))] == [
        "hook:gh:1"
    ]
    wrong = cli("webhook", "create", "st", "--scheme", "stripe")
    assert wrong.code == 2 and "chooses the secret itself" in wrong.err
    assert cli("webhook", "create", "st", "--secret-file", str(tmp_path / "none")).code == 2
    assert cli("webhook", "delete", "gh").code == 0


def test_a_signal_can_start_the_run_it_is_for(cli: Cli) -> None:
    path = ("signal", "key:cli-events-1", "go", '"a"', "--start", "cli_waiting")
    first = cli(*path)
    assert first.code == 0, first.err
    run = first.lines[0][0]
    assert run in cli.ok("show", "key:cli-events-1", "-o", "json")
    assert cli("signal", "cli-events-1", "go", "--start", "cli_waiting").code == 2
    missing = cli("signal", "key:x", "go", "--start", "cli_waitng")
    assert missing.code == 4 and "Did you mean cli_waiting?" in missing.err
