"""A server whose database login may read and write rows and nothing else: a real process, and every act through every door.

The proof is in PostgreSQL's own log: it writes each statement that it denies.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx2
import pytest
from standardwebhooks import Webhook

from perdure.core.ids import lowest_at
from perdure.localpg.cluster import PrivateCluster
from perdure.store import partitions, roles
from tests.cli.live import perdure
from tests.cli.processes import server, started
from tests.fakes.waiting import until
from tests.server.parity.stage import stage
from tests.server.test_door_parity import GROUPS

HERE = Path(__file__).parent
DENIED = "permission denied"
_numbers = itertools.count(1)


def as_user(dsn: str, user: str, password: str) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}"))


@contextlib.contextmanager
def nothing_is_denied(cluster: PrivateCluster) -> Iterator[None]:
    seen = cluster.log.stat().st_size
    yield
    lines = cluster.log.read_bytes()[seen:].decode(errors="replace").splitlines()
    assert [line for line in lines if DENIED in line] == []


@contextlib.asynccontextmanager
async def logins(dsn: str, names: dict[str, str]) -> AsyncIterator[dict[str, str]]:
    """A DSN for each: name of the login -> what `create role` says about it. They are gone afterwards, with what they own."""
    admin = await asyncpg.connect(dsn)
    password = secrets.token_hex(8)
    mark = f"{os.getpid()}_{next(_numbers)}"
    made = {name: f"{name}_{mark}" for name in names}
    try:
        for name, rights in names.items():
            await admin.execute(f"create role {made[name]} login password '{password}' {rights}")
        yield {name: as_user(dsn, user, password) for name, user in made.items()}
    finally:
        for user in made.values():
            await admin.execute(f"drop owned by {user} cascade")
            await admin.execute(f"drop role {user}")
        await admin.close()


@pytest.fixture
async def engine_dsn(dsn: str) -> AsyncIterator[str]:
    """Of a login in the engine's group, on a database that another role owns. Groups have names of their own: roles belong to the whole server."""
    mark = f"{os.getpid()}_{next(_numbers)}"
    groups = [f"{name}_{mark}" for name in ("least_engine", "least_reader", "least_caller")]
    await roles.apply_roles(dsn, *groups)
    async with logins(dsn, {"least_server": f"in role {groups[0]}"}) as made:
        yield made["least_server"]
    admin = await asyncpg.connect(dsn)
    for group in groups:
        await admin.execute(f"drop owned by {group}")
        await admin.execute(f"drop role {group}")
    await admin.close()


@pytest.mark.parametrize("group", GROUPS)
async def test_every_act_works_with_the_engines_rights(group: str, engine_dsn: str, cluster: PrivateCluster) -> None:
    """The scenarios of the tests of doors, at one of the three: what an act needs of the database is the same behind each."""
    with nothing_is_denied(cluster):
        async with stage(engine_dsn) as one:
            for scenario in GROUPS[group]:
                await one.client._backend.call(scenario.act, scenario.request(await scenario.setup(one)))


async def test_upkeep_makes_and_drops_partitions_with_the_engines_rights(
    engine_dsn: str, cluster: PrivateCluster
) -> None:
    old = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=99)
    with nothing_is_denied(cluster):
        async with stage(engine_dsn) as one:
            c = await asyncpg.connect(engine_dsn)
            low, high = (lowest_at(int((old + timedelta(days=d)).timestamp() * 1000)) for d in (0, 1))
            for table in partitions.TABLES:
                await c.fetchval(
                    "select perdure.create_partition($1, $2, $3, $4)", table, f"{table}_p{old:%Y%m%d}", low, high
                )
            await c.close()
            await one.perdure.engine.upkeep.prepare()
            retention = one.perdure.engine.retention
            while await retention.work_once():
                pass
            c = await asyncpg.connect(engine_dsn)
            left = await c.fetchval("select count(*) from pg_class where relname like '%' || $1", f"_p{old:%Y%m%d}")
            await c.close()
            assert left == 0, "the old day was dropped"
            await one.perdure.store.sweep()
            await one.perdure.store.merge_counts()


REFUSED = (
    "create table perdure.mine (id int)",
    "create table public.mine (id int)",
    "create schema mine",
    "alter table perdure.run add column x int",
    "drop table perdure.history",
    "truncate perdure.run_queue",
    "update perdure.history set body = ''",
    "delete from perdure.audit",
    "select * from customers.card",
    "set role {owner}",
)


@pytest.mark.usefixtures("processes")
async def test_a_real_server_needs_nothing_of_the_owner(bare_dsn: str, cluster: PrivateCluster, tmp_path: Path) -> None:
    async with logins(bare_dsn, {"shop_owner": "createrole", "shop_server": ""}) as made:
        owner, engine = (urlsplit(made[name]).username or "" for name in ("shop_owner", "shop_server"))
        await prepared(bare_dsn, owner)
        migrated = await asyncio.to_thread(perdure, "migrate", "--roles", "--dsn", made["shop_owner"])
        assert migrated.code == 0, migrated.err
        admin = await asyncpg.connect(bare_dsn)
        await admin.execute(f"grant perdure_engine to {engine}")
        try:
            with nothing_is_denied(cluster):
                await served(made["shop_server"], tmp_path)
            await refused(made["shop_server"], owner)
        finally:
            for group in (roles.ENGINE_ROLE, roles.READER_ROLE, roles.CALLER_ROLE):
                await admin.execute(f"drop owned by {group}")
                await admin.execute(f"drop role {group}")
            await admin.close()


