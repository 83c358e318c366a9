"""The executor `service`: calls HTTP services that register themselves, or a URL."""

from __future__ import annotations

from perdure.executors.service.executor import ServiceExecutor

__all__ = ["ServiceExecutor"]
