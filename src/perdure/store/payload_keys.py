"""Data keys of a database: which one seals, how new ones are made, and how master keys take each other's place.

A process that finds no data key, or the newest too old, makes one; an advisory lock lets one process at a time do so. Its row is
committed before anything is sealed with it. Engines look for a newer key with their heartbeat, and a reader that meets a key it does not know
reads its row. So a rotation is one insert, and no engine has to hear of it in time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from time import monotonic
from typing import Any, Final

import msgspec

from perdure.core.errors import Conflict, MigrationError, NotFound, PayloadKeyMissing
from perdure.core.limits import PAYLOAD_KEY_REFRESH_S
from perdure.core.master_keys import MasterKeys, WrappedKey
from perdure.store.connections import connect
from perdure.store.queries import fetch, fetch_row, fetch_value
from perdure.store.sealing.codec import MARK, WORD, PayloadCodec, word_prefixes
from perdure.store.sealing.columns import SEALED, is_text
from perdure.store.sealing.registry import use_codec
from perdure.store.sealing.xaes import KEY_BYTES

log = logging.getLogger("perdure.store")

COMPRESS_FROM: Final = 1024
"""Values of so many bytes are compressed by default when they are encrypted: below it, zstd saves less than it costs."""
TRY_AGAIN_S: Final = 5.0
"""How long the answer stands that a key cannot be unwrapped."""


class PayloadKeyItem(msgspec.Struct, frozen=True):
    id: int
    master: str
    created_us: int
    rewrapped_us: int | None
    is_newest: bool
    problem: str = ""
    """Why it cannot be unwrapped here; empty: it can."""


class PayloadKeys:
    """The keys of one database in this process."""

    def __init__(self, master: MasterKeys, compress_from: int = 0, rotate_after_s: float = 0.0) -> None:
        """`rotate_after_s`: the age at which a data key is followed by a new one; 0: only `perdure keys rotate` makes one."""
        self._master, self._rotate_after_s = master, rotate_after_s
        self.codec = PayloadCodec(compress_from, self.load, self.refresh)
        self._loading = asyncio.Lock()
        self._tried_s: dict[int, float] = {}
        self._refreshed_s = -TRY_AGAIN_S

    async def open(self, connection: Any) -> None:
        """Make the newest key the one that seals; make the first one."""
        row = await fetch_row(connection, "newest_payload_key")
        if row is None:
            await self.rotate(connection, after=0)
            row = await fetch_row(connection, "newest_payload_key")
        await self._take(row)

    async def _take(self, row: Any) -> None:
        if row["id"] not in self.codec.known():
            self.codec.add(row["id"], await self._master.unwrap(WrappedKey(row["master"], row["wrapped"])))
        self.codec.seal_with(row["id"])

    async def load(self, connection: Any, ids: set[int]) -> None:
        """Make keys known. Those that cannot be are noted with the reason, and tried again after a while."""
        async with self._loading:
            now_s = monotonic()
            wanted = [
                i
                for i in ids
                if i not in self.codec.known() and now_s - self._tried_s.get(i, -TRY_AGAIN_S) >= TRY_AGAIN_S
            ]
            if not wanted:
                return
            rows = {r["id"]: r for r in await fetch(connection, "payload_keys_of", ids=wanted)}
            for key_id in wanted:
                self._tried_s[key_id] = now_s
                row = rows.get(key_id)
                if row is None:
                    self.codec.note_missing(
                        key_id,
                        "it is not in perdure.payload_key: it was retired, or the database was restored without it",
                    )
                    continue
                try:
                    self.codec.add(key_id, await self._master.unwrap(WrappedKey(row["master"], row["wrapped"])))
                except PayloadKeyMissing as error:
                    self.codec.note_missing(key_id, str(error))

    async def refresh(self, connection: Any) -> None:
        """With the heartbeat of an engine: take a newer key, and make one when the newest is too old."""
        now_s = monotonic()
        if now_s - self._refreshed_s < PAYLOAD_KEY_REFRESH_S:
            return
        self._refreshed_s = now_s
        row = await fetch_row(connection, "newest_payload_key")
        if row is None:
            return
        try:
            if row["id"] != self.codec.newest:
                await self._take(row)
                log.info("data key %d seals from now on", row["id"])
            elif self._rotate_after_s and row["age_s"] > self._rotate_after_s:
                made = await self.rotate(connection, after=row["id"])
                log.info(
                    "data key %d is older than %.0f s; data key %d follows it", row["id"], self._rotate_after_s, made
                )
                await self._take(await fetch_row(connection, "newest_payload_key"))
        except PayloadKeyMissing as error:
            log.error("data key %d still seals; a newer one cannot be used here: %s", self.codec.newest, error)

    async def rotate(self, connection: Any, after: int | None = None) -> int:
        """A new data key. `after`: unless there is a newer one than this already. Returns the newest key's id."""
        wrapped = await self._master.wrap(os.urandom(KEY_BYTES))
        async with connection.transaction():
            await fetch_value(connection, "lock_payload_keys")
            newest = await fetch_row(connection, "newest_payload_key")
            if after is not None and newest is not None and newest["id"] > after:
                found: int = newest["id"]
                return found
            made: int = await fetch_value(connection, "insert_payload_key", master=wrapped.master, wrapped=wrapped.data)
            return made

    async def rewrap(self, connection: Any) -> list[int]:
        """Wrap every data key with the newest master key. A repetition goes on where one was interrupted."""
        newest, done = await self._master.newest(), list[int]()
        for row in await fetch(connection, "list_payload_keys"):
            if row["master"] == newest:
                continue
            key = await self._master.unwrap(WrappedKey(row["master"], row["wrapped"]))
            wrapped = await self._master.wrap(key)
            given = {"id": row["id"], "before": row["wrapped"], "master": wrapped.master, "wrapped": wrapped.data}
            if await fetch_value(connection, "rewrap_payload_key", **given) is not None:
                done.append(row["id"])
        return done

    async def list(self, connection: Any) -> list[PayloadKeyItem]:
        rows = await fetch(connection, "list_payload_keys")
        items: list[PayloadKeyItem] = []
        for row in rows:
            problem = ""
            try:
                await self._master.unwrap(WrappedKey(row["master"], row["wrapped"]))
            except PayloadKeyMissing as error:
                problem = str(error)
            items.append(
                PayloadKeyItem(
                    row["id"], row["master"], row["created_at"], row["rewrapped_at"], row is rows[-1], problem
                )
            )
        return items


