"""The provider's own description of itself: the discovery document of its issuer."""

from __future__ import annotations

from typing import Final

import httpx2
import msgspec

from perdure.server.auth.addresses import is_loopback_url

DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
ANSWER_BYTES_MAX: Final = 256 * 1024


class Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    device_authorization_endpoint: str = ""
    token_endpoint_auth_methods_supported: list[str] = []


async def discover(client: httpx2.AsyncClient, issuer: str) -> Discovery:
    """Raises ValueError for a document that cannot be trusted, and what the client raises when there is none."""
    body = await fetch(client, issuer.rstrip("/") + DISCOVERY_PATH)
    found = msgspec.json.decode(body, type=Discovery)
    if found.issuer != issuer:
        raise ValueError(f"its discovery document is of another issuer: {found.issuer}")
    for url in (
        found.jwks_uri,
        found.authorization_endpoint,
        found.token_endpoint,
        found.device_authorization_endpoint,
    ):
        if url and not url.startswith("https://") and not is_loopback_url(url):
            raise ValueError(f"its discovery document names {url}, which is not https")
    return found


async def fetch(client: httpx2.AsyncClient, url: str) -> bytes:
    """The body of a GET that answers 200."""
    status, body = await bounded(client, client.build_request("GET", url))
    if status != 200:
        raise ValueError(f"{url} answered {status}")
    return body


async def bounded(client: httpx2.AsyncClient, request: httpx2.Request) -> tuple[int, bytes]:
    """Status and body, of bounded size. Redirects are not followed: the address in the settings is the one that is trusted."""
    body = bytearray()
    response = await client.send(request, stream=True, follow_redirects=False)
    try:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise ValueError(f"{request.url} answered more than {ANSWER_BYTES_MAX} bytes")
    finally:
        await response.aclose()
    return response.status_code, bytes(body)
