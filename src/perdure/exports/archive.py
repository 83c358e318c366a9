"""The object store that exports are in. Writing an object replaces it whole; a manifest is what makes the others count."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from perdure.core.errors import InvalidInput, NotFound, Unavailable
from perdure.core.retention import MANIFEST, MANIFEST_VERSION, ExportPart, Manifest
from perdure.payloads.objects import PART_BYTES, checked_url, object_store, obstore

MANIFESTS_MAX: Final = 100_000
"""Exports below one address."""


class Archive:
    def __init__(self, url: str) -> None:
        self.url = checked_url(url)
        self._store: Any = None

    def _open(self) -> Any:
        if self._store is None:
            self._store = object_store(self.url)
        return self._store

    async def put(self, name: str, data: bytes) -> None:
        try:
            await obstore().put_async(
                self._open(), name, data, use_multipart=len(data) > PART_BYTES, chunk_size=PART_BYTES
            )
        except Exception as e:
            raise self._trouble(e) from e

    async def get(self, name: str) -> bytes:
        try:
            answer: Any = await obstore().get_async(self._open(), name)
            return bytes(await answer.bytes_async())
        except FileNotFoundError:
            raise NotFound(f"{self.url} has no object {name}") from None
        except Exception as e:
            raise self._trouble(e) from e

    async def delete(self, name: str) -> None:
        """An object that is not there counts as deleted."""
        try:
            await obstore().delete_async(self._open(), name)
        except FileNotFoundError:
            pass
        except Exception as e:
            raise self._trouble(e) from e

    async def folders(self) -> list[str]:
        """Folders below this address that have a manifest, or the address itself: an empty name."""
        try:
            pages = obstore().list(self._open())
            found: list[str] = []
            async for page in pages:
                names = [cast("str", item["path"]) for item in page]
                found += [n.removesuffix(MANIFEST).rstrip("/") for n in names if n.rpartition("/")[2] == MANIFEST]
                if len(found) > MANIFESTS_MAX:
                    raise InvalidInput(
                        f"{self.url} has more than MANIFESTS_MAX={MANIFESTS_MAX} exports; name a folder below it"
                    )
        except InvalidInput:
            raise
        except Exception as e:
            raise self._trouble(e) from e
        return sorted(found)

    async def manifest(self, folder: str) -> Manifest:
        name = _below(folder, MANIFEST)
        try:
            found = msgspec.json.decode(await self.get(name), type=Manifest)
        except msgspec.MsgspecError as e:
            raise InvalidInput(f"{self.url}/{name} is not the manifest of an export: {e}") from None
        if found.perdure_export > MANIFEST_VERSION:
            raise InvalidInput(
                f"{self.url}/{name} was written by a newer Perdure ({found.version}); upgrade perdure to read it"
            )
        return found

    async def part(self, folder: str, part: ExportPart) -> bytes:
        """With its checksum compared."""
        name = _below(folder, part.object)
        data = await self.get(name)
        digest = await asyncio.to_thread(lambda: sha256(data).hexdigest())
        if digest != part.sha256 or len(data) != part.bytes:
            raise InvalidInput(
                f"{self.url}/{name} has {len(data)} bytes with SHA-256 {digest}; its manifest says {part.bytes} bytes and {part.sha256}. "
                "Nothing of it is used: restore the object from a copy"
            )
        return data

    async def write_manifest(self, folder: str, manifest: Manifest) -> None:
        """Last of all; then everything is read back and compared. InvalidInput when it is not what was written."""
        await self.put(_below(folder, MANIFEST), msgspec.json.format(msgspec.json.encode(manifest), indent=2))
        if await self.manifest(folder) != manifest:
            raise InvalidInput(f"{self.url}/{_below(folder, MANIFEST)} is not what was written")
        for part in manifest.parts:
            await self.part(folder, part)

    async def withdraw(self, folder: str, objects: list[str]) -> None:
        """Delete an export. Its manifest goes first: what is left after a crash in between does not count."""
        for name in (MANIFEST, *objects):
            await self.delete(_below(folder, name))

    def _trouble(self, error: Exception) -> Exception:
        if isinstance(error, ImportError | InvalidInput | NotFound):
            return error
        first = str(error).partition("\n")[0]
        return Unavailable(f"the object store {self.url} does not answer as it should: {type(error).__name__}: {first}")


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
