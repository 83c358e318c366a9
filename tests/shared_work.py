"""Work that each test would do again with the same result. A process of tests does it once."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import asyncpg
import httpcore2

FIRST_OWN_OID: Final = 16_384
"""Types with a lower number are PostgreSQL's own, and the same in each database."""


def install() -> None:
    # Else each connection asks for TLS first, for which asyncpg makes a context.
    os.environ.setdefault("PGSSLMODE", "disable")
    _share_certificates()
    _share_types()


def _share_certificates() -> None:
    """Each HTTP client would read all certificates that the system trusts: a quarter of a test of the REST API."""
    make = httpcore2.default_ssl_context

    @cache
    def made(file: str | None, directory: str | None, trust_env: bool) -> ssl.SSLContext:
        return make(_trust_env=trust_env)

    def default_ssl_context(*, _trust_env: bool = True) -> ssl.SSLContext:
        return made(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"), _trust_env)

    httpcore2.default_ssl_context = default_ssl_context


def _share_types() -> None:
    """Each connection of asyncpg would look up what arrays are: a quarter of PostgreSQL's work for a short test."""
    look_up = asyncpg.Connection._introspect_types
    known: dict[frozenset[int], Any] = {}

    async def introspect(self: asyncpg.Connection, oids: Iterable[int], timeout: float | None) -> Any:
        asked = frozenset(oids)
        if asked not in known:
            types, statement = await look_up(self, asked, timeout)
            if max(asked) < FIRST_OWN_OID:
                known[asked] = types
            return types, statement
        return known[asked], SimpleNamespace(name="nothing was prepared")

    asyncpg.Connection._introspect_types = introspect
