"""Services with a fixed address, and hosts beside the public internet, as a worker is configured."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

from perdure.core.errors import InvalidInput

SERVICES_ENV: Final = "PERDURE_SERVICES"
HTTP_ALLOW_ENV: Final = "PERDURE_HTTP_ALLOW"
SERVICES_MAX: Final = 1_000
"""Services that one worker may know by name."""


def configured_services() -> dict[str, str]:
    return parse_services(os.environ.get(SERVICES_ENV, "").split(","))


def configured_allow() -> list[str]:
    return os.environ.get(HTTP_ALLOW_ENV, "").split(",")


def parse_services(pairs: list[str]) -> dict[str, str]:
    """`name=url` each; empty ones are nothing."""
    found: dict[str, str] = {}
    for pair in filter(None, map(str.strip, pairs)):
        name, equals, url = pair.partition("=")
        if not equals:
            raise InvalidInput(f"{pair!r} names no service: write name=http://host:port")
        found[name.strip()] = checked_service(name.strip(), url.strip())
    if len(found) > SERVICES_MAX:
        raise InvalidInput(f"a worker knows at most SERVICES_MAX={SERVICES_MAX} services, not {len(found)}")
    return found


def checked_service(name: str, url: str) -> str:
    """Its base URL, without the slash at its end."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
    except ValueError:  # brackets that do not close, for instance
        usable = False
    if not name or not usable:
        raise InvalidInput(f"the service {name!r} has no usable address {url!r}: write name=http://host:port")
    return url.rstrip("/")
