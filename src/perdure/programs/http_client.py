"""The REST client of the command line: requests, and errors as messages with exit codes."""

from __future__ import annotations

import json
import os
import random
import re
import ssl
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from perdure.core.errors import InvalidInput, PerdureError, Unavailable, error_classes
from perdure.core.version import VERSION
from perdure.programs.http_session import (
    ConnectError,
    ConnectTimedOut,
    HttpAnswer,
    HttpSession,
    TimedOut,
    TransportError,
)

CONNECT_S: Final = 5.0
ANSWER_S: Final = 65.0
"""Slightly more than the longest time a server holds a request (`wait=60`)."""
TRIES: Final = 3
PAUSE_S: Final = 0.2
RETRY_AFTER_S_MAX: Final = 10.0
PAGE: Final = 500
STREAM_SILENCE_S: Final = 45.0
"""A stream without data or comments for this long is considered dead."""

NOTHING: Final = object()
Params = Sequence[tuple[str, str | int | float | bool | None]]

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_CANCELLED: Final = 3
EXIT_NOT_FOUND: Final = 4
EXIT_NO_SERVER: Final = 5
EXIT_BREAKS: Final = 6
EXIT_UNCHECKED: Final = 7
EXIT_INTERRUPTED: Final = 130

EXIT_CODES: Final[dict[int, str]] = {
    0: "success; for `watch`, `run --watch` and `dev --once`: the run succeeded",
    EXIT_FAILED: "the run failed, or another failure: a conflict, an invalid flow, a finding of `doctor` or `verify`",
    EXIT_USAGE: "usage error: an unknown command or option, or invalid input",
    EXIT_CANCELLED: "the run was cancelled",
    EXIT_NOT_FOUND: "not found: no such run, workflow, promise, API key or namespace",
    EXIT_NO_SERVER: "the server cannot be reached, is not ready, or refuses access",
    EXIT_BREAKS: "`check`: the deploy would break runs in flight",
    EXIT_UNCHECKED: "`check`: not all could be checked, or the code cannot be imported",
    EXIT_INTERRUPTED: "interrupted with Ctrl-C",
}
"""Also the table of docs/reference/cli.md."""

VARIABLES: Final[dict[str, str]] = {
    "PERDURE_URL": "the server's HTTP address; `--url` takes precedence",
    "PERDURE_GRPC": "the server's gRPC address, for workers and clients; separate several with commas",
    "PERDURE_API_KEY": "API key or token; `--api-key` takes precedence",
    "PERDURE_NAMESPACE": "the namespace, for an API key that is valid in several; `--namespace` takes precedence",
    "PERDURE_CA": "a certificate authority to trust, as a PEM file",
    "PERDURE_CLIENT_CERT": "client certificate for a server that requires one, as a PEM file",
    "PERDURE_CLIENT_KEY": "private key of the client certificate, as a PEM file",
    "NO_COLOR": "any value: no colours",
    "NO_UNICODE": "any value: drawings of flows in ASCII",
    "XDG_CONFIG_HOME": "directory of what `perdure login` keeps; default `~/.config`",
    "XDG_STATE_HOME": "directory of the file that remembers `@last`; default `~/.local/state`",
}
"""Environment variables of commands and workers; also the table of docs/reference/cli.md."""

_BY_CODE: Final = {kind.code: kind for kind in error_classes()}
_BY_STATUS: Final[dict[int, type[PerdureError]]] = {kind.http_status: kind for kind in reversed(_BY_CODE.values())} | {
    400: InvalidInput,
    502: Unavailable,
    504: Unavailable,
}
"""For codes that only servers define, and for proxies."""


class ApiError(PerdureError):
    """An error response of a server."""

    def __init__(self, message: str, *, status: int, problem_code: str = "") -> None:
        super().__init__(message)
        self.status, self.problem_code = status, problem_code
        self.exit_code = (_BY_CODE.get(problem_code) or _BY_STATUS.get(status, PerdureError)).exit_code


class Unreachable(PerdureError):
    """No server answers at this address."""

    code = "unreachable"
    exit_code = EXIT_NO_SERVER


