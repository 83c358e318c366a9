"""Requests to Docker or Podman over their socket: the part of Docker's API that both have, without a version in the path.

Two kinds of errors: `EngineUnreachable` says that there was no answer, so that the request is to be repeated; `EngineError` is an answer.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2
import msgspec

from perdure.core.errors import InvalidInput, clip
from perdure.executors.container import streams

REQUEST_S: Final = 30.0
"""The longest that an engine may take to answer, but for pulling an image, stopping a container and following its output."""
PULL_SILENT_S: Final = 300.0
"""The longest that pulling an image may show no progress."""
CONNECTIONS_MAX: Final = 1_000
SOCKETS: Final = ("/run/podman/podman.sock", "/run/docker.sock", "/var/run/docker.sock")
_NO_ANSWER: Final = (httpx2.TransportError, OSError)


class EngineUnreachable(Exception):
    """Docker or Podman gave no answer."""


class EngineError(Exception):
    """Docker or Podman refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class ContainerState(msgspec.Struct, frozen=True):
    status: str
    """created, running, paused, restarting, exited, dead; Podman has more."""
    exit_code: int
    is_out_of_memory: bool
    started_us: int


class EngineApi:
    def __init__(self, socket: str) -> None:
        limits = httpx2.Limits(max_connections=CONNECTIONS_MAX)
        transport = httpx2.AsyncHTTPTransport(uds=socket, limits=limits)
        self.socket = socket
        self._http = httpx2.AsyncClient(transport=transport, base_url="http://engine", timeout=REQUEST_S)

    async def close(self) -> None:
        await self._http.aclose()

    async def ping(self) -> None:
        await self._ask("GET", "/_ping")

    async def inspect(self, name: str) -> ContainerState | None:
        """None: there is no such container."""
        try:
            found = msgspec.json.decode(await self._ask("GET", f"/containers/{name}/json"))["State"]
        except EngineError as e:
            if e.status == 404:
                return None
            raise
        return ContainerState(
            found["Status"], found["ExitCode"], bool(found.get("OOMKilled")), _unix_us(found.get("StartedAt"))
        )

    async def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Nothing happens if there is a container of this name."""
        try:
            await self._ask("POST", f"/containers/create?name={name}", json=body)
        except EngineError as e:
            # Docker answers 409; Podman 4 answers 500.
            if e.status != 409 and "already in use" not in e.message:
                raise

    async def put(self, name: str, path: str, files: Mapping[str, bytes | None], mode: int) -> None:
        """Write files below a directory of the container. None: a directory, with this mode."""
        headers = {"content-type": "application/x-tar"}
        await self._ask("PUT", f"/containers/{name}/archive?path={quote(path)}", headers, content=_tar(files, mode))

    async def start(self, name: str) -> None:
        """304: it runs already."""
        await self._ask("POST", f"/containers/{name}/start")

    async def stop(self, name: str, grace_s: float) -> None:
        """SIGTERM and, after the grace, SIGKILL. One that does not run is left alone."""
        with _fine(404, 304, 409):
            await self._ask("POST", f"/containers/{name}/stop?t={max(1, round(grace_s))}", timeout=grace_s + REQUEST_S)

    async def remove(self, name: str) -> None:
        with _fine(404):
            await self._ask("DELETE", f"/containers/{name}?force=true&v=true")

    async def read(self, name: str, path: str, size: int) -> bytes | None:
        """The first bytes of a plain file of a container; None: there is no such file."""
        try:
            async with self._stream("GET", f"/containers/{name}/archive?path={quote(path)}") as parts:
                data = b""
                async for part in parts:
                    data += part
                    if len(data) >= size + 2 * tarfile.BLOCKSIZE:
                        break
        except EngineError as e:
            if e.status == 404:
                return None
            raise
        return _first_file(data, size)

    async def output(self, name: str) -> AsyncGenerator[dict[str, bytes]]:
        """All that it has written until now, in pieces by stream."""
        async with aclosing(self._logs(name, "follow=0")) as parts:
            async for piece in streams.demultiplexed(parts):
                yield piece

    async def news(self, name: str) -> AsyncGenerator[None]:
        """Now and then while it writes, until it exits. Podman 4 leaves out lines of containers that write fast, so `output` reads them."""
        async with aclosing(self._logs(name, "follow=1&tail=0")) as parts:
            async for _ in parts:
                yield

    async def _logs(self, name: str, how: str) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(streams.get(self.socket, f"/containers/{name}/logs?stdout=1&stderr=1&{how}")) as parts:
                async for status, piece in parts:
                    if status >= 400:
                        raise EngineError(status, f"the output of the container cannot be read: status {status}")
                    if piece:
                        yield piece
        except (OSError, streams.BrokenStream) as e:
            raise self._unreachable(e) from e

    async def has_image(self, image: str) -> bool:
        try:
            await self._ask("GET", f"/images/{quote(image, safe='/:@')}/json")
        except EngineError as e:
            if e.status == 404:
                return False
            raise
        return True

    async def pull(self, name: str, tag: str, credentials: str) -> None:
        """Errors come within the answer, after its status has said that all is well."""
        headers = {"X-Registry-Auth": credentials} if credentials else {}
        path = f"/images/create?fromImage={quote(name, safe='')}&tag={quote(tag, safe='')}"
        timeout = httpx2.Timeout(REQUEST_S, read=PULL_SILENT_S)
        async with self._stream("POST", path, headers, timeout=timeout) as parts:
            rest = b""
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    _check_progress(line)
            _check_progress(rest)

    async def _ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, timeout: Any = REQUEST_S, **body: Any
    ) -> bytes:
        try:
            answer = await self._http.request(method, path, headers=headers, timeout=timeout, **body)
        except _NO_ANSWER as e:
            raise self._unreachable(e) from e
        if answer.status_code >= 400:
            raise _error(answer.status_code, answer.content)
        return answer.content

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, timeout: Any = REQUEST_S
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        try:
            async with self._http.stream(method, path, headers=headers, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    raise _error(answer.status_code, await answer.aread())
                yield answer.aiter_raw()
        except _NO_ANSWER as e:
            raise self._unreachable(e) from e

    def _unreachable(self, error: Exception) -> EngineUnreachable:
        return EngineUnreachable(f"{self.socket} does not answer: {type(error).__name__} {error}".rstrip())


@contextmanager
def _fine(*statuses: int) -> Generator[None]:
    """Answers with these statuses are fine as well."""
    try:
        yield
    except EngineError as e:
        if e.status not in statuses:
            raise


def find_socket(given: str) -> str:
    """The socket to use: the one given, that of DOCKER_HOST, or the first that exists."""
    if given:
        return given.removeprefix("unix://")
    host = os.environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        return host.removeprefix("unix://")
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    mine = (f"{runtime}/podman/podman.sock", f"{runtime}/docker.sock") if runtime else ()
    paths: tuple[str, ...] = (*mine, *SOCKETS)
    for path in paths:
        if Path(path).is_socket():
            return path
    raise InvalidInput(
        f"there is no socket of Docker or Podman: none of {', '.join(paths)} exists. Start one "
        "(`systemctl start podman.socket`), or name it with --executor-option container.socket=PATH"
    )


def _error(status: int, content: bytes) -> EngineError:
    try:
        message = str(msgspec.json.decode(content)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = content.decode("utf-8", "replace")
    return EngineError(status, clip(message or f"status {status}"))


def _check_progress(line: bytes) -> None:
    with suppress(msgspec.DecodeError):
        found: Any = msgspec.json.decode(line)
        if isinstance(found, dict) and found.get("error"):
            raise EngineError(502, clip(str(found["error"])))


def _tar(files: Mapping[str, bytes | None], mode: int) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.mode = tarfile.DIRTYPE, mode
            else:
                entry.size, entry.mode = len(content), 0o444
            archive.addfile(entry, io.BytesIO(content) if content is not None else None)
    return data.getvalue()


def _first_file(data: bytes, size: int) -> bytes | None:
    """The content may be cut off, so the archive is not read as a whole."""
    try:
        entry = tarfile.TarInfo.frombuf(data[: tarfile.BLOCKSIZE], "utf-8", "replace")
    except tarfile.HeaderError:
        return None
    return data[tarfile.BLOCKSIZE :][: min(entry.size, size)] if entry.isreg() else None


def _unix_us(text: Any) -> int:
    """Of an RFC 3339 time; 0 for the year 1, which stands for never."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return 0
    return int(moment.timestamp() * 1e6) if moment.year >= 1970 else 0
