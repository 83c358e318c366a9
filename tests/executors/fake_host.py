"""What a worker does for an executor, without a worker."""

from __future__ import annotations

import time

from perdure.executors.port import Job, JobSecrets


class FakeHost:
    payloads = None

    def __init__(self) -> None:
        self.later_us = 0
        self.written: list[tuple[str, str]] = []

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.later_us

    def changed(self, name: str) -> None: ...

    def write(self, name: str, stream: str, text: str) -> None:
        self.written.append((stream, text))

    def warn(self, name: str, text: str) -> None:
        self.written.append(("warning", text))

    async def secrets(self, job: Job) -> JobSecrets | None:
        return None
