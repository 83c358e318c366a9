"""What a server needs to know, from flags and the environment.

A flag wins over its variable, a variable over the default. Nothing is read anywhere else, so `ServerSettings` printed is the
whole configuration. Every check happens before a socket is opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args

import msgspec

from perdure.app.connections import ConnectionBounds
from perdure.core.durations import to_us
from perdure.core.errors import InvalidInput
from perdure.engine.engine import EngineSettings
from perdure.server.auth import OidcSettings
from perdure.server.auth.addresses import is_loopback
from perdure.server.secret_box import parse_keys

HTTP_PORT: Final = 8600
GRPC_PORT: Final = 8601
DRAIN_S_DEFAULT: Final = 30.0
NOT_READY_S_DEFAULT: Final = 1.0
ENGINE_SHARE: Final = 0.6
"""Of the drain's time, for tasks at hand to end; the rest is for connections."""

AuthMode = Literal["keys", "open"]
LogFormat = Literal["text", "json"]
T = TypeVar("T")


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
    """Files in PEM. With `client_ca` only clients with a certificate of that authority are let in."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `perdure server` can be told."""

    dsn: str
    http: Address = Address("127.0.0.1", HTTP_PORT)
    grpc: Address = Address("127.0.0.1", GRPC_PORT)
    public_url: str = ""
    """How people reach the HTTP address; links are made from it. Empty: the address itself."""
    namespace: str = "default"
    auth: AuthMode = "keys"
    allowed_hosts: tuple[str, ...] = ()
    """Names in `Host` that are answered, beside localhost, IP addresses, and those of `http` and `public_url`. `*`: any."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies that say for whom they ask, in `X-Forwarded-For`. Nobody else is believed, this machine neither."""
    http_is_plain: bool = False
    """Plain HTTP beyond this machine is meant: a proxy ends TLS."""
    secret_keys: tuple[bytes, ...] = ()
    """Seal secrets in the database: the first seals, all open."""
    dev_token: str = ""
    """With `auth` open: what HTTP asks for in place of a key. Empty: nothing."""
    oidc: OidcSettings | None = None
    http_tls: TlsFiles | None = None
    grpc_tls: TlsFiles | None = None
    metrics: Address | None = None
    """A second address for /metrics alone. None: /metrics is on the HTTP address."""
    log_format: LogFormat = "text"
    log_level: str = "warning"
    migrate: bool = True
    drain_s: float = DRAIN_S_DEFAULT
    not_ready_s: float = NOT_READY_S_DEFAULT
    """Of `drain_s`: how long a stopping server still answers, with /readyz saying no, so that load balancers notice in time."""
    engine: EngineSettings = EngineSettings()
    connections: ConnectionBounds = ConnectionBounds()

    def __post_init__(self) -> None:
        check_auth(self.auth, self.http, self.grpc)
        if self.drain_s <= 0:
            raise InvalidInput(f"the time to drain is {self.drain_s:g}s; it must be above 0")

    def warnings(self) -> list[str]:
        """What is allowed and probably not meant."""
        out: list[str] = []
        behind_proxy = self.http_is_plain or self.public_url.startswith("https://")
        if self.http_tls is None and not self.http.is_loopback and not behind_proxy:
            out.append(
                f"--http {self.http} is reachable from other machines without TLS: keys and data can be read on the way. Give --tls-cert and --tls-key, "
                "or say PERDURE_HTTP_TLS=off where a proxy ends TLS"
            )
        if self.grpc_tls is None and not self.grpc.is_loopback:
            out.append(
                f"--grpc {self.grpc} is reachable from other machines without TLS: workers' keys and data can be read on the way. Give --tls-cert and --tls-key, "
                "or listen where only a proxy that ends TLS reaches it"
            )
        return out

    @property
    def engine_settings(self) -> EngineSettings:
        """The engine's own, with the namespace and the part of the drain that is its."""
        grace = min(self.engine.close_grace_s, self.drain_s * ENGINE_SHARE)
        return msgspec.structs.replace(self.engine, namespace=self.namespace, close_grace_s=grace)

    def url_of(self, bound: Address) -> str:
        """The link base for a server that got this HTTP address."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound.host, bound.host)
        return f"{'https' if self.http_tls else 'http'}://{Address(host, bound.port)}"


def check_auth(auth: AuthMode, *addresses: Address) -> None:
    """Without authentication everybody who reaches the port is an administrator, so only this machine may reach it."""
    for address in addresses:
        if auth == "open" and not address.is_loopback:
            raise InvalidInput(
                f"--auth open on {address} would let everybody in who can reach it: refused. "
                "Listen on 127.0.0.1, or use --auth keys and make a key with `perdure key create`."
            )


# -- from the environment ----------------------------------------------------------------------------------------------

VARIABLES: Final[dict[str, str]] = {
    "PERDURE_DSN": "the database; `DATABASE_URL` is looked at second",
    "PERDURE_HTTP_BIND": "where REST and the pages listen, `127.0.0.1:8600` unless set",
    "PERDURE_GRPC_BIND": "where workers connect, `127.0.0.1:8601` unless set",
    "PERDURE_PUBLIC_URL": "how people reach the server; links begin with it",
    "PERDURE_SERVER_NAMESPACE": "the namespace of the server's own engine and of credentials that name none, `default` unless set",
    "PERDURE_AUTH": "`keys` (API keys and tokens) or `open` (nobody is asked; loopback only)",
    "PERDURE_ALLOWED_HOSTS": "names that HTTP clients may call the server by, separated by commas, beside `localhost`, IP addresses and the host of `PERDURE_PUBLIC_URL`; `*`: any",
    "PERDURE_TRUSTED_PROXIES": "addresses and networks (`10.0.0.0/8`) of proxies whose `X-Forwarded-For` is believed, separated by commas; of nobody unless set",
    "PERDURE_SECRET_KEY_FILE": "a file with the key that seals webhook secrets in the database, the same on every server: 32 bytes in base64; several keys, one per line: the first seals, all open",
    "PERDURE_SECRET_KEY": "the same without a file; several keys are separated by commas",
    "PERDURE_OIDC_ISSUER": "who signs the tokens people log in with",
    "PERDURE_OIDC_AUDIENCE": "whom the tokens must be meant for",
    "PERDURE_OIDC_JWKS_URL": "where the signing keys are; found through the issuer unless set",
    "PERDURE_OIDC_ROLE_CLAIM": "the claim that names the role, `perdure_role` unless set",
    "PERDURE_OIDC_ROLES": 'what the claim\'s values mean, as JSON: `{"platform-team": "admin"}`',
    "PERDURE_OIDC_NAMESPACES": "the same for namespaces",
    "PERDURE_OIDC_NAMESPACE_CLAIM": "the claim that names the namespace, `perdure_namespace` unless set",
    "PERDURE_TLS_CERT": "certificate chain for HTTP and gRPC",
    "PERDURE_TLS_KEY": "its private key",
    "PERDURE_TLS_CLIENT_CA": "only clients with a certificate of this authority are let in",
    "PERDURE_HTTP_TLS": "`off`: plain HTTP, behind a proxy that ends TLS; a certificate is for gRPC alone then",
    "PERDURE_METRICS_BIND": "a separate address for /metrics",
    "PERDURE_CONNECTIONS_MAX": "HTTP connections at once, `10000` unless set, and at most what `ulimit -n` leaves room for",
    "PERDURE_CONNECTIONS_PER_ADDRESS": "of those, from one client address, `1000` unless set; raise it behind a proxy",
    "PERDURE_LOG_FORMAT": "`text` or `json`",
    "PERDURE_LOG_LEVEL": "`debug`, `info`, `warning` or `error`",
    "PERDURE_DRAIN": "how long a stopping server waits for work at hand, `30s` unless set",
    "PERDURE_NOT_READY": "of that, how long it still answers with `/readyz` saying no, `1s` unless set; more behind a slow load balancer",
    "PERDURE_LEASE": "a server that is silent for this long loses its runs to others, `15s` unless set",
    "PERDURE_HEARTBEAT": "how often it says that it is alive, `5s` unless set",
    "PERDURE_RUNS_MAX": "runs held in memory",
    "PERDURE_RETENTION_DAYS": "ended runs older than this are dropped; kept forever unless set",
    "PERDURE_NOTIFY": "`off` behind a proxy that pools transactions",
}
"""Each variable of the server and its meaning; the docs' table is written from this."""

