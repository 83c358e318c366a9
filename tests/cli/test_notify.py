"""`perdure notify`: rules, what was sent, and what could not be delivered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.cli.live import Cli, Done
from tests.fakes.receivers import Received, Receiver, http_receiver
from tests.fakes.waiting import until


class Rules:
    """The commands in a thread, because the receiver needs the event loop."""

    def __init__(self, cli: Cli, receiver: Receiver) -> None:
        self._cli, self.receiver = cli, receiver

    async def __call__(self, *words: str, **options: Any) -> Done:
        return await asyncio.to_thread(self._cli, "notify", *words, **options)

    async def json(self, *words: str) -> list[dict[str, Any]]:
        done = await self(*words, "-o", "json")
        assert done.code == 0, done.err
        found: list[dict[str, Any]] = json.loads(done.out)
        return found

    async def fail_a_run(self, path: str, count: int) -> Received:
        """A run that fails, and the notification of it: the `count`-th at this path."""
        started = await asyncio.to_thread(self._cli.ok, "run", "cli_failing")
        await until(lambda: len(self.receiver.of(path)) >= count, f"{count} notifications at {path}", 60)
        got = self.receiver.of(path)[count - 1]
        assert got.json["subject"] == started.split("\t")[0]
        return got

    async def logged(self, rule: str, status: str, count: int = 1) -> list[dict[str, Any]]:
        async def so_many() -> list[dict[str, Any]]:
            found = await self.json("log", "--rule", rule, "--status", status)
            return found if len(found) == count else []

        return await until(so_many, f"{count} {status} of {rule}", 60)


async def test_a_rule_from_its_making_to_its_end(cli: Cli) -> None:
    async with http_receiver() as receiver:
        notify = Rules(cli, receiver)
        url = receiver.url("/failed")
        made = await notify("create", "cli-failed", "--on", "run.failed", "--workflow", "cli_failing", "--to", url)
        assert made.code == 0, made.err
        name, address, secret = made.lines[0]
        assert (name, address) == ("cli-failed", url)
        assert "not shown again" in made.err and "perdure notify log --rule cli-failed" in made.err

        got = await notify.fail_a_run("/failed", 1)
        Webhook(secret).verify(got.body.decode(), got.headers)
        (done,) = await notify.logged("cli-failed", "done")
        assert (done["kind"], done["workflow"], done["attempts"]) == ("run.failed", "cli_failing", 1)
        (rule,) = [r for r in await notify.json("list") if r["name"] == "cli-failed"]
        assert (rule["kinds"], rule["workflows"], rule["target"]) == (["run.failed"], ["cli_failing"], "webhook")
        assert secret not in json.dumps(rule)
        table = await notify("log", tty=True, NO_COLOR="1")
        assert "run.failed" in table.out and "cli-failed" in table.out and "done" in table.out

        again = await notify("create", "cli-failed", "--on", "run.failed", "--on", "run.cancelled", "--to", url)
        assert again.code == 0 and secret not in again.out + again.err
        rotated = (await notify("rotate", "cli-failed")).lines[0][2]
        assert rotated != secret
        got = await notify.fail_a_run("/failed", 2)
        Webhook(rotated).verify(got.body.decode(), got.headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(got.body.decode(), got.headers)

        assert "deleted notification rule cli-failed" in (await notify("delete", "cli-failed")).err
        assert "cli-failed" not in [r["name"] for r in await notify.json("list")]
        assert (await notify("delete", "cli-failed")).code == 4
        assert (await notify("rotate", "cli-failed")).code == 4


async def test_a_dead_notification_is_listed_with_its_error_and_tried_again(cli: Cli) -> None:
    async with http_receiver() as receiver:
        notify = Rules(cli, receiver)
        receiver.answer = lambda _: (410, {})
        words = ("--on", "run.failed", "--workflow", "cli_failing", "--to", receiver.url("/gone"))
        assert (await notify("create", "cli-gone", *words)).code == 0
        first = await notify.fail_a_run("/gone", 1)
        (dead,) = await notify.logged("cli-gone", "dead")
        assert "410" in dead["error"] and dead["id"] == first.headers["webhook-id"]
        (rule,) = [r for r in await notify.json("list") if r["name"] == "cli-gone"]
        assert (rule["dead"], rule["pending"]) == (1, 0)

        receiver.answer = lambda _: (204, {})
        assert "0 dead notifications" in (await notify("retry", "--rule", "cli-other")).err
        assert "1 dead notifications are tried again" in (await notify("retry", dead["id"])).err
        (done,) = await notify.logged("cli-gone", "done")
        assert done["id"] == dead["id"] and receiver.ids == [dead["id"]] * 2
        assert (await notify("retry", dead["id"])).code == 4
        assert (await notify("delete", "cli-gone")).code == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--on", "run.exploded", "--to", "https://example.com/x"), "run.exploded"),
        (("--on", "run.late", "--to", "https://example.com/x"), "late"),
        (("--on", "run.failed", "--to", "ftp://example.com/x"), "http"),
        (("--on", "run.failed", "--to", "mailto:nobody"), "nobody"),
        (("--on", "run.failed", "--to", "slack:nowhere"), "http"),
        (("--to", "https://example.com/x"), "--on"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said(cli: Cli, words: tuple[str, ...], error: str) -> None:
    done = cli("notify", "create", "cli-wrong", *words)
    assert (done.code, done.out) == (2, "")
    assert error in done.err
    assert "cli-wrong" not in cli.ok("notify", "list")


def test_the_target_is_read_from_the_form_of_the_address(cli: Cli) -> None:
    cli.ok("notify", "create", "cli-mail", "--on", "run.failed", "--to", "mailto:ada@example.com,ben@example.com")
    cli.ok(
        "notify", "create", "cli-slack", "--on", "run.late", "--late-after", "1h", "--to", "slack:https://h.example/x"
    )
    rules = {r["name"]: r for r in json.loads(cli.ok("notify", "list", "-o", "json"))}
    assert (rules["cli-mail"]["target"], rules["cli-mail"]["address"]) == ("email", "ada@example.com, ben@example.com")
    assert rules["cli-slack"]["target"] == "slack"
    for name in ("cli-mail", "cli-slack"):
        cli.ok("notify", "delete", name)