class HttpApi:
    """A blocking session with one server, as one caller, in one namespace."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        namespace: str | None = None,
        answer_s: float = ANSWER_S,
        tries: int = TRIES,
    ) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self.namespace, self.answer_s, self._tries = namespace, answer_s, tries
        headers = {"User-Agent": f"perdure-cli/{VERSION}", "Accept": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if namespace:
            headers["Perdure-Namespace"] = namespace
        # Only for https: loading the certificate authorities takes time.
        context = tls_context(os.environ) if self.url.startswith("https://") else None
        try:
            self._http = HttpSession(
                f"{self.url}/api/v1",
                headers,
                connect_s=min(CONNECT_S, answer_s),
                answer_s=answer_s,
                context=context,
            )
        except ValueError as error:
            raise InvalidInput(f"--url: {url!r} is not a server address: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, params: Params = ()) -> Any:
        return self._answer("GET", path, params=params, repeatable=True)

    def post(self, path: str, body: Any = NOTHING, *, idempotency_key: str | None = None) -> Any:
        """A body of `None` is the JSON value null."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._answer("POST", path, body=body, headers=headers, repeatable=idempotency_key is not None)

    def put(self, path: str, body: Any) -> Any:
        return self._answer("PUT", path, body=body, repeatable=True)

    def delete(self, path: str) -> Any:
        return self._answer("DELETE", path, repeatable=True)

    def items(self, path: str, params: Params = (), *, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """The entries of a list, fetched page by page, up to `limit`."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = self.get(path, [*params, ("limit", size), *([("cursor", cursor)] if cursor else [])])
            yield from page["items"]
            cursor = page.get("next")
            if left is not None:
                left -= len(page["items"])
            if not cursor:  # the last page; an empty page may have a successor
                return

    @contextmanager
    def stream(self, path: str, params: Params = ()) -> Generator[Iterator[tuple[str, str]]]:
        """Server-sent events as (event, data), until the server ends the stream. Raises `Unreachable` if the connection breaks."""
        headers = {"Accept": "text/event-stream"}
        try:
            with self._http.stream(path, params=_clean(params), headers=headers, silence_s=STREAM_SILENCE_S) as (
                response,
                lines,
            ):
                if response.status_code != 200:
                    raise self._problem(response)
                yield _events(lines)
        except TransportError as error:
            raise self._unreachable(error) from error

    @contextmanager
    def download(self, path: str) -> Generator[Iterator[bytes]]:
        """The body of an answer in pieces. Raises `Unreachable` if the connection breaks before its end."""
        try:
            with self._http.download(path, silence_s=STREAM_SILENCE_S) as (response, pieces):
                if response.status_code != 200:
                    raise self._problem(response)
                yield pieces
        except TransportError as error:
            raise self._unreachable(error) from error

    def _answer(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool,
        params: Params = (),
        body: Any = NOTHING,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        content = None
        if body is not NOTHING:
            content, headers = json.dumps(body).encode(), {**(headers or {}), "Content-Type": "application/json"}
        for last in [False] * (self._tries - 1) + [True]:
            try:
                response = self._http.request(method, path, params=_clean(params), content=content, headers=headers)
            except ConnectError as error:
                raise self._unreachable(error) from error
            except TransportError as error:
                if last or not repeatable:
                    raise self._unreachable(error) from error
                time.sleep(PAUSE_S * random.uniform(0.5, 1.5))
                continue
            if response.status_code == 429 and not last:
                time.sleep(_retry_after_s(response))
                continue
            if response.is_success:
                try:
                    return response.json() if response.content else None
                except ValueError:
                    raise self._not_perdure(response) from None
            raise self._problem(response)
        raise AssertionError("the last attempt returns or raises")

    def _unreachable(self, error: Exception) -> Unreachable:
        if isinstance(error, TimedOut):
            limit_s = min(CONNECT_S, self.answer_s) if isinstance(error, ConnectTimedOut) else self.answer_s
            why = f"no answer within {limit_s:g} seconds"
        else:
            why = re.sub(r"^\[Errno -?\d+\] ", "", str(error)).lower()
        return Unreachable(
            f"no Perdure server answers at {self.url} ({why or type(error).__name__}).\n"
            "Start one with `perdure dev` or `perdure server`, or give its address with --url or PERDURE_URL."
        )

    def _problem(self, response: HttpAnswer) -> ApiError:
        status = response.status_code
        try:
            problem = response.json()
            code, detail = str(problem.get("code", "")), str(problem.get("detail") or problem.get("title") or "")
        except (ValueError, AttributeError):
            return self._not_perdure(response)
        advice = self._advice(status, code)
        return ApiError(f"{detail}\n{advice}" if advice else detail, status=status, problem_code=code)

    def _not_perdure(self, response: HttpAnswer) -> ApiError:
        status = f"{response.status_code} {response.reason_phrase}".strip()
        return ApiError(
            f"{self.url} is not a Perdure server: it answered {status}. Check --url or PERDURE_URL.", status=0
        )

    def _advice(self, status: int, code: str) -> str:
        if status == 401:
            return (
                f"The server at {self.url} requires an API key: run `perdure login`, set PERDURE_API_KEY or pass --api-key. "
                "An administrator of the server creates one with `perdure api-key create`."
            )
        if status == 403 and code != "not_assigned":
            return "Use an API key with another role; `perdure api-key list` lists them."
        if status == 429:
            return "Try again in a moment. An administrator can create an API key with a higher rate."
        return ""


def tls_context(environment: Mapping[str, str]) -> ssl.SSLContext:
    """PERDURE_CA adds an authority to the system's. PERDURE_CLIENT_CERT and PERDURE_CLIENT_KEY are the client certificate."""
    context = ssl.create_default_context()
    try:
        if environment.get("PERDURE_CA"):
            context.load_verify_locations(environment["PERDURE_CA"])
        if environment.get("PERDURE_CLIENT_CERT"):
            context.load_cert_chain(environment["PERDURE_CLIENT_CERT"], environment.get("PERDURE_CLIENT_KEY"))
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            f"PERDURE_CA, PERDURE_CLIENT_CERT or PERDURE_CLIENT_KEY is not a readable PEM file: {error}"
        ) from None
    return context


def segment(text: str) -> str:
    """One segment of a path, quoted."""
    return quote(text, safe="@:")


def _clean(params: Params) -> list[tuple[str, str | int | float | bool | None]]:
    return [(name, value) for name, value in params if value is not None]


def _retry_after_s(response: HttpAnswer) -> float:
    try:
        return min(float(response.headers.get("Retry-After", "1")), RETRY_AFTER_S_MAX)
    except ValueError:
        return 1.0


def _events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Parses server-sent events: names and data; comments are skipped."""
    event, data = "message", list[str]()
    for line in lines:
        if not line:
            if data:
                yield event, "\n".join(data)
            event, data = "message", []
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                event = value
            elif field == "data":
                data.append(value)
