"""HTTP for the command line on the standard library, because importing a client library takes longer than most commands.

Requests share one connection; a stream has its own. Redirects are not followed. Proxies of the environment are used, except for
servers on this machine.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
PIECE_BYTES: Final = 1024 * 1024
"""Bytes of a download that are read at a time."""
IDLE_S_MAX: Final = 1.0
"""A connection that was idle for longer is replaced: the server may have closed it."""
LINE_BYTES_MAX: Final = 16 * 1024 * 1024


class TransportError(Exception):
    """The response is missing or incomplete."""


class ConnectError(TransportError):
    """The request was not sent."""


class TimedOut(TransportError):
    pass


class ConnectTimedOut(ConnectError, TimedOut):
    pass


class HttpAnswer:
    def __init__(self, response: http.client.HTTPResponse, body: bytes) -> None:
        self.status_code, self.reason_phrase = response.status, response.reason
        self.headers, self.content = response.headers, body

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    def json(self) -> Any:
        return json.loads(self.content)


class HttpSession:
    def __init__(
        self, url: str, headers: Mapping[str, str], *, connect_s: float, answer_s: float, context: ssl.SSLContext | None
    ) -> None:
        """Raises ValueError if `url` is not an http or https address."""
        self._url = urlsplit(url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ValueError("it must begin with http:// or https://")
        self._port = self._url.port  # raises ValueError if it is not a number
        self._headers = dict(headers)
        self._connect_s, self._answer_s, self._context = connect_s, answer_s, context
        self._kept: http.client.HTTPConnection | None = None
        self._used_at = 0.0

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def request(
        self,
        method: str,
        path: str,
        *,
        params: list[tuple[str, Any]],
        content: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> HttpAnswer:
        if self._kept is not None and time.monotonic() - self._used_at > IDLE_S_MAX:
            self.close()
        kept = self._kept = self._kept or self._connect(self._answer_s)
        try:
            with _transport_errors():
                kept.request(method, self._target(path, params), content, {**self._headers, **(headers or {})})
                response = kept.getresponse()
                answer = HttpAnswer(response, response.read())
        except BaseException:
            self.close()
            raise
        self._used_at = time.monotonic()
        if response.will_close:
            self.close()
        return answer

    @contextmanager
    def stream(
        self, path: str, *, params: list[tuple[str, Any]], headers: Mapping[str, str], silence_s: float
    ) -> Generator[tuple[HttpAnswer, Iterator[str]]]:
        """The response without its body, and the lines of the body as they arrive. An error response has its body."""
        connection = self._connect(silence_s)
        try:
            with _transport_errors():
                connection.request("GET", self._target(path, params), None, {**self._headers, **headers})
                response = connection.getresponse()
                body = response.read() if response.status != 200 else b""
            yield HttpAnswer(response, body), _lines(response)
        finally:
            connection.close()

    @contextmanager
    def download(self, path: str, *, silence_s: float) -> Generator[tuple[HttpAnswer, Iterator[bytes]]]:
        """The response without its body, and the body in pieces. An error response has its body."""
        connection = self._connect(silence_s)
        try:
            with _transport_errors():
                connection.request("GET", self._target(path, []), None, self._headers)
                response = connection.getresponse()
                body = response.read() if response.status != 200 else b""
            yield HttpAnswer(response, body), _pieces(response)
        finally:
            connection.close()

    def _target(self, path: str, params: list[tuple[str, Any]]) -> str:
        query = urlencode([(name, _text(value)) for name, value in params])
        target = f"{self._url.path}{path}{f'?{query}' if query else ''}"
        if self._url.scheme == "http" and self._proxy() is not None:
            return f"http://{self._url.netloc}{target}"
        return target

    def _connect(self, answer_s: float) -> http.client.HTTPConnection:
        proxy = self._proxy()
        host, port = self._url.hostname or "", self._port
        at = (proxy.hostname or "", proxy.port) if proxy is not None else (host, port)
        made: http.client.HTTPConnection
        if self._url.scheme == "https":
            made = http.client.HTTPSConnection(*at, timeout=self._connect_s, context=self._context)
            if proxy is not None:
                made.set_tunnel(host, port)
        else:
            made = http.client.HTTPConnection(*at, timeout=self._connect_s)
        try:
            made.connect()
        except TimeoutError as error:
            raise ConnectTimedOut(str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise ConnectError(str(error)) from error
        if isinstance(made.sock, socket.socket):
            made.sock.settimeout(answer_s)
        return made

    def _proxy(self) -> SplitResult | None:
        """The proxy of the environment; never for loopback addresses, which a proxy cannot reach."""
        host = self._url.hostname or ""
        if host in LOOPBACK or not any(name.lower().endswith("_proxy") for name in os.environ):
            return None
        from urllib.request import getproxies, proxy_bypass

        proxies = getproxies()
        found = proxies.get(self._url.scheme) or proxies.get("all")
        if not found or proxy_bypass(host):
            return None
        return urlsplit(found if "://" in found else f"http://{found}")


@contextmanager
def _transport_errors() -> Generator[None]:
    """Turns errors of sockets and HTTP into `TransportError`."""
    try:
        yield
    except TimeoutError as error:
        raise TimedOut(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise TransportError(str(error) or type(error).__name__) from error


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        with _transport_errors():
            piece = response.read(PIECE_BYTES)
        if not piece:
            return
        yield piece


def _lines(response: http.client.HTTPResponse) -> Iterator[str]:
    while True:
        with _transport_errors():
            try:
                line = response.readline(LINE_BYTES_MAX)
            except (ValueError, AttributeError) as error:  # another thread closed it when the command ended
                raise TransportError(str(error)) from error
        if not line:
            return
        yield line.decode(errors="replace").rstrip("\r\n")


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
