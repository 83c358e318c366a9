"""Sealing of user data: which columns, in what format, with which keys, and what happens when something is missing or was changed."""

from __future__ import annotations

import asyncio
import base64
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Perdure, Signal, State, task, workflow
from perdure.app.master_keys.key_file import KeyFile
from perdure.app.payload_keys import SealingOptions, use_sealing
from perdure.core.errors import Conflict, MigrationError, PayloadCorrupt, PayloadKeyMissing
from perdure.core.master_keys import WrappedKey
from perdure.store import payload_keys, verify
from perdure.store.connections import connect
from perdure.store.payload_keys import PayloadKeys
from perdure.store.queries import queries
from perdure.store.sealing import rows, xaes
from perdure.store.sealing.codec import MARK, PayloadCodec, key_of
from perdure.store.sealing.columns import IN_CLEAR, SEALED
from perdure.store.sealing.kinds import KINDS, binding
from perdure.store.sealing.registry import use_codec
from tests.fakes.waiting import until

heard: Signal[str] = Signal("sealed_heard", str)
kept: State[str] = State("sealed_kept", "", str)


@task
def sealed_step(text: str) -> str:
    return text


@workflow
async def sealed_run(text: str) -> str:
    kept.set(text)
    await sealed_step(text)
    return text + await heard.next()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return written(tmp_path / "master.keys", new_key())


@pytest.fixture
def sealing(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERDURE_PAYLOAD_KEYS", f"file:{key_file}")
    return key_file


def new_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


def written(path: Path, *keys: str) -> Path:
    path.touch(mode=0o600)
    path.write_text("\n".join(keys) + "\n")
    return path


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Any]:
    connection = await connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


def a_codec(compress_from: int = 0) -> PayloadCodec:
    codec = PayloadCodec(compress_from)
    codec.add(7, bytes(32))
    codec.seal_with(7)
    return codec


# the columns


async def test_every_column_is_sealed_or_in_the_clear_for_a_reason(dsn: str) -> None:
    decided = Counter((table, column) for table, columns in SEALED.items() for column in columns)
    decided.update(
        (table, column)
        for tables in IN_CLEAR.values()
        for table, columns in tables.items()
        for column in columns.split()
    )
    assert [where for where, times in decided.items() if times > 1] == []
    connection = await asyncpg.connect(dsn)
    try:
        found = await connection.fetch(
            "select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid "
            "where c.relnamespace = 'perdure'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition "
            "and a.attnum > 0 and not a.attisdropped "
            "and format_type(a.atttypid, null) in ('bytea', 'text', 'json', 'jsonb', 'xml', 'text[]', 'bytea[]', 'jsonb[]', 'hstore')"
        )
    finally:
        await connection.close()
    assert {(r["relname"], r["attname"]) for r in found} == set(decided)


def test_every_sealed_column_is_written_by_a_statement_that_seals_it() -> None:
    """By the tables that kinds may stand in; texts of errors are copied from table to table."""
    sealed_tables = {table for kind in KINDS.values() for table in kind.tables}
    assert set(SEALED) <= sealed_tables
    used = {one.kind.name for q in queries().values() for one in q.seals}
    assert used | {"history"} == set(KINDS)


def test_a_statement_that_is_said_to_seal_has_that_parameter() -> None:
    for query in queries().values():
        for one in query.seals:
            columns = query.columns.get(one.parameter)
            assert columns is not None and (one.column in columns if one.column else not columns), (query.name, one)
            given = {*query.columns, *(columns if one.column else ())}
            assert set(one.kind.bound_to) <= given, f"{query.name} does not say what its {one.kind.name} is bound to"


# the format


