"""One HTTP exchange, for `perdure.http` and for calls of services.

Laws:

1. Nothing of one call reaches another: connections are shared, cookies are not kept.
2. Only http and https, and only addresses of the public internet and those that the worker allows (core/egress.py). A redirect is
   followed as long as it stays where the call was sent; one that leads elsewhere is the result.
3. What another attempt may change (no connection, 408, 429, 5xx) is an error like any other; an answer that will stay the same is final.
   A server that says when to come back (`Retry-After` with 429 or 503) is asked again then, if an attempt is left.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perdure.core.durations import to_us
from perdure.core.egress import Egress
from perdure.core.errors import AddressRefused, InvalidInput, PayloadTooLarge, PerdureError
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.packages import missing

if TYPE_CHECKING:
    import httpx2

CONNECT_S: Final = 10.0
SILENCE_S: Final = 300.0
"""A server that sends nothing for so long counts as unreachable. The whole of a call is bounded by the task's timeout, or `timeout`."""
REDIRECTS_MAX: Final = 5
ERROR_BODY_BYTES: Final = 2_000
"""Bytes of an error's answer that its message shows."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BREAK: Final = re.compile(r"[\r\n\x00]")
RETRYABLE: Final = frozenset({408, 429})
"""Of the 4xx: a matter of the moment."""
SAYS_WHEN: Final = frozenset({429, 503})
"""Statuses whose Retry-After counts."""


class HttpStatus(Exception):
    """The server answered with 400 or more. `retry_after`: seconds of its `Retry-After` header; None: it has none."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class _FinalHttpStatus(HttpStatus, PerdureError):
    """The same, where another attempt would be answered the same way: errors of ours are final."""


_FinalHttpStatus.__name__ = HttpStatus.__name__  # one type in every record, final or not


class HttpFailed(Exception):
    """There was no answer."""


class ServiceFailed(Exception):
    """The service answered that it failed."""


class HttpClient:
    """Connections that may reach the public internet and what `allow` adds."""

    def __init__(self, allow: Sequence[str] = ()) -> None:
        self._egress = Egress(allow)  # a mistake in it stops the worker, not the first call
        self._client: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open(self) -> httpx2.AsyncClient:
        if self._client is None:
            try:
                import httpx2

                from perdure.executors.http.transport import CheckedTransport
            except ImportError as error:
                raise missing("an HTTP request", "http") from error

            self._client = httpx2.AsyncClient(
                timeout=httpx2.Timeout(SILENCE_S, connect=CONNECT_S),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                transport=CheckedTransport(self._egress),
            )
        return self._client

    async def send(
        self,
        url: str,
        method: str,
        *,
        headers: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        timeout: float | str | None = None,
    ) -> dict[str, Any]:
        """Status, headers and body of the answer. HttpStatus for a status of 400 or more, HttpFailed where there was no answer."""
        client = self._open()
        import httpx2

        from perdure.executors.http import transport

        request = _request(client, url, method, headers, query, body)
        where = f"{request.method} {_shown(request.url)}"
        limit_s = to_us(timeout) / 1e6 if timeout is not None else None
        try:
            async with asyncio.timeout(limit_s):
                return await _exchange(client, request, where)
        except AddressRefused as error:
            raise AddressRefused(
                f"{where} is refused: {error}. A worker reaches only the public internet unless its configuration allows more: start it "
                f"with --http-allow {_netloc(request.url)} or PERDURE_HTTP_ALLOW={_netloc(request.url)}"
            ) from None
        except TimeoutError:
            raise HttpFailed(f"{where}: no whole answer within {limit_s:g} s") from None
        except transport.UNSENDABLE as error:
            raise InvalidInput(f"{where} is no request that can be sent: {error}") from error
        except (httpx2.HTTPError, *transport.ERRORS, OSError) as error:
            raise HttpFailed(f"{where}: {_reason(error)}") from error


def service_hosts(urls: Iterable[str]) -> list[str]:
    """Entries of an allow-list for the hosts of these URLs."""
    import httpx2

    return [httpx2.URL(url).raw_host.decode() for url in urls]


def _request(
    client: httpx2.AsyncClient,
    url: str,
    method: str,
    headers: Mapping[str, Any] | None,
    query: Mapping[str, Any] | None,
    body: Any,
) -> httpx2.Request:
    import httpx2

    sent = {name.lower(): _text(f"the header {name!r}", value) for name, value in (headers or {}).items()}
    bad = [x for x in (method, *sent) if not _TOKEN.fullmatch(x)] or [x for x in sent.values() if _BREAK.search(x)]
    if bad:
        raise InvalidInput(
            f"{bad[0]!r} cannot be a part of a request: the names of methods and headers are words, and nothing holds a line break"
        )
    content = None
    if isinstance(body, str):
        content = body.encode()
        sent.setdefault("content-type", "text/plain; charset=utf-8")
    elif body is not None:
        content = msgspec.json.encode(body)
        sent.setdefault("content-type", "application/json")
    try:
        address = httpx2.URL(url)
        if address.scheme not in ("http", "https") or not address.host:
            raise InvalidInput(f"{_bare(url)!r} is no address to send a request to: it begins with http:// or https://")
        if query:
            address = address.copy_merge_params(_query(query))
        return client.build_request(method.upper(), address, headers=sent, content=content)
    except (httpx2.InvalidURL, ValueError, TypeError) as error:
        raise InvalidInput(f"{method} {_bare(url)!r} is no request that can be sent: {error}") from error


