"""Master keys in a server with the protocol of Vault's transit secrets engine: the master key never leaves it.

The URL names the mount and the key: `https://vault.example.com/v1/transit/perdure` posts to `/v1/transit/encrypt/perdure` and
`/v1/transit/decrypt/perdure`. The token comes from PERDURE_TRANSIT_TOKEN, VAULT_TOKEN, or the file that PERDURE_TRANSIT_TOKEN_FILE names, which is read
for each request, so that an agent may renew it. A ciphertext begins with `vault:v3:`, where 3 is the version of the key: the id of the master.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from perdure.core.errors import InvalidInput, PayloadKeyMissing
from perdure.core.master_keys import WrappedKey

REQUEST_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024
PARTS: Final = 3


class TransitKeys:
    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self._mount, slash, self._key = url.rstrip("/").rpartition("/")
        if parts.scheme not in ("https", "http") or not parts.hostname or not slash or not self._key:
            raise InvalidInput(
                f"{url!r} is not the URL of a transit key, such as https://vault:8200/v1/transit/perdure"
            )
        if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise InvalidInput(f"{url!r} would send data keys over the network in the clear: use https")
        self._environ = environ

    async def newest(self) -> str:
        data = await asyncio.to_thread(self._request, "GET", f"{self._mount}/keys/{self._key}", None)
        return f"v{data.get('latest_version', '?')}"

    async def wrap(self, key: bytes) -> WrappedKey:
        text = (await self._post("encrypt", {"plaintext": base64.b64encode(key).decode()})).get("ciphertext", "")
        parts = text.split(":") if isinstance(text, str) else []
        if len(parts) != PARTS:
            raise self._failed("its answer has no ciphertext")
        return WrappedKey(parts[1], text.encode())

    async def unwrap(self, wrapped: WrappedKey) -> bytes:
        data = await self._post("decrypt", {"ciphertext": wrapped.data.decode("ascii", "replace")})
        try:
            return base64.b64decode(data.get("plaintext", ""), validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise self._failed("its answer has no plaintext") from None

    async def _post(self, act: str, body: dict[str, str]) -> dict[str, Any]:
        return await asyncio.to_thread(self._request, "POST", f"{self._mount}/{act}/{self._key}", body)

    def _request(self, method: str, url: str, body: dict[str, str] | None) -> dict[str, Any]:
        headers = {"X-Vault-Token": self._token(), "Content-Type": "application/json"}
        request = Request(url, json.dumps(body).encode() if body is not None else None, headers, method=method)
        try:
            with urlopen(request, timeout=REQUEST_S) as answer:
                found = json.loads(answer.read(ANSWER_BYTES_MAX))
        except HTTPError as error:
            said = " ".join(error.read(ANSWER_BYTES_MAX).decode(errors="replace").split())[:300]
            raise self._failed(f"{error.code} {error.reason}: {said}") from None
        except (URLError, OSError, ValueError) as error:
            raise self._failed(str(getattr(error, "reason", error))) from None
        data = found.get("data") if isinstance(found, dict) else None
        if not isinstance(data, dict):
            raise self._failed("its answer has no data")
        return data

    def _token(self) -> str:
        file = self._environ.get("PERDURE_TRANSIT_TOKEN_FILE", "")
        try:
            if file:
                return Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise self._failed(f"its token in {file} cannot be read: {error.strerror}") from None
        return self._environ.get("PERDURE_TRANSIT_TOKEN") or self._environ.get("VAULT_TOKEN") or ""

    def _failed(self, why: str) -> PayloadKeyMissing:
        return PayloadKeyMissing(
            f"the key server at {self._mount} (key {self._key}) did not answer as it should: {why}"
        )
