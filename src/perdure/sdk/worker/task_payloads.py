"""Payloads at the border of a worker's tasks: inputs get their stored values before a task begins, results lose theirs before they are reported."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Coroutine
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVar

from perdure.core.payload_port import PayloadCarrier
from perdure.core.payloads import MARK, Reference
from perdure.sdk.payloads.access import LoopAccess, blob_access
from perdure.sdk.payloads.blobs import SPOOL_PREFIX

T = TypeVar("T")


class TaskPayloads:
    """Without a carrier payloads travel as they are."""

    def __init__(self, carrier: PayloadCarrier | None, context: Context) -> None:
        """`context`: that of the tasks, which read blobs by it."""
        self._carrier = carrier
        self._access = LoopAccess(carrier) if carrier is not None else None
        self._inline_bytes = carrier.inline_bytes if carrier is not None else sys.maxsize
        if self._access is not None:
            context.run(blob_access.set, self._access)

    def is_stored(self, payload: bytes) -> bool:
        """Whether an input has to be resolved."""
        return payload.startswith(MARK)

    def is_heavy(self, payload: bytes) -> bool:
        """Whether a result has to be offloaded."""
        return len(payload) > self._inline_bytes or type(payload) is not bytes

    async def input(self, payload: bytes) -> bytes:
        return await self._carrier.resolve(payload) if self._carrier is not None else payload

    async def result(self, payload: bytes, task: str) -> bytes:
        return await self._carrier.offload(payload, f"the result of {task}") if self._carrier is not None else payload

    def input_now(self, payload: bytes) -> bytes:
        """In a thread."""
        return self._wait(self.input(payload)) if self.is_stored(payload) else payload

    def result_now(self, payload: bytes, task: str) -> bytes:
        return self._wait(self.result(payload, task)) if self.is_heavy(payload) else payload

    def file_of(self, reference: Reference) -> Path:
        """In a thread: the content of a blob as a file, for a child process, which deletes it."""
        assert self._carrier is not None
        handle, path = tempfile.mkstemp(prefix=SPOOL_PREFIX)
        try:
            with os.fdopen(handle, "wb") as file:
                self._wait(self._write(reference, file))
        except BaseException:
            Path(path).unlink(missing_ok=True)
            raise
        return Path(path)

    async def _write(self, reference: Reference, file: Any) -> None:
        assert self._carrier is not None
        async for part in self._carrier.read(reference):
            file.write(part)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._access is not None
        return self._access.wait(work)
