"""The transport of `perdure.http`: a name is resolved once, every address is checked, and a checked address is connected to.

The check sits below the connection pool, at the moment a socket is opened. So it holds for every hop of a redirect, a name cannot
resolve differently between check and connection, and TLS still verifies the name of the URL. Proxies from the environment are not used:
a proxy would resolve the name itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import httpcore2
import httpx2

from perdure.core.egress import Egress
from perdure.core.errors import AddressRefused

KEPT_ALIVE_MAX: Final = 100
"""Idle connections kept for the next call."""
KEPT_ALIVE_S: Final = 5.0
ERRORS: Final = (
    httpcore2.ConnectionNotAvailable,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
)
"""What an exchange may raise beside httpx2's own errors."""
UNSENDABLE: Final = (
    httpcore2.LocalProtocolError,
    httpcore2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
    httpx2.UnsupportedProtocol,
)
"""The request itself is wrong."""


class CheckedTransport(httpx2.AsyncBaseTransport):
    """HTTP/1.1 over connections that `egress` allows."""

    def __init__(self, egress: Egress) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(),
            # A call is an attempt, and those are bounded by the worker's slots.
            max_connections=None,
            max_keepalive_connections=KEPT_ALIVE_MAX,
            keepalive_expiry=KEPT_ALIVE_S,
            network_backend=_CheckedNetwork(egress),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        url = request.url
        response = await self._pool.handle_async_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx2.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Stream(response),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._response.aiter_stream():
            yield part

    async def aclose(self) -> None:
        await self._response.aclose()


class _CheckedNetwork(httpcore2.AsyncNetworkBackend):
    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._network: Any = httpcore2.AnyIOBackend()  # httpcore2 has an untyped stand-in where anyio is missing

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await _resolve(host, port, timeout)
        refusal = self._egress.refusal(host, addresses, port)
        if refusal is not None:
            raise AddressRefused(refusal)
        failed: Exception | None = None
        share = timeout / len(addresses) if timeout is not None else None  # one dead address must not take all the time
        for address in addresses:
            try:
                stream: httpcore2.AsyncNetworkStream = await self._network.connect_tcp(
                    address, port, share, local_address, socket_options
                )
                return stream
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = failed or error
        assert failed is not None
        raise failed

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise AddressRefused(f"{path} is a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


async def _resolve(host: str, port: int, timeout: float | None) -> list[str]:
    """Every address of a host, in the order in which they should be tried. Literal addresses in any spelling come back in one."""
    try:
        async with asyncio.timeout(timeout):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise httpcore2.ConnectTimeout(f"{host} did not resolve within {timeout:g} s") from None
    except (OSError, UnicodeError) as error:
        raise httpcore2.ConnectError(f"{host} does not resolve: {error}") from error
    return list(dict.fromkeys(str(one[4][0]) for one in found))
