"""Jobs and pods of Perdure as the API server last described them: a list in pages, then a watch, then again.

A poll of 10,000 jobs makes no request: it reads this copy. A watch that breaks is opened again from where it was; one that the server has
forgotten (410) begins with a new list.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from perdure.executors.kubernetes.manifest import SELECTOR
from perdure.executors.kubernetes.states import JobView, PodView

log = logging.getLogger("perdure.worker")

PAGE_MAX: Final = 500
"""Objects of one page of a list."""
WATCH_S: Final = 240
"""How long one watch lasts; after it the next one goes on."""
RECONNECT_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
SYNC_S_MAX: Final = 30.0
"""How long a question waits for the first list."""
STALE_S_MAX: Final = 60.0
"""A copy that could not be kept up to date for so long gives no answers."""
JOB_LABELS: Final = ("batch.kubernetes.io/job-name", "job-name")
"""Labels that the Job controller gives to pods; the second one is older."""


class Expired(Exception):
    """The server does not know this point of its history any more."""


class Mirror:
    """`changed` is called with the name of a job that is described anew."""

    def __init__(self, batch: Any, core: Any, namespace: str, changed: Callable[[str], None]) -> None:
        self._namespace, self._changed = namespace, changed
        self.jobs: dict[str, JobView] = {}
        self.pods: dict[str, dict[str, PodView]] = defaultdict(dict)
        """By job, by pod."""
        self._lists: dict[type[Any], Any] = {JobView: batch.list_namespaced_job, PodView: core.list_namespaced_pod}
        self._tasks: list[asyncio.Task[None]] = []
        self._synced = {kind: asyncio.Event() for kind in self._lists}
        self._fresh_at = dict.fromkeys(self._lists, 0.0)

    def open(self) -> None:
        self._tasks = [asyncio.create_task(self._follow(kind)) for kind in self._lists]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def fresh(self) -> None:
        """Wait for the first list. Raises ConnectionError when the copy is too old to be used."""
        try:
            async with asyncio.timeout(SYNC_S_MAX):
                for event in self._synced.values():
                    await event.wait()
        except TimeoutError:
            raise ConnectionError("the API server of Kubernetes does not answer") from None
        age_s = asyncio.get_running_loop().time() - min(self._fresh_at.values())
        if age_s > STALE_S_MAX + WATCH_S:
            raise ConnectionError(f"the API server of Kubernetes has not answered for {age_s:.0f} s")

    def put_job(self, data: Any) -> None:
        """What a request of our own returned. The watch may have delivered later versions of it already: those stay."""
        view = msgspec.convert(data, JobView)
        self.jobs.setdefault(view.metadata.name, view)

    def remove(self, name: str) -> None:
        self.jobs.pop(name, None)
        self.pods.pop(name, None)

    async def read_pods(self, name: str) -> list[PodView]:
        """Of a job, as the server has them now. The copy stays as it is: its watch knows in which order changes came."""
        page = await self._page(PodView, limit=PAGE_MAX, label_selector=f"{JOB_LABELS[-1]}={name}")
        return [msgspec.convert(item, PodView) for item in page.get("items") or []]

    async def _follow(self, kind: type[Any]) -> None:
        failures = 0
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list(kind)
                self._is_fresh(kind)
                failures = 0
                version = await self._watch(kind, version)
            except Expired:
                version = ""
            except Exception as e:
                if not failures:
                    log.warning("executor kubernetes: the watch broke: %s: %s", type(e).__name__, e)
                await asyncio.sleep(RECONNECT_S[min(failures, len(RECONNECT_S) - 1)])
                failures, version = failures + 1, ""

    def _is_fresh(self, kind: type[Any]) -> None:
        self._fresh_at[kind] = asyncio.get_running_loop().time()
        self._synced[kind].set()

    async def _list(self, kind: type[Any]) -> str:
        """The version to watch from."""
        found: list[Any] = []
        token: str | None = None
        while True:
            more = {"_continue": token} if token else {}
            page = await self._page(kind, limit=PAGE_MAX, **more)
            found += [msgspec.convert(item, kind) for item in page.get("items") or []]
            token = page["metadata"].get("continue")
            if not token:
                self._replace(kind, found)
                return str(page["metadata"]["resourceVersion"])

    async def _page(self, kind: type[Any], **params: Any) -> Any:
        given = {"label_selector": SELECTOR, "_preload_content": False, "_request_timeout": 30, **params}
        response = await self._lists[kind](self._namespace, **given)
        async with response:
            if response.status == 410:
                raise Expired
            response.raise_for_status()
            return msgspec.json.decode(await response.read())

    async def _watch(self, kind: type[Any], version: str) -> str:
        """Until the server ends it. The version to go on from."""
        response = await self._lists[kind](
            self._namespace,
            label_selector=SELECTOR,
            watch=True,
            resource_version=version,
            timeout_seconds=WATCH_S,
            allow_watch_bookmarks=True,
            _preload_content=False,
            _request_timeout=WATCH_S + 30,
        )
        async with response:
            if response.status == 410:
                raise Expired
            response.raise_for_status()
            async for line in _lines(response.content):
                event = msgspec.json.decode(line)
                version = self._take(kind, event) or version
                self._is_fresh(kind)
        return version

    def _take(self, kind: type[Any], event: Any) -> str:
        data = event["object"]
        if event["type"] == "ERROR":
            if data.get("code") == 410:
                raise Expired
            raise ConnectionError(json.dumps(data))
        if event["type"] != "BOOKMARK":
            self._apply(msgspec.convert(data, kind), is_deleted=event["type"] == "DELETED")
        return str(data["metadata"].get("resourceVersion") or "")

    def _apply(self, view: Any, is_deleted: bool) -> None:
        if isinstance(view, JobView):
            name = view.metadata.name
            if is_deleted:
                self.jobs.pop(name, None)
            else:
                self.jobs[name] = view
        else:
            name = job_of(view)
            if is_deleted:
                self.pods[name].pop(view.metadata.name, None)
            else:
                self.pods[name][view.metadata.name] = view
            if not self.pods[name]:
                del self.pods[name]
        self._changed(name)

    def _replace(self, kind: type[Any], views: list[Any]) -> None:
        before = set(self.jobs) if kind is JobView else set(self.pods)
        if kind is JobView:
            self.jobs = {}
        else:
            self.pods = defaultdict(dict)
        for view in views:
            self._apply(view, is_deleted=False)
        for name in before - (set(self.jobs) if kind is JobView else set(self.pods)):
            self._changed(name)


def job_of(pod: PodView) -> str:
    return next((pod.metadata.labels[label] for label in JOB_LABELS if label in pod.metadata.labels), "")


async def _lines(content: Any) -> AsyncIterator[bytes]:
    """Lines of any length, which aiohttp's own iteration does not have."""
    held = b""
    async for data, _ in content.iter_chunks():
        *whole, held = (held + data).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