LEVELS: Final = ("debug", "info", "warning", "error")


def settings_from(
    environment: Mapping[str, str], names: Mapping[str, str] | None = None, **flags: object
) -> ServerSettings:
    """Flags that are not None win over the environment. `names` says what a variable is called in errors: the flag it came from."""
    read = _Reader(environment, names or {})
    tls = read.tls()
    found: dict[str, object] = {
        "dsn": environment.get("PERDURE_DSN") or environment.get("DATABASE_URL"),
        "http": read.one("PERDURE_HTTP_BIND", _address(HTTP_PORT)),
        "grpc": read.one("PERDURE_GRPC_BIND", _address(GRPC_PORT)),
        "public_url": read.one("PERDURE_PUBLIC_URL", _url),
        "namespace": read.one("PERDURE_SERVER_NAMESPACE", _text),
        "auth": read.one("PERDURE_AUTH", _choice(get_args(AuthMode))),
        "allowed_hosts": read.one("PERDURE_ALLOWED_HOSTS", _hosts),
        "trusted_proxies": read.one("PERDURE_TRUSTED_PROXIES", _networks),
        "http_is_plain": True if read.one("PERDURE_HTTP_TLS", _switch) is False else None,
        "secret_keys": read.secret_keys(),
        "oidc": read.oidc(),
        "http_tls": tls if read.one("PERDURE_HTTP_TLS", _switch) is not False else None,
        "grpc_tls": tls,
        "metrics": read.one("PERDURE_METRICS_BIND", _address(0)),
        "log_format": read.one("PERDURE_LOG_FORMAT", _choice(get_args(LogFormat))),
        "log_level": read.one("PERDURE_LOG_LEVEL", _choice(LEVELS)),
        "drain_s": read.one("PERDURE_DRAIN", _seconds),
        "not_ready_s": read.one("PERDURE_NOT_READY", _seconds),
        "engine": read.engine(),
        "connections": read.connections(),
    }
    given = {name: value for name, value in (found | _given(flags)).items() if value is not None}
    if not given.get("dsn"):
        raise InvalidInput("no database was named: pass --db, or set PERDURE_DSN or DATABASE_URL")
    return ServerSettings(**given)  # type: ignore[arg-type]


