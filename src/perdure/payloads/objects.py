"""Object stores for payloads, through obstore: S3, GCS, Azure, a directory. Loaded when one is used; `pip install 'perdure[objects]'`.

Content is named by its SHA-256, in a folder of its own below that of its namespace. Only stores that this process was given are opened: a
reference that names another one is refused, because it may come from outside.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import timedelta
from typing import Any, Final, cast

from perdure.core.errors import InvalidInput, PayloadMissing, Unavailable
from perdure.core.limits import PAYLOAD_STORES_MAX
from perdure.core.packages import missing
from perdure.core.payload_port import Place
from perdure.core.payloads import Reference
from perdure.payloads.content import Content, ContentChanged

STORES_VARIABLE: Final = "PERDURE_PAYLOADS"
"""Of the environment: the object stores of a process, separated by commas."""
SCHEMES: Final = ("s3://", "gs://", "az://", "file:///")
PART_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one request of an upload; S3 takes parts of 5 MiB and more."""
PARTS_AT_ONCE: Final = 2
"""Parts of one upload on their way at the same time."""
RETRIES_MAX: Final = 5
RETRY_S_MAX: Final = 60.0
"""Seconds after which a request is not tried again."""
ALLOW_HTTP: Final = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "ALLOW_HTTP")
"""Variables that allow a store without TLS, such as one on this machine."""
REQUEST_TIMEOUT: Final = "60s"
"""Of one request; none moves more than PART_BYTES."""


def checked_url(url: str) -> str:
    """The URL of an object store, without a slash at the end. InvalidInput for what is none."""
    url = url.strip().rstrip("/")
    if not url.startswith(SCHEMES) or url in {scheme.rstrip("/") for scheme in SCHEMES}:
        raise InvalidInput(
            f"{url!r} is not an object store: write s3://bucket/prefix, gs://bucket/prefix, az://account/container/prefix or "
            "file:///directory"
        )
    return url


def checked_urls(urls: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(checked_url(url) for url in urls if url.strip()))
    if len(found) > PAYLOAD_STORES_MAX:
        raise InvalidInput(
            f"{len(found)} payload stores are given; at most PAYLOAD_STORES_MAX={PAYLOAD_STORES_MAX} can be"
        )
    return found


def payload_urls(text: str) -> tuple[str, ...]:
    """Object stores as a setting names them, separated by commas."""
    return checked_urls(text.split(","))


class ObjectStores:
    """The object stores that this process may use. The first one takes new content; without any, the database does."""

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self.urls = checked_urls(urls)
        self._open: dict[str, Any] = {}

    @property
    def first(self) -> str:
        return self.urls[0] if self.urls else ""

    async def has(self, folder: str, content: Content) -> bool:
        """Whether the content is there, with its size. An upload becomes visible when it is complete."""
        try:
            found: Any = await obstore().head_async(*self._at(folder, content.sha256))
        except FileNotFoundError:
            return False
        except Exception as e:
            raise _trouble(folder, e) from e
        return bool(found["size"] == content.size)

    async def put(self, folder: str, content: Content) -> None:
        try:
            await obstore().put_async(
                *self._at(folder, content.sha256),
                _checked_chunks(content),
                use_multipart=content.size > PART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        except Exception as e:
            if isinstance(e, ContentChanged):
                raise
            raise _trouble(folder, e) from e

    async def get(self, reference: Reference, offset: int, size: int) -> bytes:
        """A part of content; fewer bytes at the end."""
        size = min(size, reference.size - offset)
        if size <= 0:
            return b""
        try:
            part: Any = await obstore().get_range_async(
                *self._at(reference.store, reference.sha256), start=offset, length=size
            )
        except FileNotFoundError:
            raise PayloadMissing(
                f"content {reference.hex} is not in {reference.store}: it was deleted there, or the runs that used it were removed by retention"
            ) from None
        except Exception as e:
            raise _trouble(reference.store, e) from e
        return bytes(part)

    async def delete(self, places: list[Place]) -> None:
        """What is not there counts as deleted."""
        for folder, sha256 in places:
            try:
                await obstore().delete_async(*self._at(folder, sha256))
            except FileNotFoundError:
                continue
            except Exception as e:
                raise _trouble(folder, e) from e

    def is_known(self, folder: str) -> bool:
        return self._url_of(folder) is not None

    def _url_of(self, folder: str) -> str | None:
        return next((url for url in self.urls if folder.startswith(f"{url}/") and ".." not in folder), None)

    def _at(self, folder: str, sha256: bytes) -> tuple[Any, str]:
        """The store, and the name in it."""
        url = self._url_of(folder)
        if url is None:
            raise InvalidInput(
                f"content is in the payload store {folder}, which this process does not know; name it in PERDURE_PAYLOADS"
            )
        if url not in self._open:
            self._open[url] = object_store(url)
        return self._open[url], f"{folder.removeprefix(f'{url}/')}/{sha256.hex()}"


def obstore() -> Any:
    """The package, where it is installed."""
    try:
        import obstore
    except ImportError:
        raise missing("an object store", "objects") from None
    return cast(Any, obstore)


def object_store(url: str) -> Any:
    obstore()
    from obstore.store import LocalStore, from_url

    if url.startswith("file://"):
        return LocalStore(url.removeprefix("file://"), automatic_cleanup=True, mkdir=True)
    # Client options that are given replace those of the environment, so the one that stands there is repeated.
    allow_http = any(os.environ.get(name, "").lower() in ("1", "true") for name in ALLOW_HTTP)
    options: Any = {
        "client_options": {"timeout": REQUEST_TIMEOUT, "allow_http": allow_http},
        "retry_config": {"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_S_MAX)},
    }
    return from_url(url, **options)


async def _checked_chunks(content: Content) -> AsyncIterator[bytes]:
    """Reading is blocking, so it happens in a thread. A file that has changed since it was digested is refused."""
    digest, total = hashlib.sha256(), 0
    chunks: Iterator[bytes] = content.chunks()
    while True:
        chunk = await asyncio.to_thread(next, chunks, None)
        if chunk is None:
            break
        digest.update(chunk)
        total += len(chunk)
        if total > content.size:
            raise ContentChanged(content)
        yield chunk
    if total != content.size or digest.digest() != content.sha256:
        raise ContentChanged(content)


def _trouble(folder: str, error: Exception) -> Unavailable:
    first = str(error).partition("\n")[0]
    return Unavailable(f"the payload store {folder} does not answer as it should: {type(error).__name__}: {first}")
