"""What a pod printed. The API gives stdout and stderr as one stream."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any, Final

from perdure.core.limits import JOB_LINE_BYTES_MAX, LOG_BYTES_PER_ATTEMPT_MAX
from perdure.executors.kubernetes.manifest import CONTAINER

LOG_S_MAX: Final = 50
"""The longest that reading a log may take."""


class PodLog:
    """Delivers a log from its beginning, once, and keeps the end of it."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.delivered = 0
        """Bytes. More than LOG_BYTES_PER_ATTEMPT_MAX is not delivered: Perdure does not keep it."""
        self.tail = bytearray()
        self.is_whole = True

    def add(self, data: bytes) -> None:
        if self.delivered < LOG_BYTES_PER_ATTEMPT_MAX:
            self._write(self._decode(data))
        self.delivered += len(data)
        self.tail += data
        if len(self.tail) > 2 * JOB_LINE_BYTES_MAX:
            del self.tail[:-JOB_LINE_BYTES_MAX]
            self.is_whole = False


async def read_log(core: Any, namespace: str, pod: str, into: PodLog, *, follow: bool) -> None:
    """Read what comes after what was delivered before. With `follow`, until the container ends."""
    response = await core.read_namespaced_pod_log(
        pod,
        namespace,
        container=CONTAINER,
        follow=follow,
        _preload_content=False,
        _request_timeout=3600 if follow else LOG_S_MAX,
    )
    async with response:
        response.raise_for_status()
        skip = into.delivered
        async for data in response.content.iter_any():
            new = data[skip:]
            skip = max(0, skip - len(data))
            if new:
                into.add(new)