async def retire(connection: Any, key_id: int) -> None:
    """Delete a data key that nothing is sealed with any more. Reads every table that can hold sealed data."""
    rows = await fetch(connection, "list_payload_keys")
    if key_id not in {r["id"] for r in rows}:
        raise NotFound(f"there is no data key {key_id}; `perdure keys list` shows them")
    if key_id == rows[-1]["id"]:
        raise Conflict(f"data key {key_id} seals new data; make another one first: `perdure keys rotate`")
    used = await uses_of(connection, key_id)
    if used:
        shown = ", ".join(f"{n:,} in {where}" for where, n in used.items())
        raise Conflict(
            f"data key {key_id} is still needed for {shown}. Retention deletes them in time; to retire the key now would make them unreadable"
        )
    await fetch_value(connection, "delete_payload_key", id=key_id)


async def uses_of(connection: Any, key_id: int) -> dict[str, int]:
    """table.column -> how many values are sealed with this key."""
    found: dict[str, int] = {}
    words = " or ".join(f"{{column}}::text like '%{WORD}{word}%'" for word in word_prefixes(key_id))
    in_bytes = f"substr({{column}}, 1, 2) = '\\x{MARK.hex()}' and substr({{column}}, 6, 4) = int4send({int(key_id)})"
    for row in await fetch(connection, "tables_with_rows", names=list(SEALED)):
        for column in SEALED[row["of"]]:
            condition = (words if is_text(row["of"], column) else in_bytes).format(column=f'"{column}"')
            # Names come from the catalog and from columns.py, and the key's id is a number.
            n = await connection.fetchval(f'select count(*) from perdure."{row["name"]}" where {condition}')
            if n:
                found[f"{row['of']}.{column}"] = found.get(f"{row['of']}.{column}", 0) + n
    return found


async def use_payload_keys(
    dsn: str, master: MasterKeys | None, *, compress_from: int | None = None, rotate_after_s: float = 0.0
) -> PayloadKeys | None:
    """From now on the connections of this process to this database seal and open with these keys. Without `master` nothing is encrypted, and
    what is cannot be read. `compress_from`: values of so many bytes are compressed; 0: none; None: as encryption needs it."""
    if compress_from is None:
        compress_from = COMPRESS_FROM if master is not None else 0
    if master is None and not compress_from:
        use_codec(dsn, PayloadCodec())
        return None
    keys = PayloadKeys(master, compress_from, rotate_after_s) if master is not None else None
    connection = await connect(dsn)
    try:
        await _check_finished(connection)
        if keys is not None:
            await keys.open(connection)
    finally:
        await connection.close(timeout=10)
    use_codec(dsn, keys.codec if keys is not None else PayloadCodec(compress_from))
    return keys


def read_with_keys(dsn: str, master: MasterKeys) -> None:
    """From now on the connections of this process to this database open what these keys open, and seal nothing."""
    use_codec(dsn, PayloadKeys(master).codec)


async def _check_finished(connection: Any) -> None:
    row = await fetch_row(connection, "payload_keys_migration")
    if row is None or not row["is_finished"]:
        raise MigrationError(
            "payloads are to be encrypted or compressed, and code may still use this database that cannot read them. Upgrade all servers "
            "without PERDURE_PAYLOAD_KEYS and PERDURE_PAYLOAD_COMPRESS, run `perdure migrate --finish`, then set them"
        )
