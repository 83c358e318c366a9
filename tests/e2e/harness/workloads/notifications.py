"""Notifications and hooks of runs that fail: every fact arrives, under one id, and no id is of anything else."""

from __future__ import annotations

import asyncio
import base64
import os
import random
from collections import Counter, defaultdict
from collections.abc import Sequence

from standardwebhooks.webhooks import Webhook

from harness.failing import fails_now, works_now
from harness.fleet import count
from harness.storm import Storm, Target, Workload, fetch_rows
from perdure.core.api import notifications as acts
from perdure.core.api.notifications import PutNotificationRule
from perdure.core.application_limits import NOTIFY_AT_ONCE_MAX
from perdure.core.errors import PerdureError
from tests.fakes.receivers import Received, http_receiver
from tests.fakes.waiting import until

SETTINGS = {
    "PERDURE_SECRET_KEY": base64.b64encode(bytes(range(32))).decode(),
    "PERDURE_NOTIFY_ALLOW": "127.0.0.1",
    "PERDURE_NOTIFY_TIMEOUT": "1s",
}
"""Of every engine: each of them delivers."""
REFUSED_PART = 0.05
"""Of the requests are answered with an error, and come again."""
THINK_S = 0.2
WAVE, PAUSE_S = 6, 0.5
IN_FLIGHT = 2 * NOTIFY_AT_ONCE_MAX
"""Deliveries that one engine has under way, of two rules. A kill repeats at most these."""
RULES = (("failed", ["*"], ["run.failed"]), ("ends", ["fails_now"], ["run.failed", "run.succeeded"]))
IDS_MIN = 20


class Notifications(Workload):
    name = "notifications"
    serves = ("harness.failing",)

    async def prepare(self, storm: Storm) -> Sequence[Target]:
        os.environ.update(SETTINGS)
        self._randomness, self._refused = random.Random(f"{storm.seed}:{self.name}"), Counter[str]()
        self._receiver = await storm.stack.enter_async_context(http_receiver())
        self._receiver.answer, self._receiver.think_s = self._answer, THINK_S
        self._secrets: dict[str, str] = {}
        """Path -> secret."""
        self._facts: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
        """Id -> (path, kind, run)."""
        self._forged: list[str] = []
        return ()

    def _answer(self, got: Received) -> tuple[int, dict[str, str]]:
        """A signature is too old to be checked after five minutes, so it is checked here."""
        try:
            event = Webhook(self._secrets[got.path]).verify(got.body.decode(), got.headers)
            assert event["id"] == got.headers["webhook-id"]
            self._facts[event["id"]].add((got.path, event["type"], event["subject"]))
        except Exception as error:
            self._forged.append(f"{error!r} {got}")
        if self._randomness.random() >= REFUSED_PART:
            return 204, {}
        self._refused[got.headers["webhook-id"]] += 1
        return 500, {}

    async def load(self, storm: Storm) -> None:
        for name, workflows, kinds in RULES:
            new = PutNotificationRule(
                name=name, workflows=workflows, kinds=kinds, target="webhook", address=self._receiver.url(f"/{name}")
            )
            made = await storm.client._backend.call(acts.PUT_RULE, new)
            assert made.secret is not None
            self._secrets[f"/{name}"] = made.secret
        n = 0
        while not storm.calm.is_set():
            try:
                wave = ((fails_now if i % 2 else works_now) for i in range(n, n + WAVE))
                await asyncio.gather(*(storm.client.start(one, i) for i, one in enumerate(wave, n)))
            except (PerdureError, OSError):
                pass
            n += WAVE
            await storm.passes(PAUSE_S)

    def _repeated(self) -> int:
        return len(self._receiver.ids) - len(set(self._receiver.ids)) - self._refused.total()

    async def is_hit(self) -> bool:
        return self._repeated() > 0 and len(set(self._receiver.ids)) >= IDS_MIN

    async def settle(self, storm: Storm) -> None:
        async def all_delivered() -> bool:
            left = "select (select count(*) from perdure.run_queue where workflow in ('fails_now', 'works_now', 'after_failure'))"
            undone = "(select count(*) from perdure.notification where status <> 'done')"
            return not await count(storm.dsn, f"{left} + {undone}")

        await until(all_delivered, "every notification is delivered")

    async def check(self, storm: Storm) -> str:
        assert self._forged == []
        assert all(len(facts) == 1 for facts in self._facts.values()), "one id stands for two facts"
        facts = await _facts(storm.dsn)
        assert set().union(*self._facts.values()) == facts
        assert len(self._facts) == len(facts), "one fact has two ids"
        hooks, kills = await _check_hooks(storm.dsn), storm.kills.total()
        assert kills >= 3
        assert self._repeated() <= kills * IN_FLIGHT
        return (
            f"{len(set(self._receiver.ids))} notifications, {len(self._receiver.requests)} requests, "
            f"{self._refused.total()} refused, {self._repeated()} repeated after a kill, {hooks} hooks"
        )


async def _facts(dsn: str) -> set[tuple[str, str, str]]:
    """(path, kind, run) that the ends of runs make due."""
    found = await fetch_rows(dsn, "select run_id::text as run_id, workflow, status from perdure.run")
    facts = {("/failed", "perdure.run.failed", r["run_id"]) for r in found if r["status"] == "failed"}
    kinds = {"failed": "perdure.run.failed", "success": "perdure.run.succeeded"}
    return facts | {("/ends", kinds[r["status"]], r["run_id"]) for r in found if r["workflow"] == "fails_now"}


async def _check_hooks(dsn: str) -> int:
    """Each failed run has started its hook once, and nothing else has."""
    failed = {r[0] for r in await fetch_rows(dsn, "select run_id::text from perdure.run where workflow = 'fails_now'")}
    keys = [r[0] for r in await fetch_rows(dsn, "select key from perdure.run where workflow = 'after_failure'")]
    assert Counter(key.split(":")[1] for key in keys) == Counter(failed)
    return len(keys)
