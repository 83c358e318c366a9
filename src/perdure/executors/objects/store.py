"""An object store under a URL. Credentials and endpoints come from the environment, as the store's own tools take them.

obstore is imported here alone. Each call has a time limit: a store that hangs is a store that cannot be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.packages import missing

CALL_S_MAX: Final = 20.0
"""The longest that one call of the store may take, with its retries."""
LISTED_MAX: Final = 100_000
"""Objects of one listing."""
DELETED_MAX: Final = 1_000
"""Objects of one request to delete."""
SCHEMES: Final = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "memory")


class StoredObject(msgspec.Struct, frozen=True):
    """An object as a listing shows it."""

    path: str
    size: int
    version: str
    """Changes with each write."""


class TooLarge(Exception):
    """An object has more bytes than the reader takes."""


class ObjectStore:
    """A store, or the part of one below a prefix."""

    def __init__(self, url: str) -> None:
        self.url = _normal(url)
        self._store = _open(self.url)

    def url_of(self, path: str) -> str:
        return f"{self.url}/{path}"

    async def get(self, path: str, size_max: int) -> bytes | None:
        """None: there is none."""
        try:
            async with asyncio.timeout(CALL_S_MAX):
                found: Any = await self._store.get_async(path)
                if found.meta["size"] > size_max:
                    raise TooLarge(f"{self.url_of(path)} has {found.meta['size']} bytes; {size_max} are allowed")
                return bytes(await found.bytes_async())
        except FileNotFoundError:
            return None

    async def put(self, path: str, data: bytes) -> None:
        async with asyncio.timeout(CALL_S_MAX):
            await self._store.put_async(path, data)

    async def create(self, path: str, data: bytes) -> bool:
        """Whether this call made it; False: it exists."""
        import obstore.exceptions

        try:
            async with asyncio.timeout(CALL_S_MAX):
                await self._store.put_async(path, data, mode="create", use_multipart=False)
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError, FileExistsError):
            return False
        return True

    async def list(self, prefix: str) -> list[StoredObject]:
        found: list[StoredObject] = []
        async with asyncio.timeout(CALL_S_MAX):
            async for chunk in self._store.list(prefix, chunk_size=1_000):
                found += [StoredObject(m["path"], m["size"], _version(m)) for m in chunk]
                if len(found) >= LISTED_MAX:
                    raise TooLarge(f"{self.url_of(prefix)} has more than LISTED_MAX={LISTED_MAX} objects")
        return found

    async def delete(self, paths: Sequence[str]) -> None:
        """Those that exist."""
        for at in range(0, len(paths), DELETED_MAX):
            try:
                async with asyncio.timeout(CALL_S_MAX):
                    await self._store.delete_async(paths[at : at + DELETED_MAX])
            except FileNotFoundError:
                pass  # another worker deleted it


def split_url(url: str) -> tuple[str, str]:
    """The place that holds an object, and the object's name there."""
    place, slash, name = url.rpartition("/")
    if not slash or not name:
        raise InvalidInput(f"{url!r} is no object: give its URL, such as s3://bucket/jobs/spec.json, or its path")
    return place or "/", name


def _version(meta: Any) -> str:
    return f"{meta.get('e_tag')} {meta.get('version')} {meta['last_modified'].timestamp()} {meta['size']}"


def _normal(url: str) -> str:
    scheme, colon, _ = url.partition("://")
    if not colon:
        if not url:
            raise InvalidInput("there is no object store: give its URL, such as s3://bucket/jobs, or a directory")
        return Path(url).expanduser().absolute().as_uri().rstrip("/")
    if scheme not in SCHEMES:
        raise InvalidInput(f"{url!r} is no object store: its URL begins with {', '.join(f'{s}://' for s in SCHEMES)}")
    return url.rstrip("/")


def _open(url: str) -> Any:
    try:
        from obstore.store import LocalStore, from_url
    except ImportError as e:
        raise missing("an object store", "objects") from e
    if url.startswith("file://"):
        return LocalStore.from_url(url, mkdir=True, automatic_cleanup=True)
    retries: Any = {"max_retries": 4, "backoff": {"init_backoff": _ms(100), "max_backoff": _ms(2_000), "base": 2}}
    return from_url(url, retry_config=retries)


def _ms(ms: int) -> Any:
    from datetime import timedelta

    return timedelta(milliseconds=ms)
