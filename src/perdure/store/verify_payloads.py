"""Stored content for the verifier: every reference of a history leads to content, and the content has its SHA-256.

References are looked up while a page of histories is read, in its snapshot. Content is read once, however many runs refer to it: that of
the database in a snapshot of its own page, that of object stores which this process was given afterwards, part by part.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final, Protocol

from perdure.core import ids
from perdure.core.errors import PayloadCorrupt, PayloadKeyMissing, PayloadMissing
from perdure.core.events import Event
from perdure.core.invariants import Findings
from perdure.core.limits import PAYLOAD_CHUNK_BYTES
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import Reference, held_by
from perdure.store.queries import fetch, fetch_value

STORED: Final = 24
"""The invariant."""
PAGE_REFERENCES: Final = 1_000
PAGE_CONTENTS: Final = 100
READ_BYTES: Final = 4 * PAYLOAD_CHUNK_BYTES
"""Bytes of one read from an object store."""
_NOTHING: Final = bytes(16)


class KnownStores(Protocol):
    """Object stores that this process can read."""

    def is_known(self, folder: str) -> bool: ...
    async def get(self, reference: Reference, offset: int, size: int) -> bytes:
        """A part of content; empty at the end. Raises PayloadMissing or Unavailable."""
        ...


class PayloadReader:
    def __init__(self, connection: Any, findings: Findings, stores: KnownStores | None) -> None:
        self._c, self._findings, self._stores = connection, findings, stores
        self._asked: dict[tuple[bytes, int, str, bytes], int] = {}
        """References of histories that were read since the last page of them, with their sizes."""
        self._dropped = _NOTHING
        """Retention may have taken the uses of ended runs below this id, and then their content."""

    async def begin(self) -> None:
        self._dropped = await fetch_value(self._c, "verify_uses_retention") or _NOTHING

    # references

    def refer(self, run_id: bytes, ns: int, events: Iterable[Event]) -> None:
        """Events of a row that has MARK in it."""
        for reference in held_by(p for event in events for p in payloads_of(event)).values():
            self._asked[run_id, ns, reference.store, reference.sha256] = reference.size

    async def look_up(self, *, all_of_them: bool = False) -> None:
        """Once there is a page of them."""
        if len(self._asked) < (1 if all_of_them else PAGE_REFERENCES):
            return
        self._findings.examine(STORED, len(self._asked))
        references = [(*place, size) for place, size in self._asked.items()]
        self._asked.clear()
        for start in range(0, len(references), PAGE_REFERENCES):
            page = references[start : start + PAGE_REFERENCES]
            for r in await fetch(self._c, "verify_references", references=page, dropped=self._dropped):
                self._violate(r, r["what"])

    # content

    async def contents(self) -> None:
        at = {"ns": 0, "sha256": b"", "store": ""}
        while True:
            async with self._c.transaction(isolation="repeatable_read", readonly=True):
                rows = await fetch(
                    self._c, "verify_contents", **at, limit=PAGE_CONTENTS, chunk_bytes=PAYLOAD_CHUNK_BYTES
                )
                for r in rows:
                    await self._content(r)
            if not rows:
                return
            for r in rows:
                if r["store"]:
                    await self._object(r)
            at = {name: rows[-1][name] for name in at}

    async def _content(self, r: Any) -> None:
        if r["lacks"]:
            self._violate(r, "it refers to further content that is missing")
        if r["store"]:
            return
        self._findings.examine(STORED)
        try:
            found = r["digest"] or await self._digest(r)
        except PayloadKeyMissing:
            self._findings.pass_over(STORED)
            return
        except PayloadCorrupt as error:
            self._violate(r, str(error))
            return
        if found != r["sha256"]:
            self._violate(r, "its bytes in the database do not have this SHA-256")

    async def _digest(self, r: Any) -> bytes:
        digest, n = sha256(), 0
        while True:
            data = await fetch_value(self._c, "read_payload_chunk", ns=r["ns"], sha256=r["sha256"], n=n)
            if data is None:
                return digest.digest()
            digest.update(data)
            n += 1

    async def _object(self, r: Any) -> None:
        if self._stores is None or not self._stores.is_known(r["store"]):
            self._findings.pass_over(STORED)
            return
        self._findings.examine(STORED)
        what = await self._object_damage(self._stores, Reference(r["sha256"], r["size"], r["store"]))
        if what and await fetch_value(
            self._c, "verify_content_used", ns=r["ns"], store=r["store"], sha256=r["sha256"]
        ):  # else it was deleted since its page was read
            self._violate(r, what)

    async def _object_damage(self, stores: KnownStores, reference: Reference) -> str:
        digest, offset = sha256(), 0
        try:
            while offset < reference.size and (part := await stores.get(reference, offset, READ_BYTES)):
                digest.update(part)
                offset += len(part)
        except PayloadMissing:
            return "it is missing in its store"
        return "" if digest.digest() == reference.sha256 else "its bytes in its store do not have this SHA-256"

    def _violate(self, r: Any, what: str) -> None:
        where = f" in {r['store']}" if r["store"] else ""
        run = ids.text(r["run_id"]) if r["run_id"] else ""
        self._findings.violate(STORED, run, f"content {r['sha256'].hex()}{where}: {what}")


def state_hash(r: Any) -> bytes:
    """Of a row of verify_state; of a sealed value it is made here."""
    if r["is_sealed"]:
        try:
            return sha256(r["sealed"]).digest()
        except PayloadKeyMissing:
            return b""
    stored: bytes = r["hash"]
    return stored