async def _exchange(client: httpx2.AsyncClient, request: httpx2.Request, where: str) -> dict[str, Any]:
    for _ in range(REDIRECTS_MAX + 1):
        response = await client.send(request, stream=True)
        try:
            onward = response.next_request
            if onward is None or not _is_same_place(request.url, onward.url):
                return await _answer(response, where)
            request = onward
        finally:
            await response.aclose()
    raise HttpFailed(f"{where}: redirected more than REDIRECTS_MAX={REDIRECTS_MAX} times")


async def _answer(response: httpx2.Response, where: str) -> dict[str, Any]:
    if response.status_code >= 400:
        head = await _read(response, ERROR_BODY_BYTES)
        text = head[:ERROR_BODY_BYTES].decode(response.encoding or "utf-8", "replace").strip()
        what = f"{where}: {response.status_code} {response.reason_phrase}"
        raise status_error(response.status_code, what, text, _retry_after(response))
    data = await _read(response, PAYLOAD_BYTES_MAX)
    if len(data) > PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(
            f"{where}: the answer has more than PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX:,} bytes, which is what a result may take. "
            "Ask for less, or fetch it in a task of your own that keeps it elsewhere and returns a reference."
        )
    return {"status": response.status_code, "headers": dict(response.headers), "body": _body(response, data)}


def status_error(status: int, what: str, said: str, retry_after: float | None = None) -> HttpStatus:
    kind = HttpStatus if status >= 500 or status in RETRYABLE else _FinalHttpStatus
    return kind(status, f"{what.rstrip()}\n{said}" if said else what.rstrip(), retry_after)


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds, or a date relative to the server's clock (ours where the response has no date)."""
    said = response.headers.get("retry-after", "").strip()
    if response.status_code not in SAYS_WHEN or not said:
        return None
    if said.isascii() and said.isdigit():
        return float(said[:9])
    until = _date(said)
    if until is None:
        return None
    now = _date(response.headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


async def _read(response: httpx2.Response, limit: int) -> bytes:
    """The answer's body, or a little more than `limit` of it."""
    data = bytearray()
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > limit:
            break
    return bytes(data)


def _body(response: httpx2.Response, data: bytes) -> Any:
    """JSON as what it says, everything else as text."""
    media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if data and (not media or media.endswith(("/json", "+json"))):
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            pass  # then it is text that claims to be more
    return data.decode(response.encoding or "utf-8", "replace")


def service_result(name: str, answer: Any) -> Any:
    if not isinstance(answer, dict) or not {"result", "error"} & answer.keys():
        raise ServiceFailed(
            f"the service {name!r} did not answer with {{result, error}} but with {str(answer)[:200]!r}"
        )
    if answer.get("error"):
        raise ServiceFailed(f"the service {name!r} failed: {answer['error']}")
    return answer.get("result")


def _query(query: Mapping[str, Any]) -> dict[str, str | list[str]]:
    """Null is not sent; a list is the same name several times."""
    found: dict[str, str | list[str]] = {}
    for name, value in query.items():
        if isinstance(value, list):
            found[name] = [_text(f"the query's {name!r}", one) for one in value]
        elif value is not None:
            found[name] = _text(f"the query's {name!r}", value)
    return found


def _text(what: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidInput(f"{what} is a {type(value).__name__}; give text or a number")


def _is_same_place(a: httpx2.URL, b: httpx2.URL) -> bool:
    """The same host and port, or its secure side."""
    if a.host != b.host:
        return False
    if a.scheme == b.scheme:
        return a.port == b.port
    return a.scheme == "http" and b.scheme == "https" and a.port is None and b.port is None


def _bare(url: str) -> str:
    """The same of one that cannot be parsed."""
    scheme, slashes, rest = url.partition("?")[0].partition("://")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"[:200]


def _shown(url: httpx2.URL) -> str:
    """Without what may be secret: user, password, query."""
    return f"{url.scheme}://{_netloc(url)}{url.path}"


def _netloc(url: httpx2.URL) -> str:
    return url.netloc.decode("ascii", "replace").rpartition("@")[2]


def _reason(error: Exception) -> str:
    """The first sentence among the causes: the outermost often has none."""
    found: BaseException | None = error
    while found is not None and not str(found):
        found = found.__cause__ or found.__context__
    return f"{type(error).__name__}: {found}" if found is not None else type(error).__name__
