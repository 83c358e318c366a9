"""The tasks that every worker serves by itself, on each of its queues: `perdure.http`, and `perdure.job.service` by its executor. Other
executors bring others (definitions.py).

They are tasks like any other, for flows that need no function of their own and for `wf.call("perdure.http", {...})`. They are not
in the registry: the user did not define them, and lists of what a worker serves leave them out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from perdure.core.calls import HTTP
from perdure.core.jobs import SERVICE
from perdure.executors import registry
from perdure.executors.http.services import checked_service, configured_allow, configured_services
from perdure.executors.service import ServiceExecutor
from perdure.sdk.payloads.signatures import Signature
from perdure.sdk.worker.http_task import Http


class Verb:
    """As much of a task as its execution needs."""

    is_async = True
    process = False
    executor = ""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self.name, self.fn = name, fn
        self.signature = Signature(fn, name)


class VerbOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the built-in tasks of a worker may do. None: what the environment says."""

    services: Mapping[str, str] | None = None
    """Base URLs that `perdure.http` calls by name; else PERDURE_SERVICES."""
    http_allow: Sequence[str] | None = None
    """What `perdure.http` reaches beside its services and the public internet; else PERDURE_HTTP_ALLOW."""


VERBS_OF_ENVIRONMENT: Final = VerbOptions()


def service_executor(options: VerbOptions) -> ServiceExecutor:
    """The executor of HTTP services. It runs nothing on this machine, so that every worker has it; what it may reach is the same as for
    `perdure.http`."""
    services = dict(options.services) if options.services is not None else None
    allow = ",".join(options.http_allow) if options.http_allow is not None else None
    given = {"services": services, "allow": allow}
    env = registry.options_of_environment(SERVICE, os.environ)
    return cast(
        ServiceExecutor,
        registry.make(ServiceExecutor, {**env, **{key: value for key, value in given.items() if value is not None}}),
    )


class Verbs:
    """The built-in tasks of one worker."""

    def __init__(self, options: VerbOptions) -> None:
        services, http_allow = options.services, options.http_allow
        if services is None:
            services = configured_services()
        if http_allow is None:
            http_allow = configured_allow()
        self._http = Http({name: checked_service(name, url) for name, url in services.items()}, http_allow)
        self.tasks = {HTTP: Verb(HTTP, self._http.http)}

    async def close(self) -> None:
        await self._http.close()
