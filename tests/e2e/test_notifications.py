"""Notifications end to end: real runs, a real HTTP receiver, a real SMTP server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from perdure import Approval, Perdure, Promise, Retry, Schedule, task, workflow
from perdure.core import ids
from perdure.core.api import notifications as acts
from perdure.core.api import runs
from perdure.core.api.notifications import (
    ListNotificationRules,
    ListNotifications,
    NotificationItem,
    NotificationRuleRef,
    NotificationRuleReply,
    PutNotificationRule,
    RetryNotifications,
)
from perdure.errors import InvalidInput, NotFound, RunFailed
from tests.fakes.receivers import Receiver, http_receiver, smtp_receiver
from tests.fakes.waiting import until

KEY = base64.b64encode(bytes(range(32))).decode()
never = Promise("notify_never", int)
go = Approval("notify_go", assignees=["ada"], title="Go on?")


@task(retry=Retry(1))
async def notify_break(why: str) -> None:
    raise ValueError(why)


@workflow
async def notify_fails(why: str = "out of stock") -> None:
    await notify_break(why)


@workflow
async def notify_works() -> int:
    return 42


@workflow
async def notify_waits() -> None:
    await never.wait()


@workflow
async def notify_asks() -> None:
    await go.wait()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with http_receiver() as one:
        yield one


@pytest.fixture
async def app(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Perdure]:
    monkeypatch.setenv("PERDURE_SECRET_KEY", KEY)
    monkeypatch.setenv("PERDURE_NOTIFY_ALLOW", "127.0.0.1")
    monkeypatch.setenv("PERDURE_NOTIFY_TIMEOUT", "2s")
    monkeypatch.setenv("PERDURE_URL", "https://perdure.example")
    async with Perdure(dsn) as one:
        yield one


async def rule(app: Perdure, name: str, address: str, *kinds: str, **more: Any) -> NotificationRuleReply:
    wanted: dict[str, Any] = {"workflows": ["*"], "target": "webhook", **more}
    new = PutNotificationRule(name=name, kinds=list(kinds) or ["run.failed"], address=address, **wanted)
    return await app._backend.call(acts.PUT_RULE, new)


async def sent(app: Perdure, **wanted: str) -> list[NotificationItem]:
    return (await app._backend.call(acts.LIST, ListNotifications(**wanted, limit=1_000))).items


async def all_done(app: Perdure, count: int) -> list[NotificationItem]:
    async def done() -> list[NotificationItem]:
        found = await sent(app, status="done")
        return found if len(found) >= count else []

    return await until(done, f"{count} notifications are done")


async def failed(why: str = "out of stock") -> bytes:
    handle = await notify_fails.start(why)
    with pytest.raises(RunFailed):
        await handle.result()
    return ids.parse(handle.id)


async def test_a_failed_run_is_sent_once_as_a_signed_cloud_event(app: Perdure, receiver: Receiver) -> None:
    made = await rule(app, "on-call", receiver.url())
    assert made.secret is not None and made.secret.startswith("whsec_")
    run_id = await failed()
    (item,) = await all_done(app, 1)
    (got,) = receiver.requests
    event = Webhook(made.secret).verify(got.body.decode(), got.headers)
    assert event == got.json
    assert got.headers["content-type"] == "application/cloudevents+json"
    assert got.headers["webhook-id"] == event["id"] == item.id
    assert (event["specversion"], event["type"]) == ("1.0", "perdure.run.failed")
    assert event["source"] == "/perdure/namespaces/default"
    assert event["subject"] == event["data"]["run_id"] == ids.text(run_id)
    assert event["time"].endswith("Z")
    data = event["data"]
    assert (data["workflow"], data["status"], data["rule"]) == ("notify_fails", "failed", "on-call")
    assert "out of stock" in data["error"]
    assert data["url"] == f"https://perdure.example/runs/{ids.text(run_id)}"
    tampered = got.body.replace(b"run.failed", b"run.passed").decode()
    with pytest.raises(WebhookVerificationError):
        Webhook(made.secret).verify(tampered, got.headers)


async def test_a_rule_hears_only_of_its_workflows_and_its_kinds(app: Perdure, receiver: Receiver) -> None:
    await rule(app, "all", receiver.url("/all"), "run.failed", "run.succeeded")
    await rule(app, "works", receiver.url("/works"), "run.succeeded", "run.failed", workflows=["notify_works"])
    await rule(app, "failures", receiver.url("/failures"), "run.failed")
    await failed()
    handle = await notify_works.start()
    assert await handle.result() == 42
    await all_done(app, 4)
    assert {r.json["type"] for r in receiver.of("/all")} == {"perdure.run.failed", "perdure.run.succeeded"}
    assert [r.json["data"]["workflow"] for r in receiver.of("/works")] == ["notify_works"]
    assert [r.json["data"]["workflow"] for r in receiver.of("/failures")] == ["notify_fails"]
    assert len(receiver.requests) == 4


async def test_a_retried_run_that_fails_again_is_sent_again(app: Perdure, receiver: Receiver) -> None:
    await rule(app, "on-call", receiver.url())
    run_id = await failed()
    await all_done(app, 1)
    await app._backend.call(runs.RETRY, runs.ChangeRun(ids.text(run_id)))
    await all_done(app, 2)
    assert len(set(receiver.ids)) == 2
    assert {r.json["subject"] for r in receiver.requests} == {ids.text(run_id)}


async def test_a_failed_delivery_is_repeated_under_the_same_id(app: Perdure, receiver: Receiver) -> None:
    receiver.answer = lambda _: (204, {}) if len(receiver.requests) > 1 else (500, {})
    made = await rule(app, "on-call", receiver.url())
    await failed()
    (item,) = await all_done(app, 1)
    assert item.attempts == 2
    assert receiver.ids == [item.id, item.id]
    assert made.secret is not None
    for got in receiver.requests:
        Webhook(made.secret).verify(got.body.decode(), got.headers)


async def test_a_receiver_that_is_gone_makes_a_notification_dead_until_it_is_retried(
    app: Perdure, receiver: Receiver
) -> None:
    receiver.answer = lambda _: (410, {})
    await rule(app, "on-call", receiver.url())
    await failed()
    (dead,) = await until(lambda: sent(app, status="dead"), "it is dead")
    assert dead.error is not None and "410" in dead.error
    (shown,) = (await app._backend.call(acts.LIST_RULES, ListNotificationRules())).items
    assert (shown.dead, shown.pending) == (1, 0)
    receiver.answer = lambda _: (200, {})
    assert (await app._backend.call(acts.RETRY, RetryNotifications(dead.id))).count == 1
    (done,) = await all_done(app, 1)
    assert done.id == dead.id
    with pytest.raises(NotFound):
        await app._backend.call(acts.RETRY, RetryNotifications(dead.id))


async def test_a_slow_target_does_not_delay_another(app: Perdure, receiver: Receiver) -> None:
    async with http_receiver() as slow:
        slow.held = asyncio.Event()
        await rule(app, "slow", slow.url())
        await rule(app, "quick", receiver.url())
        for n in range(20):
            await failed(str(n))
        await until(lambda: len(receiver.requests) == 20, "the quick target has all")
        assert len(await sent(app, rule="slow", status="done")) == 0
        assert len({*slow.ids}) <= 20


async def test_private_addresses_are_refused_unless_they_are_allowed(
    dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_SECRET_KEY", KEY)
    async with Perdure(dsn) as app:
        await rule(app, "on-call", receiver.url())
        await failed()
        found = await until(lambda: _tried(app), "it was tried")
    assert "loopback" in str(found[0].error) and "PERDURE_NOTIFY_ALLOW" in str(found[0].error)
    assert receiver.requests == []


async def _tried(app: Perdure) -> list[NotificationItem]:
    return [n for n in await sent(app) if n.error]


async def test_a_deleted_rule_sends_nothing_more(app: Perdure, receiver: Receiver) -> None:
    receiver.answer = lambda _: (500, {})
    await rule(app, "on-call", receiver.url())
    await failed()
    await until(lambda: _tried(app), "it was tried")
    await app._backend.call(acts.DELETE_RULE, NotificationRuleRef("on-call"))
    assert await sent(app) == []
    with pytest.raises(NotFound):
        await app._backend.call(acts.DELETE_RULE, NotificationRuleRef("on-call"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kinds": ["run.fails"]}, "did you mean"),
        ({"kinds": []}, "at least one kind"),
        ({"kinds": ["run.late"]}, "late_after"),
        ({"target": "fax"}, "no target"),
        ({"address": "ftp://example.com"}, "no URL"),
        ({"address": "https://user:pass@example.com"}, "password"),
        ({"target": "email", "address": "ada"}, "no email address"),
        ({"target": "email", "address": "ada@example.com\nbcc: all@example.com"}, "no email address"),
        ({"workflows": []}, "1 to NOTIFY_WORKFLOWS_MAX"),
    ],
)
async def test_a_rule_that_cannot_work_is_refused(app: Perdure, changes: dict[str, Any], told: str) -> None:
    good: dict[str, Any] = {
        "name": "r",
        "workflows": ["*"],
        "kinds": ["run.failed"],
        "target": "webhook",
        "address": "https://example.com",
    }
    with pytest.raises(InvalidInput) as caught:
        await app._backend.call(acts.PUT_RULE, PutNotificationRule(**{**good, **changes}))
    assert told in str(caught.value).lower() or told in str(caught.value)


async def test_cancelled_late_asked_and_overdue_runs_are_sent(app: Perdure, receiver: Receiver) -> None:
    kinds = ("run.cancelled", "run.late", "run.deadline_missed", "approval.asked")
    await rule(app, "all", receiver.url(), *kinds, late_after_us=1_000_000)
    cancelled = await notify_waits.start()
    await cancelled.cancel()
    overdue = await notify_waits.options(timeout="300ms").start()
    with pytest.raises(RunFailed):
        await overdue.result()
    asks = await notify_asks.start()
    late = await notify_waits.start()
    expected = {
        ("perdure.run.cancelled", cancelled.id),
        ("perdure.run.deadline_missed", overdue.id),
        ("perdure.approval.asked", asks.id),
        ("perdure.run.late", asks.id),
        ("perdure.run.late", late.id),
    }
    await all_done(app, len(expected))
    assert {(r.json["type"], r.json["subject"]) for r in receiver.requests} == expected
    assert len(receiver.requests) == len(expected)
    (asked,) = [r.json["data"] for r in receiver.requests if r.json["type"] == "perdure.approval.asked"]
    assert (asked["approval"], asked["title"], asked["assignees"]) == ("notify_go", "Go on?", ["ada"])


async def test_a_late_run_is_noted_once_however_often_it_is_looked_at(app: Perdure, receiver: Receiver) -> None:
    await rule(app, "late", receiver.url(), "run.late", late_after_us=1_000_000)
    await notify_waits.start()
    await all_done(app, 1)
    store = app.api.ports.outbox
    async with app.store.pool.take() as c:
        await c.execute("update perdure.notification_rule set late_checked_at = '-infinity'")
    assert await store.note_late(100) == 0
    async with app.store.pool.take() as c:  # its time is over, and the run is still active
        await c.execute("update perdure.notification set ended_at = ended_at - interval '1 year'")
        await c.execute("update perdure.notification_rule set late_checked_at = '-infinity'")
    await store.sweep(60, 100, 100)
    assert await store.note_late(100) == 0
    assert len(receiver.requests) == 1


async def test_a_stuck_run_is_sent_each_time_it_is_stuck(app: Perdure, receiver: Receiver) -> None:
    await rule(app, "stuck", receiver.url(), "run.stuck")
    handle = await notify_waits.start()
    run_id = ids.parse(handle.id)

    async def runs_here() -> bool:
        return app.engine.run_in_memory(run_id) is not None

    for n in (1, 2):
        await until(runs_here, "it is in memory")
        app.engine.exits.set_aside(app.engine.runs[run_id], f"reason {n}")
        await all_done(app, n)
        await app._backend.call(runs.RESUME, runs.ChangeRun(handle.id))
    assert sorted(r.json["data"]["error"] for r in receiver.requests) == ["reason 1", "reason 2"]


async def test_a_missed_time_of_a_schedule_is_sent(app: Perdure, receiver: Receiver) -> None:
    await rule(app, "missed", receiver.url(), "schedule.missed")
    plan = Schedule("notify_plan", notify_works.bind(), every="1h", missed="none")
    await plan.apply()
    async with app.store.pool.take() as c:
        moved = "next_at - interval '3 hours'"
        await c.execute(f"update perdure.schedule set next_at = {moved}, fire_at = {moved}")
    await until(lambda: len(receiver.requests) >= 1, "a missed time is sent")
    found = await all_done(app, 1)
    assert {n.kind for n in found} == {"schedule.missed"}
    data = receiver.requests[0].json["data"]
    assert (data["schedule"], data["workflow"]) == ("notify_plan", "notify_works")


async def test_a_email_names_the_run_and_has_a_stable_message_id(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with smtp_receiver() as (port, emails):
        monkeypatch.setenv("PERDURE_SMTP_URL", f"smtp://127.0.0.1:{port}")
        monkeypatch.setenv("PERDURE_SMTP_FROM", "perdure@example.com")
        monkeypatch.setenv("PERDURE_URL", "https://perdure.example")
        async with Perdure(dsn) as app:
            made = await rule(app, "people", "ada@example.com, ben@example.com", target="email")
            assert made.secret is None
            run_id = await failed()
            (item,) = await all_done(app, 1)
    (email,) = emails
    assert email["Message-ID"] == f"<{item.id}@example.com>"
    assert (email["To"], email["Subject"]) == ("ada@example.com, ben@example.com", "notify_fails failed")
    text = email.get_payload(decode=True).decode()
    assert "out of stock" in text and f"https://perdure.example/runs/{ids.text(run_id)}" in text


async def test_a_email_without_a_email_server_says_what_is_missing(app: Perdure) -> None:
    await rule(app, "people", "ada@example.com", target="email")
    await failed()
    found = await until(lambda: _tried(app), "it was tried")
    assert "PERDURE_SMTP_URL" in str(found[0].error)


async def test_a_slack_message_keeps_its_url_secret_and_its_markup_plain(app: Perdure, receiver: Receiver) -> None:
    made = await rule(app, "chat", receiver.url("/services/T0/SECRET"), target="slack")
    assert "SECRET" not in made.rule.address and made.secret is None
    await failed("<!channel> a & b")
    await all_done(app, 1)
    (got,) = receiver.of("/services/T0/SECRET")
    text = got.json["text"]
    assert "<!channel>" not in text and "&lt;!channel&gt; a &amp; b" in text
    assert "<https://perdure.example/runs/" in text
    async with app.store.pool.take() as c:
        row = await c.fetchrow("select address, secret from perdure.notification_rule")
    assert "SECRET" not in row["address"] and b"SECRET" not in row["secret"]


async def test_what_waits_for_a_target_is_bounded_and_what_is_dropped_is_counted(
    app: Perdure, receiver: Receiver
) -> None:
    receiver.answer = lambda _: (500, {})
    await rule(app, "down", receiver.url())
    for n in range(5):
        await failed(str(n))
    await until(lambda: _all_tried(app, 5), "all were tried")
    dropped = await app.api.ports.outbox.sweep(1e9, 2, 100)
    assert list(dropped.values()) == [3]
    (shown,) = (await app._backend.call(acts.LIST_RULES, ListNotificationRules())).items
    assert (shown.pending, shown.dropped) == (2, 3)
    assert sorted(str(n.data["error"])[-1] for n in await sent(app)) == ["3", "4"]


async def _all_tried(app: Perdure, count: int) -> bool:
    return len(await _tried(app)) == count


async def test_an_engine_whose_lease_is_over_records_nothing(app: Perdure, receiver: Receiver) -> None:
    receiver.held = asyncio.Event()
    await rule(app, "on-call", receiver.url())
    await failed()
    await until(lambda: len(receiver.requests) == 1, "an attempt is under way")
    store = app.api.ports.outbox
    async with app.store.pool.take() as c:
        await c.execute("update perdure.notification set due_at = now() - interval '1 second', attempts = attempts + 1")
        n = await c.fetchval("select n from perdure.notification")
    assert not await store.end(n, 1, "done", None, 0)
    assert await store.end(n, 2, "done", None, 0)
    assert not await store.end(n, 2, "dead", "too late", 0)


async def test_a_process_with_notifications_off_leaves_them_to_others(
    dsn: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_SECRET_KEY", KEY)
    monkeypatch.setenv("PERDURE_NOTIFY_ALLOW", "127.0.0.1")
    monkeypatch.setenv("PERDURE_NOTIFICATIONS", "off")
    async with Perdure(dsn) as app:
        await rule(app, "on-call", receiver.url())
        await failed()
        (left,) = await sent(app)
        assert (left.status, left.attempts) == ("pending", 0)
        monkeypatch.setenv("PERDURE_NOTIFICATIONS", "on")
        async with Perdure(dsn, worker=False) as other:
            await all_done(other, 1)
    assert len(receiver.requests) == 1
