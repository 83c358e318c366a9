"""The payload store in PostgreSQL: content in chunks, and what is known about content in object stores. sql/payloads.sql explains the locks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256 as new_digest
from secrets import token_hex
from typing import Any, Final

from perdure.core.errors import PayloadCorrupt, PayloadMissing
from perdure.core.limits import PAYLOAD_CHUNK_BYTES
from perdure.core.payload_port import AnnouncedPayload, Place
from perdure.core.payloads import Reference
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch

FOLDER_BYTES: Final = 8
"""Random bytes in the name of a folder: no folder is used again for the same content."""
DELETE_AGAIN_S: Final = 300.0
"""Seconds after which the deletion of an object is repeated if it failed."""
LOCKED_MAX: Final = 50
"""Contents that one transaction of upkeep locks: commits that refer to one of them wait for it."""

StoredPlace = tuple[int, str, bytes]
"""(namespace, store, SHA-256)"""
DeleteObjects = Callable[[list[Place]], Awaitable[None]]
"""Delete content of object stores."""


@retried()
class PostgresPayloads(PostgresPort):
    async def announce(
        self, ns: int, folder: str, items: Sequence[AnnouncedPayload], grace_s: float
    ) -> list[tuple[str, bool]]:
        """Where each is or belongs, and whether it is complete in the database. `folder`: of an object store."""
        async with self._pool.take() as c, c.transaction():
            return await self._announce(c, ns, folder, items, grace_s)

    async def _announce(
        self, c: Any, ns: int, folder: str, items: Sequence[AnnouncedPayload], grace_s: float
    ) -> list[tuple[str, bool]]:
        sizes = {item.sha256: item.size for item in items}
        given = {"ns": ns, "items": list(sizes.items()), "grace_s": grace_s}
        if folder:
            await fetch(c, "lock_announced_objects", ns=ns, sha256=list(sizes))
            rows = await fetch(c, "announce_objects", store=folder, new=token_hex(FOLDER_BYTES), **given)
            found = {row["sha256"]: (row["store"], False) for row in rows}
        else:
            rows = await fetch(c, "announce_payloads", store="", **given)
            found = {row["sha256"]: ("", row["is_complete"]) for row in rows}
        parts = [(found[item.sha256][0], item.sha256, *place) for item in items for place in item.holds]
        if parts:
            await execute(c, "insert_payload_parts", ns=ns, parts=parts)
            await check_stored(c, [(ns, *place) for item in items for place in item.holds])
        return [found[item.sha256] for item in items]

    async def put_whole(self, ns: int, item: AnnouncedPayload, data: bytes, grace_s: float) -> None:
        """Content of one chunk, whose digest was checked."""
        async with self._pool.take() as c, c.transaction():
            if not (await self._announce(c, ns, "", [item], grace_s))[0][1]:
                await execute(c, "put_payload_chunk", ns=ns, sha256=item.sha256, n=0, data=data)
                await execute(c, "complete_payload", ns=ns, sha256=item.sha256, size=item.size)

    async def put_chunk(self, ns: int, sha256: bytes, n: int, data: bytes) -> None:
        await self._execute("put_payload_chunk", ns=ns, sha256=sha256, n=n, data=data)

    async def complete(self, ns: int, sha256: bytes, size: int) -> None:
        """All chunks are here. PayloadCorrupt when they do not have the digest: they are removed, to be uploaded again."""
        digest, total, n = new_digest(), 0, 0
        while (data := await self._value("read_payload_chunk", ns=ns, sha256=sha256, n=n)) is not None:
            digest.update(data)
            total, n = total + len(data), n + 1
        is_right = digest.digest() == sha256 and total == size
        if is_right and await self._value("complete_payload", ns=ns, sha256=sha256, size=size) is not None:
            return
        await self._execute("delete_payload_chunks", ns=ns, sha256=sha256)
        raise PayloadCorrupt(
            f"the uploaded content has {total} bytes with SHA-256 {digest.hexdigest()}, and was announced with {size} bytes and "
            f"{sha256.hex()}; upload it again"
        )

    async def read(self, ns: int, sha256: bytes, offset: int, size: int) -> bytes:
        """At most `size` bytes from one chunk; empty at the end."""
        n, skip = divmod(offset, PAYLOAD_CHUNK_BYTES)
        row = await self._row("read_payload", ns=ns, sha256=sha256, n=n, skip=skip, size=size)
        if row is None:
            raise missing(sha256)
        if row["data"] is None and offset < row["size"]:
            raise PayloadCorrupt(
                f"content {sha256.hex()} has no bytes at {offset}; its rows in the database were damaged"
            )
        data: bytes = row["data"] or b""
        return data[skip : skip + size] if row["is_whole"] else data

    async def find(self, ns: int, sha256: bytes) -> Reference:
        row = await self._row("find_payload", ns=ns, sha256=sha256)
        if row is None:
            raise missing(sha256)
        return Reference(sha256, row["size"], row["store"])

    async def hold(self, ns: int, places: Sequence[Place], grace_s: float, run_id: bytes | None = None) -> None:
        """Keep content until the request that refers to it is recorded, and for `run_id` for as long as that run is kept."""
        async with self._pool.take() as c, c.transaction():
            rows = await fetch(c, "hold_payloads", ns=ns, places=sorted(places), grace_s=grace_s)
            found = {(row["store"], row["sha256"]) for row in rows}
            for place in places:
                if place not in found:
                    raise missing(place[1])
            if run_id is not None:
                await execute(c, "use_payloads", run_id=run_id, ns=ns, places=list(places))

    async def sweep(self, urls: Sequence[str], limit: int, grace_s: float, delete_objects: DeleteObjects) -> int:
        """Delete content that nothing uses and that was not announced within the grace period, in the database and in the object stores
        `urls`. Returns how many were looked at."""
        looked_at = 0
        while looked_at < limit:
            found = await self._sweep(urls, min(LOCKED_MAX, limit - looked_at), grace_s)
            looked_at += found
            if found < LOCKED_MAX:
                break
        await self._delete_garbage(urls, limit, delete_objects)
        return looked_at

    async def _sweep(self, urls: Sequence[str], limit: int, grace_s: float) -> int:
        async with self._pool.take() as c, c.transaction():
            rows = await fetch(c, "lock_payloads_to_check", urls=list(urls), limit=limit)
            places: list[StoredPlace] = [(row["ns"], row["store"], row["sha256"]) for row in rows]
            if not places:
                return 0
            kept = await fetch(c, "keep_used_payloads", places=places, grace_s=grace_s)
            used = {(row["ns"], row["store"], row["sha256"]) for row in kept}
            unused = [place for place in places if place not in used]
            await execute(c, "delete_payloads", places=unused)
            garbage = [(store, sha256) for _, store, sha256 in unused if store]
            if garbage:
                await execute(c, "insert_payload_garbage", places=garbage)
            return len(places)

    async def _delete_garbage(self, urls: Sequence[str], limit: int, delete_objects: DeleteObjects) -> None:
        """In the object stores first: after a crash in between, it is deleted once more."""
        rows = (
            await self._fetch("take_payload_garbage", urls=list(urls), limit=limit, again_s=DELETE_AGAIN_S)
            if urls
            else []
        )
        for start in range(0, len(rows), LOCKED_MAX):
            places: list[Place] = [(row["store"], row["sha256"]) for row in rows[start : start + LOCKED_MAX]]
            await delete_objects(places)
            await self._execute("delete_payload_garbage", places=places)


async def check_stored(c: Any, places: Sequence[StoredPlace]) -> None:
    """PayloadMissing unless all of it is there; then it stays until the transaction ends."""
    rows = await fetch(c, "lock_used_payloads", places=places)
    found = {(row["ns"], row["store"], row["sha256"]) for row in rows}
    for place in places:
        if place not in found:
            raise missing(place[2])


def missing(sha256: bytes) -> PayloadMissing:
    return PayloadMissing(
        f"content {sha256.hex()} is not in the payload store of this namespace: the runs that used it were removed by retention, or it "
        "was never uploaded completely"
    )