async def prepared(dsn: str, owner: str) -> None:
    """As deploy/compose/roles.sh does, and a table of another application."""
    admin = await asyncpg.connect(dsn)
    name = await admin.fetchval("select current_database()")
    await admin.execute(f"grant connect, create, temporary on database {name} to {owner}")
    await admin.execute("create schema customers; create table customers.card (number text)")
    await admin.close()


async def refused(dsn: str, owner: str) -> None:
    c = await asyncpg.connect(dsn)
    try:
        for statement in REFUSED:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await c.execute(statement.format(owner=owner))
    finally:
        await c.close()


async def served(dsn: str, tmp_path: Path) -> None:
    made = await asyncio.to_thread(perdure, "api-key", "create", "--name", "me", "--role", "admin", "--dsn", dsn)
    key = made.out.strip()
    assert key.startswith("pd_")
    secret = base64.b64encode(bytes(32)).decode()
    environment = {"PERDURE_SECRET_KEY": secret, "PERDURE_ENGINE_RETENTION_DAYS": "7"}
    with server(dsn, tmp_path, "--no-migrate", **environment) as running:
        with started("worker", "shop.py", "--server", running.grpc, cwd=HERE, PERDURE_API_KEY=key) as worker:
            worker.until("connected to")
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx2.AsyncClient(base_url=running.http, headers=headers, timeout=120) as http:
                await worked(Asked(http), key)
            assert worker.stop() == 0
        assert running.program.stop() == 0
        assert DENIED not in "\n".join([*running.program.seen, running.program.rest()])


class Asked:
    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def __call__(self, method: str, path: str, **options: Any) -> Any:
        answer = await self.http.request(method, f"/api/v1{path}", **options)
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def start(self, workflow: str, **input: Any) -> str:
        return str((await self("POST", f"/workflows/{workflow}/runs", json={"input": input}))["id"])

    async def result(self, run: str) -> Any:
        ended = await self("GET", f"/runs/{run}/result", params={"wait": 60})
        assert ended["status"] == "success", ended
        return ended["result"]


async def worked(ask: Asked, key: str) -> None:
    order = await ask.start("checkout", order=7)
    await ask("POST", f"/runs/{order}/signals/paid", json=12)
    assert await ask.result(order) == ["charged 7", "charged 8", "charged 7", "paid 12"]
    await approved(ask)
    await delivered_by_webhook(ask)
    await scheduled(ask)
    flow = "flow: greet\ntasks: {a: {value: 1}}\n"
    await ask("POST", "/workflows/deploy", json={"source": flow})
    assert await ask.result(await ask.start("greet")) is not None
    await cancelled_in_bulk(ask)
    signed_in = httpx2.AsyncClient(base_url=ask.http.base_url, timeout=60)
    async with signed_in:
        assert (await signed_in.post("/api/v1/session", json={"api_key": key})).status_code == 200
        assert (await signed_in.get("/api/v1/runs")).status_code == 200
        assert (await signed_in.get("/")).status_code == 200
    for path in ("/metrics", "/readyz"):
        answer = await ask.http.get(path)
        assert answer.status_code == 200, answer.text
    assert "perdure_database_up 1" in (await ask.http.get("/metrics")).text


async def approved(ask: Asked) -> None:
    run = await ask.start("ask", order=1)

    async def is_asked() -> bool:
        return bool((await ask("GET", "/approvals"))["items"])

    await until(is_asked)
    await ask("POST", f"/approvals/{run}/agreed/approve", json={})
    assert await ask.result(run) == "agreed to 1"


async def delivered_by_webhook(ask: Asked) -> None:
    run = await ask.start("deliver", order=3)
    hook = await ask("PUT", "/webhooks/carrier", json={"event": "order.delivered"})
    body = '{"order": 3, "by": "bike"}'
    now = datetime.now(UTC)
    signature = Webhook(hook["secret"]).sign("msg_1", now, body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
    answer = await ask.http.post(
        urlsplit(hook["url"]).path, content=body, headers=headers | {"content-type": "application/json"}
    )
    assert answer.status_code == 200, answer.text
    assert await ask.result(run) == "3 delivered by bike"


async def scheduled(ask: Asked) -> None:
    await ask("PUT", "/schedules/often", json={"workflow": "inventory", "spec": {"every": "1s"}})

    async def has_fired() -> bool:
        return bool((await ask("GET", "/schedules/often"))["fired"])

    await until(has_fired)
    await ask("DELETE", "/schedules/often")


async def cancelled_in_bulk(ask: Asked) -> None:
    run = await ask.start("ask", order=2)
    job = await ask("POST", "/bulk-jobs", json={"action": "cancel", "query": "workflow = ask and status = running"})

    async def is_over() -> bool:
        return (await ask("GET", f"/bulk-jobs/{job['id']}"))["status"] == "success"

    await until(is_over)

    async def is_cancelled() -> bool:
        return (await ask("GET", f"/runs/{run}"))["status"] == "cancelled"

    await until(is_cancelled)
