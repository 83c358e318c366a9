"""Bounds on a server's connections, so that idle clients cannot exhaust it.

Laws:

1. A connection that has no request at hand (it is new, half a request has arrived, or it idles between two) may be closed at any time to make
   room. It is closed anyway when it stays so for too long.
2. The number of connections stays below the process's limit of file descriptors by DESCRIPTORS_RESERVED, so that PostgreSQL, files and
   the next accepted connection always find one.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable

import msgspec

from perdure.core.limits import (
    CONNECTION_IDLE_S,
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS_MAX,
    DESCRIPTORS_RESERVED,
    DESCRIPTORS_WANTED,
    GRPC_CONNECTIONS_MAX,
    REQUEST_BODY_S,
    REQUEST_HEADER_S,
    STREAMS_MAX,
    WRITE_STALL_S,
)
from perdure.server.auth.addresses import client_of

log = logging.getLogger("perdure.server")


class ConnectionBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What clients may hold, and for how long."""

    http_max: int = CONNECTIONS_MAX
    """HTTP connections at once, and at most what `ulimit -n` leaves room for."""
    per_address_max: int = CONNECTIONS_PER_ADDRESS_MAX
    """HTTP connections from one client address; raise it behind a proxy."""
    grpc_max: int = GRPC_CONNECTIONS_MAX
    """Connections of workers and clients at once."""
    streams_max: int = STREAMS_MAX
    """Live event streams at once."""
    header_s: float = REQUEST_HEADER_S
    """Time for the headers of a request."""
    body_s: float = REQUEST_BODY_S
    """Time for the body of a request."""
    idle_s: float = CONNECTION_IDLE_S
    """A connection without a request is closed after this."""
    write_s: float = WRITE_STALL_S
    """A connection whose client takes nothing of an answer is closed after this."""

    def within(self, descriptors: int) -> ConnectionBounds:
        """The same, for a process that may hold so many file descriptors: HTTP and gRPC get half each of what is not reserved."""
        share = max(MIN_CONNECTIONS, (descriptors - DESCRIPTORS_RESERVED) // 2)
        total = min(self.http_max, share)
        half = max(1, total // 2)
        return msgspec.structs.replace(
            self,
            http_max=total,
            per_address_max=min(self.per_address_max, half),
            grpc_max=min(self.grpc_max, share),
            streams_max=min(self.streams_max, half),
        )


MIN_CONNECTIONS = 16


def descriptors() -> int:
    """How many file descriptors this process may hold, after asking for DESCRIPTORS_WANTED."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    found = DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft
    if found < 2 * DESCRIPTORS_RESERVED:
        log.warning(
            "this process may hold only %d file descriptors, of which %d are reserved: few clients can connect. Raise `ulimit -n` (LimitNOFILE in systemd)",
            found,
            DESCRIPTORS_RESERVED,
        )
    return found


class Seat:
    """The place of one connection among the others."""

    __slots__ = ("client", "close")

    def __init__(self, client: str, close: Callable[[], object]) -> None:
        self.client, self.close = client, close


class Seats:
    """Connections of one listener, by client. Those without a request at hand are kept in the order in which they began to wait."""

    def __init__(
        self, seats_max: int, per_client_max: int, is_trusted: Callable[[str], bool] = lambda host: False
    ) -> None:
        self._max, self._per_client_max, self._is_trusted = seats_max, per_client_max, is_trusted
        self._taken: dict[str, set[Seat]] = {}
        self._count = 0
        self._waiting: dict[Seat, None] = {}
        self._waiting_of: dict[str, dict[Seat, None]] = {}

    def __len__(self) -> int:
        return self._count

    def take(self, host: str, close: Callable[[], object]) -> Seat | None:
        """A seat for a new connection, if need be that of one that waits. None: all are busy, the connection is to be closed.

        `close` closes the connection when its seat is given to another."""
        client = client_of(host)
        if len(self._taken.get(client, ())) >= self._per_client_max and not self._is_trusted(host):
            log.warning(
                "%s has %d connections, as many as one address may have (CONNECTIONS_PER_ADDRESS_MAX): one of them is closed",
                client,
                self._per_client_max,
            )
            if not self._make_room(self._waiting_of.get(client, {})):
                return None
        if self._count >= self._max:
            log.warning("there are %d connections, as many as there may be (CONNECTIONS_MAX): one is closed", self._max)
            if not self._make_room(self._waiting):
                return None
        seat = Seat(client, close)
        self._taken.setdefault(client, set()).add(seat)
        self._count += 1
        self.waits(seat)
        return seat

    def _make_room(self, waiting: dict[Seat, None]) -> bool:
        oldest = next(iter(waiting), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.close()
        return True

    def waits(self, seat: Seat) -> None:
        """The connection waits for a request."""
        if seat in self._taken.get(seat.client, ()) and seat not in self._waiting:
            self._waiting[seat] = None
            self._waiting_of.setdefault(seat.client, {})[seat] = None

    def works(self, seat: Seat) -> None:
        """The connection has a request."""
        if self._waiting.pop(seat, _ABSENT) is _ABSENT:
            return
        own = self._waiting_of[seat.client]
        del own[seat]
        if not own:
            del self._waiting_of[seat.client]

    def leave(self, seat: Seat) -> None:
        """The connection is closed. Idempotent."""
        own = self._taken.get(seat.client, set())
        if seat not in own:
            return
        self.works(seat)
        own.remove(seat)
        self._count -= 1
        if not own:
            del self._taken[seat.client]


_ABSENT = object()
