"""How a worker or client gets to a server: addresses, credentials, and errors with their own codes back again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

# Set before gRPC is loaded: otherwise it stops its threads, or logs about them, whenever this process starts a program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import msgspec

from perdure.core.error_codes import ERRORS_BY_CODE
from perdure.core.errors import InvalidInput, PerdureError, Unavailable
from perdure.core.packages import install_command

try:
    import grpc
except ImportError as error:
    raise ImportError(
        f"a client of a server needs gRPC, which is not installed: {install_command('client')}. To run workflows in this process, use "
        "`Perdure` instead of `Client`"
    ) from error

from perdure.wire.protocol import CHANNEL_OPTIONS

ADDRESS_DEFAULT: Final = "127.0.0.1:8601"
CODE_KEY: Final = "perdure-code"


class Tls(msgspec.Struct, frozen=True):
    """PEM contents. `ca`: whom to trust (None: the system's authorities). `certificate` and `key`: who we are, for mTLS."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Where to connect, and as whom."""

    addresses: tuple[str, ...] = (ADDRESS_DEFAULT,)
    api_key: str | None = None
    namespace: str | None = None
    tls: Tls | None = None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        found: list[tuple[str, str]] = []
        if self.api_key:
            found.append(("authorization", f"Bearer {self.api_key}"))
        if self.namespace:
            found.append(("perdure-namespace", self.namespace))
        return tuple(found)

    def credentials(self) -> Any:
        assert self.tls is not None
        return grpc.ssl_channel_credentials(self.tls.ca, self.tls.key, self.tls.certificate)

    def channel(self, address: str) -> Any:
        """For asyncio."""
        if self.tls is None:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(address, self.credentials(), options=CHANNEL_OPTIONS)

    def thread_channel(self, address: str) -> Any:
        """For a plain thread."""
        if self.tls is None:
            return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(address, self.credentials(), options=CHANNEL_OPTIONS)


def access(
    address: str | None = None,
    *,
    api_key: str | None = None,
    namespace: str | None = None,
    tls: Tls | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Access:
    """What was given, then the environment (PERDURE_GRPC, PERDURE_API_KEY, PERDURE_NAMESPACE), then a server on this machine.

    Several addresses are separated by commas; the first that answers is used.
    """
    given = address or environ.get("PERDURE_GRPC") or ADDRESS_DEFAULT
    addresses = tuple(a.strip() for a in given.split(",") if a.strip())
    if not addresses:
        raise InvalidInput(f"{given!r} names no server; give host:port, or several separated by commas")
    return Access(
        addresses=addresses,
        api_key=api_key or environ.get("PERDURE_API_KEY") or None,
        namespace=namespace or environ.get("PERDURE_NAMESPACE") or None,
        tls=tls,
    )


_BY_STATUS: Final[dict[grpc.StatusCode, str]] = {
    grpc.StatusCode.UNAUTHENTICATED: "unauthenticated",
    grpc.StatusCode.PERMISSION_DENIED: "forbidden",
    grpc.StatusCode.UNAVAILABLE: "unavailable",
    grpc.StatusCode.DEADLINE_EXCEEDED: "unavailable",
}


def error_of(error: grpc.aio.AioRpcError, address: str) -> PerdureError:
    trailing = {str(key): value for key, value in error.trailing_metadata() or ()}
    code = trailing.get(CODE_KEY) or _BY_STATUS.get(error.code(), "")
    kind = ERRORS_BY_CODE.get(str(code))
    if kind is None or (code == "unavailable" and CODE_KEY not in trailing):
        return Unavailable(
            f"no answer from the server at {address}: {error.details() or error.code().name}. Is it running? `perdure dev` starts one."
        )
    return kind(error.details() or kind.code)


async def end_of(call: Any) -> grpc.aio.AioRpcError:
    """How the server ended a stream."""
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
    )