def secret_keys_from(environment: Mapping[str, str]) -> tuple[bytes, ...]:
    return _Reader(environment, {}).secret_keys() or ()


def _given(flags: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in flags.items() if value is not None}


class _Reader:
    """Reads variables; what does not parse names its variable."""

    def __init__(self, environment: Mapping[str, str], names: Mapping[str, str]) -> None:
        self._environment, self._names = environment, names

    def one(self, name: str, parse: Callable[[str], T]) -> T | None:
        text = self._environment.get(name, "").strip()
        if not text:
            return None
        try:
            return parse(text)
        except (ValueError, InvalidInput) as error:
            raise InvalidInput(f"{self._names.get(name, name)}: {error}") from None

    def tls(self) -> TlsFiles | None:
        cert, key = self.one("PERDURE_TLS_CERT", _file), self.one("PERDURE_TLS_KEY", _file)
        client_ca = self.one("PERDURE_TLS_CLIENT_CA", _file)
        if cert is None and key is None and client_ca is None:
            return None
        if cert is None or key is None:
            missing = "PERDURE_TLS_CERT" if cert is None else "PERDURE_TLS_KEY"
            raise InvalidInput(f"TLS needs a certificate and its key: {missing} is not set")
        return TlsFiles(cert=cert, key=key, client_ca=client_ca)

    def oidc(self) -> OidcSettings | None:
        issuer, audience = self.one("PERDURE_OIDC_ISSUER", _url), self.one("PERDURE_OIDC_AUDIENCE", _text)
        if issuer is None:
            return None
        if audience is None:
            raise InvalidInput(
                "PERDURE_OIDC_ISSUER is set but PERDURE_OIDC_AUDIENCE is not: tokens meant for others would be let in"
            )
        optional: dict[str, object] = {
            "jwks_url": self.one("PERDURE_OIDC_JWKS_URL", _url),
            "role_claim": self.one("PERDURE_OIDC_ROLE_CLAIM", _text),
            "roles": self.one("PERDURE_OIDC_ROLES", _table),
            "namespace_claim": self.one("PERDURE_OIDC_NAMESPACE_CLAIM", _text),
            "namespaces": self.one("PERDURE_OIDC_NAMESPACES", _table),
        }
        given = {k: v for k, v in optional.items() if v is not None}
        return OidcSettings(issuer=issuer, audience=audience, **given)  # type: ignore[arg-type]

    def secret_keys(self) -> tuple[bytes, ...] | None:
        file = self.one("PERDURE_SECRET_KEY_FILE", _file)
        if file is None:
            return self.one("PERDURE_SECRET_KEY", parse_keys)
        return self.one("PERDURE_SECRET_KEY_FILE", lambda name: parse_keys(file.read_text()))

    def connections(self) -> ConnectionBounds:
        found = {
            "connections_max": self.one("PERDURE_CONNECTIONS_MAX", _count),
            "per_address_max": self.one("PERDURE_CONNECTIONS_PER_ADDRESS", _count),
        }
        return ConnectionBounds(**{k: v for k, v in found.items() if v is not None})

    def engine(self) -> EngineSettings:
        found = {
            "lease_s": self.one("PERDURE_LEASE", _seconds),
            "heartbeat_s": self.one("PERDURE_HEARTBEAT", _seconds),
            "runs_max": self.one("PERDURE_RUNS_MAX", int),
            "retention_days": self.one("PERDURE_RETENTION_DAYS", float),
            "notify": self.one("PERDURE_NOTIFY", _switch),
        }
        settings = EngineSettings(**{k: v for k, v in found.items() if v is not None})  # type: ignore[arg-type]
        if settings.heartbeat_s * 2 > settings.lease_s:
            raise InvalidInput(
                f"PERDURE_HEARTBEAT ({settings.heartbeat_s:g}s) must be at most half of PERDURE_LEASE ({settings.lease_s:g}s): "
                "one late heartbeat would lose every run"
            )
        return settings


def _text(text: str) -> str:
    return text


def _address(default_port: int) -> Callable[[str], Address]:
    return lambda text: Address.parse(text, default_port=default_port)


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in text.split(",") if host.strip())
    for host in hosts:
        if "/" in host or ":" in host:
            raise ValueError(f"{host!r} is not a host name: leave out https:// and the port")
    return hosts


def _networks(text: str) -> tuple[str, ...]:
    return tuple(str(ip_network(part.strip())) for part in text.split(",") if part.strip())


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} does not begin with http:// or https://")
    return text.rstrip("/")


def _table(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        raise ValueError(f'{text!r} is not a JSON object of texts such as {{"platform-team": "admin"}}') from None


def _file(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ValueError(f"{text} is not a file that can be read")
    return path


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{text} is not 1 or more")
    return number


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return to_us(text) / 1e6


def _switch(text: str) -> bool:
    words = {"on": True, "1": True, "true": True, "yes": True, "off": False, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise ValueError(f"{text!r} is neither on nor off")
    return words[text.lower()]


def _choice(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return parse
