"""`perdure.http`: one HTTP request as a task, or a call of a service that the worker knows by name.

A service is called as `POST {base}/exec/{name}` with `{"input": body, "params": {}}` and answers `{"result": ..., "error": ""}`. Its own
address is allowed for calls of that service. Services that register themselves are called by the executor `service`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from perdure.core.errors import InvalidInput
from perdure.executors.http.exchange import HttpClient, service_hosts, service_result


class Http:
    """The calls of one worker."""

    def __init__(self, services: Mapping[str, str], allow: Sequence[str] = ()) -> None:
        self._services = services
        # A connection to a service must not serve a call by URL, to which its address may be closed: one client each.
        self._by_url = HttpClient(allow)
        self._by_name = HttpClient([*allow, *service_hosts(services.values())]) if services else self._by_url

    async def http(
        self,
        url: str | None = None,
        method: str | None = None,
        headers: dict[str, Any] | None = None,
        query: dict[str, Any] | None = None,
        body: Any = None,
        service: str | None = None,
        timeout: float | str | None = None,
    ) -> Any:
        """Send an HTTP request: status, headers and body of the answer; or call a service: its result."""
        if (url is None) == (service is None):
            raise InvalidInput(
                f"{'neither' if url is None else 'both'} url and service given; one of the two says where to"
            )
        if service is not None:
            if method is not None or query is not None:
                raise InvalidInput("a service is always called by POST and without a query; drop method and query")
            call = {"input": body, "params": {}}
            answer = await self._by_name.send(
                self._service_url(service), "POST", headers=headers, body=call, timeout=timeout
            )
            return service_result(service, answer["body"])
        assert url is not None
        verb = method or ("GET" if body is None else "POST")
        return await self._by_url.send(url, verb, headers=headers, query=query, body=body, timeout=timeout)

    def _service_url(self, name: str) -> str:
        base = self._services.get(name)
        if base is None:
            near = difflib.get_close_matches(name, self._services, 1)
            known = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(sorted(self._services)) or 'none'}."
            raise InvalidInput(
                f"this worker knows no service {name!r}; {known} Start it with --service {name}=http://host:port "
                f"or PERDURE_SERVICES={name}=http://host:port"
            )
        return f"{base}/exec/{quote(name, safe='')}"

    async def close(self) -> None:
        await self._by_url.close()
        await self._by_name.close()
