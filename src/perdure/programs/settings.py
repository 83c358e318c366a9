"""Settings of a server. Every check happens before a socket is opened.

Where values come from is in settings_sources.py. Nothing is read anywhere else: `perdure server --print-config` shows all there is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import msgspec

from perdure.app import setting_values as values
from perdure.app.payload_keys import DAYS_DEFAULT, SealingOptions
from perdure.app.secret_box import parse_keys
from perdure.app.senders.settings import NotifySettings
from perdure.core.application_limits import NOTIFY_TIMEOUT_S
from perdure.core.errors import InvalidInput
from perdure.core.limits import PAYLOAD_INLINE_BYTES, WEB_SESSION_IDLE_S, WEB_SESSION_S
from perdure.engine.settings import EngineSettings
from perdure.payloads.objects import payload_urls
from perdure.programs.connections import ConnectionBounds
from perdure.programs.process_settings import (
    Format,
    Level,
    Named,
    ProcessSettings,
    Seconds,
    Switch,
    Words,
    checked,
    group,
)
from perdure.server.auth import OidcSettings
from perdure.server.auth.addresses import is_loopback
from perdure.store.connect import without_password

HTTP_PORT: Final = 8600
GRPC_PORT: Final = 8601
DRAIN_S_DEFAULT: Final = 30.0
NOT_READY_S_DEFAULT: Final = 1.0
ENGINE_SHARE: Final = 0.6
"""Part of the drain time for running tasks; the rest is for connections."""

AuthMode = Literal["keys", "open"]


class Address(msgspec.Struct, frozen=True):
    """Where to listen or connect. Port 0 asks the system for a free one."""

    host: str
    port: int

    @staticmethod
    def parse(text: str, *, default_port: int = 0) -> Address:
        host, colon, port = text.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = text, str(default_port)
        host = host.strip("[]")
        if not port.isdigit() or int(port) > 65_535 or not host:
            raise InvalidInput(f"{text!r} is not host:port. Write 127.0.0.1:{default_port or 8600}, for instance.")
        return Address(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name other than localhost is not trusted to be one."""
        return is_loopback(self.host)


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files in PEM."""

    cert: Path
    """Certificate chain, for HTTP and gRPC."""
    key: Path
    """Its private key."""
    client_ca: Path | None = None
    """Only clients with a certificate of this authority are accepted."""


def _address(default_port: int) -> Callable[[str], Address]:
    return lambda text: Address.parse(text, default_port=default_port)


class ServerSettings(ProcessSettings):
    """Settings of `perdure server`."""

    section: ClassVar[str] = "server"
    prefix: ClassVar[str] = "PERDURE_"

    dsn: Annotated[str, Named(secret=True)] = ""
    """The database. Without it, a private PostgreSQL in `.perdure`, for development."""
    http: Annotated[Address, checked(_address(HTTP_PORT)), Named("PERDURE_HTTP_BIND")] = Address("127.0.0.1", HTTP_PORT)
    """Where REST and the pages listen."""
    grpc: Annotated[Address, checked(_address(GRPC_PORT)), Named("PERDURE_GRPC_BIND")] = Address("127.0.0.1", GRPC_PORT)
    """Where workers connect."""
    public_url: Annotated[str, checked(values.url)] = ""
    """The public URL of the server; links begin with it. Default: the HTTP address."""
    namespace: Annotated[str, Named("PERDURE_SERVER_NAMESPACE")] = "default"
    """The namespace of the server's own engine, and of credentials that name none."""
    auth: Annotated[AuthMode, checked(values.choice(get_args(AuthMode)))] = "keys"
    """`keys`: API keys and tokens. `open`: no authentication, on loopback only."""
    allowed_hosts: Annotated[tuple[str, ...], checked(values.hosts)] = ()
    """Names in `Host` that are answered, separated by commas, beside `localhost`, IP addresses, and those of `http` and `public_url`. `*`: any."""
    trusted_proxies: Annotated[tuple[str, ...], checked(values.networks)] = ()
    """Addresses and networks (`10.0.0.0/8`) of proxies whose `X-Forwarded-For` is believed, separated by commas."""
    http_tls: Switch = True
    """`off`: plain HTTP, behind a proxy that ends TLS; a certificate is then for gRPC alone."""
    secret_keys: Annotated[tuple[bytes, ...], checked(parse_keys), Named("PERDURE_SECRET_KEY", secret=True)] = ()
    """Keys that seal webhook secrets in the database, the same on every server: 32 bytes in base64, separated by commas or lines. The first seals, all open."""
    notifications: Switch = True
    """`off`: this server delivers no notifications; others of the same database do."""
    notify_allow: Words = ()
    """Hosts and networks that notifications may be sent to beside the public internet, separated by commas."""
    notify_timeout_s: Annotated[Seconds, Named("PERDURE_NOTIFY_TIMEOUT")] = float(NOTIFY_TIMEOUT_S)
    """How long one attempt to deliver a notification may take."""
    smtp_url: Annotated[str, Named(secret=True)] = ""
    """The email server: `smtp://user:password@host:587`, or `smtps://…` for TLS from the beginning."""
    smtp_from: str = ""
    """The sender's address of emails."""
    oidc: Annotated[OidcSettings | None, group(OidcSettings, "PERDURE_OIDC_")] = None
    tls: Annotated[TlsFiles | None, group(TlsFiles, "PERDURE_TLS_")] = None
    metrics: Annotated[Address | None, checked(_address(0)), Named("PERDURE_METRICS_BIND")] = None
    """A separate address for `/metrics`. Default: the HTTP address, if that is loopback."""
    session_lifetime_s: Annotated[Seconds, Named("PERDURE_SESSION_LIFETIME")] = WEB_SESSION_S
    """After so long a browser has to sign in again."""
    session_idle_s: Annotated[Seconds, Named("PERDURE_SESSION_IDLE")] = WEB_SESSION_IDLE_S
    """After so long without a request a browser has to sign in again."""
    log_format: Format = "text"
    """`text` or `json`."""
    log_level: Level = "warning"
    """`debug`, `info`, `warning` or `error`."""
    migrate: Switch = True
    """Bring the schema up to date at the start; `off`: check it only."""
    drain_s: Annotated[Seconds, Named("PERDURE_DRAIN")] = DRAIN_S_DEFAULT
    """How long a stopping server waits for requests and tasks that are running."""
    not_ready_s: Annotated[Seconds, Named("PERDURE_NOT_READY")] = NOT_READY_S_DEFAULT
    """Part of `drain_s` in which it still answers while `/readyz` says no, so that load balancers notice in time."""
    payloads: Annotated[tuple[str, ...], checked(payload_urls), Named("PERDURE_PAYLOADS")] = ()
    """Object stores for large values and blobs (`s3://bucket/prefix`), separated by commas; new content goes to the first. Default: the database."""
    payload_inline_bytes: Annotated[int, Named("PERDURE_PAYLOAD_INLINE_BYTES")] = PAYLOAD_INLINE_BYTES
    """Larger values are kept in the payload store."""
    payload_keys: Annotated[str, Named("PERDURE_PAYLOAD_KEYS")] = ""
    """Where the master keys are that user data is encrypted with: `file:PATH`, `command:PROGRAM` or `transit:URL`. Default: nothing is encrypted."""
    payload_compress: Annotated[int | None, Named("PERDURE_PAYLOAD_COMPRESS")] = None
    """Values of so many bytes are compressed; 0: none. Default: 1,024 with encryption, else none."""
    payload_key_days: Annotated[float, Named("PERDURE_PAYLOAD_KEY_DAYS")] = DAYS_DEFAULT
    """A data key that is older is followed by a new one; 0: only `perdure keys rotate` makes one."""
    engine: Annotated[EngineSettings, group(EngineSettings, "PERDURE_ENGINE_")] = EngineSettings()
    connections: Annotated[ConnectionBounds, group(ConnectionBounds, "PERDURE_CONNECTIONS_")] = ConnectionBounds()
    dev_token: Annotated[str, Named(internal=True)] = ""
    """With `auth` open: the token that HTTP requests need instead of a key. Empty: none."""

    def model_post_init(self, context: Any, /) -> None:
        check_auth(self.auth, self.http, self.grpc)
        self.notify_settings.check()
        if self.drain_s <= 0:
            raise InvalidInput(f"the time to drain is {self.drain_s:g}s; it must be above 0")
        if self.session_lifetime_s <= 0 or self.session_idle_s <= 0:
            raise InvalidInput("the session's lifetime and idle time must be above 0")
        if self.engine.heartbeat_s * 2 > self.engine.lease_s:
            raise InvalidInput(
                f"engine.heartbeat_s ({self.engine.heartbeat_s:g}) must be at most half of engine.lease_s ({self.engine.lease_s:g}): "
                "one late heartbeat would lose every run"
            )

    @property
    def sealing(self) -> SealingOptions:
        return SealingOptions(self.payload_keys, self.payload_compress, self.payload_key_days)

    def with_changes(self, **changes: object) -> ServerSettings:
        return self.model_copy(update=changes)

    def masked(self, key: str, value: object) -> str:
        return without_password(str(value)) if key == "dsn" else super().masked(key, value)

    def warnings(self) -> list[str]:
        """What is allowed and probably a mistake."""
        out: list[str] = []
        behind_proxy = not self.http_tls or self.public_url.startswith("https://")
        if self.tls is None and not self.http.is_loopback and not behind_proxy:
            out.append(
                f"--http {self.http} is reachable from other machines without TLS: keys and data can be read on the way. Give --tls-cert and --tls-key, "
                "or set PERDURE_HTTP_TLS=off where a proxy ends TLS"
            )
        if self.tls is None and not self.grpc.is_loopback:
            out.append(
                f"--grpc {self.grpc} is reachable from other machines without TLS: workers' keys and data can be read on the way. Give --tls-cert and --tls-key, "
                "or listen where only a proxy that ends TLS reaches it"
            )
        return out

    @property
    def tls_of_http(self) -> TlsFiles | None:
        return self.tls if self.http_tls else None

    @property
    def engine_settings(self) -> EngineSettings:
        """The engine's settings, with the namespace and its part of the drain time."""
        grace = min(self.engine.close_grace_s, self.drain_s * ENGINE_SHARE)
        return msgspec.structs.replace(
            self.engine,
            namespace=self.namespace,
            close_grace_s=grace,
            payload_stores=self.payloads,
            payload_inline_bytes=self.payload_inline_bytes,
        )

    @property
    def notify_settings(self) -> NotifySettings:
        return NotifySettings(
            is_on=self.notifications,
            allow=self.notify_allow,
            smtp_url=self.smtp_url,
            smtp_from=self.smtp_from,
            timeout_s=self.notify_timeout_s,
        )

    def url_of(self, bound: Address) -> str:
        """The link base for a server that got this HTTP address."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound.host, bound.host)
        return f"{'https' if self.tls_of_http else 'http'}://{Address(host, bound.port)}"


def check_auth(auth: AuthMode, *addresses: Address) -> None:
    """Without authentication every client is an administrator, so only this machine may connect."""
    for address in addresses:
        if auth == "open" and not address.is_loopback:
            raise InvalidInput(
                f"--auth open on {address} would make every client that reaches it an administrator: refused. "
                "Listen on 127.0.0.1, or use --auth keys and make a key with `perdure api-key create`."
            )
