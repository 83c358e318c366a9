"""The tasks that every worker serves by itself, on each of its queues: `perdure.http`, and `perdure.run` where it is allowed.

They are tasks like any other, for flows that need no function of their own and for `wf.call("perdure.http", {...})`. They are not
in the registry: the user did not define them, and lists of what a worker serves leave them out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from perdure.core.calls import HTTP, RUN
from perdure.core.errors import InvalidInput
from perdure.sdk.payloads.signatures import Signature
from perdure.sdk.worker.command_task import CommandRunner
from perdure.sdk.worker.http_task import Http

SERVICES_ENV: Final = "PERDURE_SERVICES"
HTTP_ALLOW_ENV: Final = "PERDURE_HTTP_ALLOW"
ALLOW_RUN_ENV: Final = "PERDURE_ALLOW_RUN"
RUN_ENV_ENV: Final = "PERDURE_RUN_ENV"
SERVICES_MAX: Final = 1_000
"""Services that one worker may know by name."""
_YES: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_NO: Final = frozenset({"", "0", "false", "f", "no", "n", "off"})


class Verb:
    """As much of a task as its execution needs."""

    is_async = True
    process = False

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self.name, self.fn = name, fn
        self.signature = Signature(fn, name)


class VerbOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the built-in tasks of a worker may do. None: what the environment says."""

    services: Mapping[str, str] | None = None
    """Base URLs that `perdure.http` calls by name; else PERDURE_SERVICES."""
    http_allow: Sequence[str] | None = None
    """What `perdure.http` reaches beside its services and the public internet; else PERDURE_HTTP_ALLOW."""
    allow_run: bool | None = None
    """Serve `perdure.run`; else PERDURE_ALLOW_RUN."""
    run_env: Sequence[str] | None = None
    """Variables that commands of `perdure.run` get beside a base set; else PERDURE_RUN_ENV."""


VERBS_OF_ENVIRONMENT: Final = VerbOptions()


class Verbs:
    """The built-in tasks of one worker."""

    def __init__(self, options: VerbOptions) -> None:
        services, http_allow, run_env = options.services, options.http_allow, options.run_env
        if services is None:
            services = parse_services(os.environ.get(SERVICES_ENV, "").split(","))
        if http_allow is None:
            http_allow = os.environ.get(HTTP_ALLOW_ENV, "").split(",")
        self._http = Http({name: checked_service(name, url) for name, url in services.items()}, http_allow)
        if run_env is None:
            run_env = os.environ.get(RUN_ENV_ENV, "").split(",")
        commands = CommandRunner(run_env)
        self.tasks = {HTTP: Verb(HTTP, self._http.http)}
        if options.allow_run if options.allow_run is not None else _is_run_allowed():
            self.tasks[RUN] = Verb(RUN, commands.run)

    async def close(self) -> None:
        await self._http.close()


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


def _is_run_allowed() -> bool:
    said = os.environ.get(ALLOW_RUN_ENV, "").strip().lower()
    if said not in _YES | _NO:
        raise InvalidInput(f"{ALLOW_RUN_ENV}={said!r} says neither yes nor no: write 1 or 0")
    return said in _YES
