"""The setting `PERDURE` of a Django project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args
from urllib.parse import quote, urlencode

import msgspec
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

StartMode = Literal["transaction", "commit", "now", "record"]
LIBPQ_OPTIONS: Final = (
    "passfile",
    "service",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
)
"""Keys of `OPTIONS` of a database that are part of its DSN. The others are Django's own, or of one driver."""
DEFAULT_NAMESPACE: Final = "default"


class DjangoSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="upper"):
    """`PERDURE = {...}`, with the names in upper case."""

    server: str | None = None
    """gRPC address of a server, or several separated by commas."""
    api_key: str | None = None
    """Unless given PERDURE_API_KEY."""
    namespace: str | None = None
    """Unless given PERDURE_NAMESPACE, then the only one that the key allows."""
    tls: bool = False
    """Use TLS with the system's authorities."""
    tls_ca: str | None = None
    """Use TLS and trust this authority, a PEM file."""
    database: str | None = None
    """The name in DATABASES of the database that Perdure lives in. Without `server` this process is an engine of its own on that database."""
    start: StartMode | None = None
    """How `start()` and tasks start runs; see starts.py. `transaction` with a `database`, else `commit`."""
    call_timeout: str | None = None
    """How long a call may take unless it says otherwise; 30 seconds unless given."""
    worker: Mapping[str, Any] = {}
    """Settings of `manage.py perdure_worker`, by the names that [worker] of perdure.toml has."""

    @property
    def is_embedded(self) -> bool:
        """This process is an engine, and asks no server."""
        return self.server is None and self.database is not None

    @property
    def start_mode(self) -> StartMode:
        return self.start or ("commit" if self.database is None else "transaction")

    @property
    def commit_database(self) -> str:
        """The database whose commit starts runs."""
        return self.database or "default"


def configuration() -> DjangoSettings:
    """The setting as it is now. Raises ImproperlyConfigured."""
    given = getattr(settings, "PERDURE", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured("PERDURE in the settings must be a dict, such as {'DATABASE': 'default'}")
    try:
        found = msgspec.convert(dict(given), DjangoSettings)
    except msgspec.ValidationError as error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(DjangoSettings))
        raise ImproperlyConfigured(
            f"PERDURE in the settings: {error}. Its keys are {known}; START is one of {', '.join(get_args(StartMode))}."
        ) from None
    if found.start_mode == "transaction":
        _check_transactions(found)
    return found


def _check_transactions(found: DjangoSettings) -> None:
    if found.database is None:
        raise ImproperlyConfigured(
            "PERDURE['START'] is 'transaction', which needs PERDURE['DATABASE']: the name in DATABASES of the database that Perdure lives in. "
            "If Perdure is in none of them, use 'commit'."
        )
    if (found.namespace or DEFAULT_NAMESPACE) != DEFAULT_NAMESPACE:
        raise ImproperlyConfigured(
            f"PERDURE['NAMESPACE'] is {found.namespace!r}: starts in a transaction go to the namespace {DEFAULT_NAMESPACE!r} only. "
            "Set PERDURE['START'] to 'commit'."
        )


def database_dsn(alias: str) -> str:
    """The DSN of a database of Django; in tests that of its test database. Raises ImproperlyConfigured."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        raise ImproperlyConfigured(f"PERDURE['DATABASE'] is {alias!r}, which is not in DATABASES.") from None
    if connection.vendor != "postgresql":
        raise ImproperlyConfigured(
            f"PERDURE['DATABASE'] is {alias!r}, a database of {connection.vendor}: Perdure lives in PostgreSQL. Name another one, or give "
            "PERDURE['SERVER'] alone."
        )
    given: dict[str, Any] = connection.settings_dict
    user, password = (quote(str(given.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    who = f"{user}:{password}@" if password else f"{user}@" if user else ""
    options = {key: value for key, value in given.get("OPTIONS", {}).items() if key in LIBPQ_OPTIONS}
    host = str(given.get("HOST") or "")
    if host.startswith("/"):  # the directory of a socket
        options["host"], host = host, ""
    port = f":{given['PORT']}" if given.get("PORT") else ""
    if not host and port:
        options["port"], port = given["PORT"], ""
    return f"postgresql://{who}{host}{port}/{quote(str(given.get('NAME') or ''), safe='')}" + (
        f"?{urlencode(options)}" if options else ""
    )
