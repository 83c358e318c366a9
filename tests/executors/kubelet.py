"""A node for tests: runs the commands of pods as local processes and tells the API server about them, as a kubelet does.

It talks to any API server, real or not. Images are names only: what begins with `missing/` cannot be pulled, all others have the environment
of this file's IMAGE_ENV. It also serves the logs of its containers, where the API server fetches them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.fakes.waiting import busy

NODE = "local"
POLL_S = 0.05
IMAGE_ENV = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Kubelet:
    def __init__(self, server: str, token: str, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.headers = {"Authorization": f"Bearer {token}"}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.deleted: set[str] = set()
        self.evicted: set[str] = set()

    def log(self, pod: str) -> Path:
        return self.folder / f"{pod}.log"

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(connector=connector, headers=self.headers) as self.session:
            while True:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    await self._watch()
                await busy(0.2)

    async def _watch(self) -> None:
        async with self.session.get(f"{self.server}/api/v1/pods") as response:
            response.raise_for_status()
            found = await response.json()
        for pod in found["items"]:
            self._see(pod)
        params = {"watch": "true", "resourceVersion": found["metadata"]["resourceVersion"], "timeoutSeconds": "300"}
        async with self.session.get(f"{self.server}/api/v1/pods", params=params, timeout=None) as response:
            held = b""
            async for data, _ in response.content.iter_chunks():
                *lines, held = (held + data).split(b"\n")
                for line in filter(None, lines):
                    event = json.loads(line)
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._see(event["object"])
                    elif event["type"] == "ERROR":
                        return

    def _see(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if pod["metadata"].get("deletionTimestamp"):
            self.deleted.add(uid)
        if uid not in self.tasks:
            self.tasks[uid] = asyncio.create_task(self._run(pod))

    async def _run(self, pod: dict[str, Any]) -> None:
        try:
            await self._live(pod)
        except Exception as e:
            print(f"kubelet: {pod['metadata']['name']}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)

    async def _live(self, pod: dict[str, Any]) -> None:
        meta, phase = pod["metadata"], pod.get("status", {}).get("phase", "Pending")
        url = f"{self.server}/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if phase == "Pending" and meta["uid"] not in self.deleted:
            await self._bind(url, meta)
            container = pod["spec"]["containers"][0]
            if container["image"].startswith("missing/"):
                waiting = {"reason": "ImagePullBackOff", "message": f"Back-off pulling image {container['image']}"}
                await self._status(url, container, "Pending", {"waiting": waiting})
            else:
                await self._execute(url, meta, pod["spec"], container)
        while meta["uid"] not in self.deleted:
            await busy(POLL_S)
        async with self.session.delete(url, json={"gracePeriodSeconds": 0}) as response:
            await response.read()

    async def _bind(self, url: str, meta: dict[str, Any]) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta["name"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
        }
        async with self.session.post(f"{url}/binding", json=body) as response:
            await response.read()

    async def _execute(self, url: str, meta: dict[str, Any], spec: dict[str, Any], container: dict[str, Any]) -> None:
        env = IMAGE_ENV | {e["name"]: e.get("value", "").replace("$$(", "$(") for e in container.get("env", [])}
        command = [word.replace("$$(", "$(") for word in container["command"]]
        with self.log(meta["name"]).open("wb") as out:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, env=env, stdout=out, stderr=out, cwd="/tmp", start_new_session=True
                )
            except OSError as e:
                ended = {"exitCode": 128, "reason": "StartError", "message": str(e)}
                await self._status(url, container, "Failed", {"terminated": ended})
                return
        self.processes[meta["uid"]] = process
        await self._status(url, container, "Running", {"running": {"startedAt": now()}})
        ended = asyncio.create_task(process.wait())
        await self._wait(meta, spec, process, ended)
        if self.is_evicted(meta):
            message = "The node was low on resource: memory."
            await self._status(url, container, "Failed", None, reason="Evicted", message=message)
            return
        code = ended.result()
        state = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed"}
        await self._status(
            url, container, "Failed" if code else "Succeeded", {"terminated": {**state, "finishedAt": now()}}
        )

    async def _wait(
        self, meta: dict[str, Any], spec: dict[str, Any], process: asyncio.subprocess.Process, ended: asyncio.Task[int]
    ) -> None:
        kill_at = None
        loop = asyncio.get_running_loop()
        while not ended.done():
            await asyncio.wait({ended}, timeout=POLL_S)
            if self.is_evicted(meta):
                self._signal(process, signal.SIGKILL)
            elif meta["uid"] in self.deleted and kill_at is None:
                kill_at = loop.time() + min(5, spec.get("terminationGracePeriodSeconds", 30))
                self._signal(process, signal.SIGTERM)
            elif kill_at is not None and loop.time() > kill_at:
                self._signal(process, signal.SIGKILL)
        self._signal(process, signal.SIGKILL)

    def is_evicted(self, meta: dict[str, Any]) -> bool:
        return (self.folder / f"evict-{meta['labels']['job-name']}").exists()

    @staticmethod
    def _signal(process: asyncio.subprocess.Process, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    async def _status(self, url: str, container: dict[str, Any], phase: str, state: Any, **more: str) -> None:
        status: dict[str, Any] = {"phase": phase, "startTime": now(), **more}
        if state is not None:
            one = {"name": container["name"], "image": container["image"], "imageID": "", "ready": phase == "Running"}
            status["containerStatuses"] = [{**one, "restartCount": 0, "state": state}]
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self.session.patch(
            f"{url}/status", data=json.dumps({"status": status}), headers=headers
        ) as response:
            if response.status not in (200, 404):
                print(f"kubelet: {await response.text()}", file=sys.stderr, flush=True)

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """As the API server asks: /containerLogs/NAMESPACE/POD/CONTAINER."""
        path = self.log(request.match_info["pod"])
        if not path.exists():
            return web.Response(status=404)
        lines = int(request.query.get("tailLines") or 0)
        response = web.StreamResponse()
        await response.prepare(request)
        with path.open("rb") as file:
            if lines:
                file.seek(_tail_offset(path, lines))
            while True:
                while data := file.read(65536):
                    await response.write(data)
                if request.query.get("follow") not in ("true", "1") or self._is_over(path):
                    break
                await busy(POLL_S)
            while data := file.read(65536):
                await response.write(data)
        return response

    def _is_over(self, path: Path) -> bool:
        """Whether no process has it open any more."""
        return all(p.returncode is not None for p in self.processes.values())


def _tail_offset(path: Path, lines: int) -> int:
    data = path.read_bytes()
    at = len(data)
    for _ in range(lines + 1):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1


async def serve(kubelet: Kubelet, port: int, cert: str) -> None:
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", kubelet.logs)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert)
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    await kubelet.run()


if __name__ == "__main__":
    address, secret, directory, own_port, certificate = sys.argv[1:]
    asyncio.run(serve(Kubelet(address, secret, Path(directory)), int(own_port), certificate))