def test_xaes_has_the_results_of_its_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xaes.os, "urandom", lambda _: b"ABCDEFGHIJKLMNOPQRSTUVWX")
    for key, bound_to, sealed in (
        (b"\x01", b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (b"\x03", b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
    ):
        assert xaes.Xaes(key * 32).encrypt(b"XAES-256-GCM", bound_to).hex()[48:] == sealed


@given(st.binary(max_size=3000), st.sampled_from([0, 1, 1024]), st.booleans())
def test_what_is_sealed_opens_to_what_it_was(data: bytes, compress_from: int, encrypted: bool) -> None:
    codec = a_codec(compress_from) if encrypted else PayloadCodec(compress_from)
    sealed = codec.seal(KINDS["state"], b"place", data)
    reader = a_codec()
    if sealed[:2] == MARK:
        assert reader.open(sealed, lambda _: b"place")[0] == data
    else:
        assert sealed == data
    if encrypted and len(data) > 8:
        assert data not in sealed
    assert a_codec().seal(KINDS["state"], b"place", data) != sealed or not encrypted


def test_data_that_looks_sealed_is_wrapped_so_that_it_is_read_as_it_is() -> None:
    plain, data = PayloadCodec(), MARK + b"\x01 of the user's own"
    sealed = plain.seal(KINDS["state"], b"", data)
    assert sealed != data and plain.open(sealed, lambda _: b"")[0] == data
    assert plain.seal(KINDS["state"], b"", b"{}") == b"{}"


@pytest.mark.parametrize("place", [0, 3, 4, 5, 9, 30, -1])
def test_a_changed_byte_is_noticed(place: int) -> None:
    sealed = bytearray(a_codec().seal(KINDS["state"], b"place", b"content of the user"))
    sealed[place] ^= 1
    with pytest.raises((PayloadCorrupt, PayloadKeyMissing)):
        a_codec().open(bytes(sealed), lambda _: b"place")


def test_a_value_does_not_open_in_another_place() -> None:
    codec, kind = a_codec(), KINDS["state"]
    sealed = codec.seal(kind, binding([b"run 1", "name"]), b"content")
    with pytest.raises(PayloadCorrupt, match="was changed in the database, or moved there"):
        codec.open(sealed, lambda _: binding([b"run 2", "name"]))
    assert binding(["ab", "c"]) != binding(["a", "bc"])


def test_the_key_of_a_value_can_be_read_without_it() -> None:
    assert key_of(a_codec().seal(KINDS["state"], b"", b"x")) == 7
    assert key_of(PayloadCodec(1).seal(KINDS["state"], b"", b"x" * 100)) == 0


def test_members_that_statements_read_stay_in_the_clear() -> None:
    codec = a_codec()
    text = '{"assignees":["ada"],"quorum":2,"title":"Pay \\"it\\"","details":{"sum":[1,2]}}'
    sealed = rows.seal_members(codec, KINDS["spec"], binding([b"r"]), text)
    assert '"assignees":["ada"],"quorum":2' in sealed and "Pay" not in sealed and "sum" not in sealed
    comment = codec.seal_text(KINDS["vote_comment"], binding([b"r"]), 'said "so"')
    found = FakeRow({"run_id": b"r", "spec": sealed, "votes": f'[{{"comment": "{comment}"}}, "x {comment}"]'})
    opened = rows.open_row(codec, found, ("spec", "votes"), frozenset({"promise", "vote"}), {})
    assert opened["spec"] == text
    assert opened["votes"] == '[{"comment": "said \\"so\\""}, "x said \\"so\\""]'


class FakeRow(dict[str, Any]):
    """A row of the driver: a mapping whose iteration gives values."""


def test_text_whose_key_is_missing_says_so_and_does_not_raise() -> None:
    sealed = a_codec().seal_text(KINDS["error"], binding([b"r"]), "secret")
    row = FakeRow({"run_id": b"r", "error": sealed})
    shown = rows.open_row(PayloadCodec(), row, ("error",), frozenset({"run"}), {})["error"]
    assert "data key 7" in shown and "secret" not in shown
    assert rows.open_row(a_codec(), row, ("error",), frozenset({"run"}), {})["error"] == "secret"
    assert rows.open_row(a_codec(), row, ("error",), frozenset({"inbox"}), {})["error"] == sealed


# keys


@pytest.mark.parametrize(
    ("mode", "text", "why"),
    [
        (0o644, None, "has mode 0644: others could read or change it. Run `chmod 600"),
        (0o600, "c2hvcnQ=", "is not 32 bytes in base64"),
        (0o600, "# none", "there is no key"),
        (None, None, "cannot be read: No such file"),
    ],
)
async def test_a_key_file_that_cannot_be_used_says_why(
    tmp_path: Path, mode: int | None, text: str | None, why: str
) -> None:
    path = tmp_path / "keys"
    if mode is not None:
        written(path, text or new_key()).chmod(mode)
    with pytest.raises(PayloadKeyMissing, match=why):
        await KeyFile(str(path)).wrap(bytes(32))


async def test_a_program_is_refused_encryption_while_older_code_may_use_the_database(dsn: str, sealing: Path) -> None:
    async with connected(dsn) as c:
        await c.execute("update perdure.migration set needs = 1")
    for options in (SealingOptions(f"file:{sealing}"), SealingOptions(compress_from=100)):
        with pytest.raises(MigrationError, match="perdure migrate --finish"):
            await use_sealing(dsn, options, os.environ)
    async with connected(dsn) as c:
        assert await c.fetchval("select count(*) from perdure.payload_key") == 0
        await c.execute("update perdure.migration set needs = (select max(number) from perdure.migration)")
    assert await use_sealing(dsn, SealingOptions(f"file:{sealing}"), os.environ) is not None


async def test_processes_that_open_at_once_make_one_key(dsn: str, key_file: Path) -> None:
    one = SealingOptions(f"file:{key_file}")
    await asyncio.gather(*(use_sealing(dsn, one, os.environ) for _ in range(8)))
    async with connected(dsn) as c:
        assert await c.fetchval("select count(*) from perdure.payload_key") == 1


class Halting(KeyFile):
    """Master keys whose program dies after some wraps."""

    def __init__(self, path: str, wraps: int) -> None:
        super().__init__(path)
        self.left = wraps

    async def wrap(self, key: bytes) -> WrappedKey:
        if not self.left:
            raise asyncio.CancelledError
        self.left -= 1
        return await super().wrap(key)


@pytest.mark.parametrize("wraps", [0, 1, 2, 3])
async def test_an_interrupted_rewrap_leaves_every_key_usable_and_goes_on(dsn: str, key_file: Path, wraps: int) -> None:
    first = key_file.read_text().strip()
    async with connected(dsn) as c:
        keys = PayloadKeys(KeyFile(str(key_file)))
        made = [await keys.rotate(c) for _ in range(3)]
        written(key_file, second := new_key(), first)
        halting = PayloadKeys(Halting(str(key_file), wraps))
        if wraps < 3:
            with pytest.raises(asyncio.CancelledError):
                await halting.rewrap(c)
        else:
            assert await halting.rewrap(c) == made
        reader = PayloadKeys(KeyFile(str(key_file)))
        await reader.load(c, set(made))
        assert set(reader.codec.known()) == set(made)
        assert await keys.rewrap(c) == made[wraps:]
        written(key_file, second)
        assert all(not item.problem for item in await keys.list(c))
        assert await keys.rewrap(c) == []


async def test_an_old_data_key_is_followed_by_a_new_one(dsn: str, key_file: Path) -> None:
    keys = PayloadKeys(KeyFile(str(key_file)), rotate_after_s=3600)
    async with connected(dsn) as c:
        await keys.open(c)
        await keys.refresh(c)
        assert keys.codec.newest == 1
        await c.execute("update perdure.payload_key set created_at = now() - interval '2 hours'")
        keys._refreshed_s = -100.0
        await keys.refresh(c)
        assert keys.codec.newest == 2


async def test_a_data_key_is_retired_once_nothing_needs_it(dsn: str, sealing: Path) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(sealed_run, "text")
        await client.signal(heard, run.id, "!")
        assert await run.result("30s") == "text!"
    async with connected(dsn) as c:
        keys = PayloadKeys(KeyFile(str(sealing)))
        with pytest.raises(Conflict, match="data key 1 seals new data"):
            await payload_keys.retire(c, 1)
        assert await keys.rotate(c) == 2
        with pytest.raises(Conflict, match=r"still needed for .* in history"):
            await payload_keys.retire(c, 1)
        for table in ("history", "run_state", "task_log", "task", "run"):
            await c.execute(f"truncate perdure.{table}")
        await payload_keys.retire(c, 1)
        assert [item.id for item in await keys.list(c)] == [2]


# runs


async def test_rows_from_before_encryption_and_from_its_time_are_read_alike(
    dsn: str, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(sealed_run, "before")
        await until(lambda: _rows(dsn, "run_state"), "it waits")
    monkeypatch.setenv("PERDURE_PAYLOAD_KEYS", f"file:{key_file}")
    async with Perdure(dsn) as client:
        await client.signal(heard, run.id, " and after")
        assert await (await client.get(run.id)).result("30s") == "before and after"
    async with connected(dsn) as c:
        bodies = [r["body"][:2] == MARK for r in await c.fetch("select body from perdure.history order by seq")]
    assert bodies[0] is False and bodies[-1] is True
    assert not any(t.violations for t in await verify.verify(dsn))


async def test_verify_without_the_key_judges_the_chain_alone(dsn: str, sealing: Path) -> None:
    async with Perdure(dsn) as client:
        run = await client.start(sealed_run, "text")
        await client.signal(heard, run.id, "!")
        assert await run.result("30s") == "text!"
    use_codec(dsn, PayloadCodec())
    tallies = {t.number: t for t in await verify.verify(dsn)}
    assert not any(t.violations for t in tallies.values())
    assert tallies[4].unchecked == 1 and tallies[3].examined > 1
    async with connected(dsn) as c:
        await c.execute("update perdure.history set body = body || '\\x00' where seq = 1")
    assert {n for n, t in {t.number: t for t in await verify.verify(dsn)}.items() if t.violations} == {3}


async def test_a_row_of_the_history_that_was_moved_to_another_run_is_not_read(dsn: str, sealing: Path) -> None:
    async with Perdure(dsn) as client:
        runs = [await client.start(sealed_run, text) for text in ("one", "two")]
        await until(lambda: _rows(dsn, "run_state", 2), "both wait")
    async with connected(dsn) as c:
        bodies = {
            r["run_id"]: r["body"] for r in await c.fetch("select run_id, body from perdure.history where seq = 1")
        }
        one, two = bodies
        await c.execute("update perdure.history set body = $2 where run_id = $1 and seq = 1", one, bodies[two])
    async with Perdure(dsn) as client:
        moved = next(r.id for r in runs if bytes.fromhex(r.id.replace("-", "")) == one)
        with pytest.raises(PayloadCorrupt, match="moved there from another row"):
            await (await client.get(moved)).history()


async def _rows(dsn: str, table: str, count: int = 1) -> bool:
    async with connected(dsn) as c:
        return bool(await c.fetchval(f"select count(*) >= $1 from perdure.{table}", count))
