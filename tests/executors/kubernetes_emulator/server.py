"""The API over HTTP: `python -m tests.executors.kubernetes_emulator.server PORT TOKEN FOLDER CERTIFICATE`.

A file `busy` in the folder makes it answer 429, as a server with too many requests does; a file `compact` makes it forget its history once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from tests.executors.kubernetes_emulator import status
from tests.executors.kubernetes_emulator.api import PROPAGATION, Api, DeleteOptions
from tests.executors.kubernetes_emulator.controllers import Controllers
from tests.executors.kubernetes_emulator.resources import NAMESPACES, NODES, Key, Object, Target, parse_path
from tests.executors.kubernetes_emulator.selectors import parse_selector
from tests.executors.kubernetes_emulator.status import ApiError, Cause
from tests.executors.kubernetes_emulator.store import Store
from tests.executors.kubernetes_emulator.watch import Watch, events

BODY_BYTES_MAX: Final = 3 * 1024 * 1024
WATCH_S: Final = 1_800
MERGE_PATCH: Final = "application/merge-patch+json"
JSON: Final = "application/json"
ROOTS: Final = ("/api/v1/", "/apis/batch/v1/")


class Server:
    def __init__(self, token: str, folder: Path) -> None:
        self.api = Api(Store())
        self.controllers = Controllers(self.api)
        self._token, self._folder = token, folder
        self.api.create(Target(NAMESPACES, "", "", ""), {"metadata": {"name": "default"}})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as e:
            return web.json_response(e.as_json(), status=e.code)
        except web.HTTPRequestEntityTooLarge:
            message = f"Request entity too large: limit is {BODY_BYTES_MAX}"
            return web.json_response(ApiError(413, "RequestEntityTooLarge", message).as_json(), status=413)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self._token}":
            raise status.unauthorized()
        if request.path == "/readyz":
            return web.Response(text="ok")
        if (self._folder / "busy").exists():
            text = "Too many requests, please try again later.\n"
            return web.Response(status=429, text=text, headers={"Retry-After": "1"})
        if (self._folder / "compact").exists():
            (self._folder / "compact").unlink()
            self.api.store.forget_history()
            self.api.forget_pages()
        if "dryRun" in request.query:
            raise status.bad_request("this server has no dry runs")
        target = parse_path(request.path)
        if target is None:
            if request.path.startswith(ROOTS):
                raise status.not_served()
            return web.Response(status=404, text="404 page not found\n")
        return await self._act(request, target)

    async def _act(self, request: web.Request, target: Target) -> web.StreamResponse:
        match request.method, bool(target.name), target.subresource:
            case "POST", False, "":
                body = await _body(request, (JSON,))
                return web.json_response(self.api.create(target, body), status=201)
            case "GET", False, "":
                return await self._list(request, target)
            case "GET", True, "" | "status":
                return web.json_response(self.api.get(target))
            case "PATCH", True, "" | "status":
                return web.json_response(self.api.patch(target, await _body(request, (MERGE_PATCH,))))
            case "DELETE", True, "":
                return await self._delete(request, target)
            case "POST", True, "binding":
                self.api.bind(target, await _body(request, (JSON,)))
                return web.json_response(_success(target, {}), status=201)
            case "GET", True, "log":
                return await self._log(request, target)
        raise status.not_allowed()

    async def _list(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = request.query
        if query.get("fieldSelector"):
            raise status.bad_request("this server has no field selectors")
        selector = parse_selector(query.get("labelSelector", ""))
        version, token = query.get("resourceVersion", ""), query.get("continue", "")
        if version and not version.isdigit():
            raise status.internal(f"strconv.ParseUint: parsing {version!r}: invalid syntax")
        if _is_true(query.get("watch")):
            timeout_s = _number(query.get("timeoutSeconds"), "timeoutSeconds") or WATCH_S
            has_bookmarks = _is_true(query.get("allowWatchBookmarks"))
            return await self._watch(request, Watch(target, selector, version, timeout_s, has_bookmarks))
        if token and version not in ("", "0"):
            raise status.bad_request("specifying resource version is not allowed when using continue")
        if int(version or 0) > self.api.store.version:
            raise ApiError(504, "Timeout", f"Too large resource version: {version}, current: {self.api.store.version}")
        return web.json_response(self.api.list(target, selector, _number(query.get("limit"), "limit"), token))

    async def _watch(self, request: web.Request, watch: Watch) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": JSON})
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # the client left
            async for event in events(self.api.store, watch):
                await response.write(json.dumps(event).encode() + b"\n")
        return response

    async def _delete(self, request: web.Request, target: Target) -> web.Response:
        body = await _body(request, (JSON,)) if request.can_read_body else {}
        options = _delete_options({**request.query, **body})
        obj, is_gone = self.api.delete(target, options)
        return web.json_response(_success(target, obj) if is_gone and target.resource.kind != "Pod" else obj)

    async def _log(self, request: web.Request, target: Target) -> web.StreamResponse:
        """From the node, as the API server fetches it."""
        pod = self.api.get(target)
        names = [container["name"] for container in pod["spec"]["containers"]]
        container = request.query.get("container") or names[0]
        if container not in names:
            raise status.bad_request(f"container {container} is not valid for pod {target.name}")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        if not pod["spec"].get("nodeName"):
            await response.prepare(request)
            return response
        node = self.api.store.objects[Key(NODES, "", pod["spec"]["nodeName"])]
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        url = f"https://127.0.0.1:{port}/containerLogs/{target.namespace}/{target.name}/{container}"
        query = {k: v for k, v in request.query.items() if k in ("follow", "tailLines")}
        connector, timeout = aiohttp.TCPConnector(ssl=False), aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            async with session.get(url, params=query) as upstream:
                if upstream.status != 200:
                    raise ApiError(upstream.status, "NotFound", "the server could not find the requested resource")
                await response.prepare(request)
                async for data in upstream.content.iter_any():
                    await response.write(data)
        return response


async def _body(request: web.Request, accepted: tuple[str, ...]) -> Object:
    data = await request.read()
    if request.content_type not in (*accepted, "application/octet-stream"):
        raise status.unsupported_media(accepted)
    try:
        found = json.loads(data)
    except ValueError as e:
        raise status.bad_request(f"the body is not JSON: {e}") from None
    if not isinstance(found, dict):
        raise status.bad_request("the body is not an object")
    return found


def _delete_options(given: Object) -> DeleteOptions:
    propagation = given.get("propagationPolicy")
    if propagation is not None and propagation not in PROPAGATION:
        cause = Cause("FieldValueNotSupported", "propagationPolicy", f'Unsupported value: "{propagation}"')
        raise status.invalid("DeleteOptions", "meta.k8s.io", "", [cause])
    grace_s = given.get("gracePeriodSeconds")
    wanted = given.get("preconditions") or {}
    return DeleteOptions(
        propagation,
        None if grace_s is None else _number(str(grace_s), "gracePeriodSeconds"),
        wanted.get("uid"),
        wanted.get("resourceVersion"),
    )


def _number(text: str | None, name: str) -> int:
    try:
        return int(text or 0)
    except ValueError:
        raise status.bad_request(f"{name}: {text!r} is not a number") from None


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() not in ("0", "false")


def _success(target: Target, obj: Object) -> dict[str, Any]:
    details = {"name": target.name, "kind": target.resource.plural, "uid": obj.get("metadata", {}).get("uid", "")}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


async def serve(port: int, token: str, folder: Path, certificate: str) -> None:
    server = Server(token, folder)
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    await server.controllers.run()


if __name__ == "__main__":
    own_port, secret, directory, pem = sys.argv[1:]
    asyncio.run(serve(int(own_port), secret, Path(directory), pem))
