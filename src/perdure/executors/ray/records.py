"""What a job leaves in the key-value store of the cluster (GCS), where any worker finds it:

    claim/JOB          when it was started; written before its actor is made
    began/JOB          when its code began, Unix microseconds. Written once: by its actor, or as 0 by the worker that found it lost before that
    log/JOB/N/STREAM   a piece of its output; the worker that reads it removes it
    question/JOB/N     what it asks the server about payloads; the worker that answers it removes it
    answer/JOB/N       the answer; the attempt that reads it removes it
    end/JOB            how it ended. Written once: by its actor, or by the worker that found it lost or cancelled it

The store keeps all of it in memory, so each has a limit, and `forget` removes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from perdure.core.errors import Failure
from perdure.executors.port import JobFailed, JobLost, JobState, JobSucceeded

NAMESPACE: Final = "perdure"
LOG_PIECE_BYTES: Final = 64 * 1024
LOG_BYTES_MAX: Final = 4 * 1024 * 1024
"""Output of one attempt that is passed on; the rest is counted."""
CLAIM: Final = "claim/"
BEGAN: Final = "began/"
LOG: Final = "log/"
QUESTION: Final = "question/"
ANSWER: Final = "answer/"
END: Final = "end/"


class JobEnd(msgspec.Struct, array_like=True):
    """Exactly one of the three is given."""

    value: bytes | None = None
    failure: Failure | None = None
    is_final: bool = False
    lost: str = ""


def encode_end(state: JobState) -> bytes:
    match state:
        case JobSucceeded(value):
            return msgspec.msgpack.encode(JobEnd(value=value))
        case JobFailed(failure, is_final):
            return msgspec.msgpack.encode(JobEnd(failure=failure, is_final=is_final))
        case JobLost(why):
            return msgspec.msgpack.encode(JobEnd(lost=why))
        case _:
            raise AssertionError(state)


def decode_end(data: bytes) -> JobState:
    ended = msgspec.msgpack.decode(data, type=JobEnd)
    if ended.value is not None:
        return JobSucceeded(ended.value)
    if ended.failure is not None:
        return JobFailed(ended.failure, ended.is_final)
    return JobLost(ended.lost)


class Records:
    """The key-value store. Only in a process that is connected to a cluster."""

    def __init__(self) -> None:
        from ray.experimental import internal_kv

        kv: Any = internal_kv
        self._put: Callable[..., bool] = kv._internal_kv_put
        self._get: Callable[..., bytes | None] = kv._internal_kv_get
        self._del: Callable[..., int] = kv._internal_kv_del
        self._list: Callable[..., list[bytes]] = kv._internal_kv_list

    def put(self, key: str, value: bytes) -> bool:
        """Unless the key is there already. Whether it was not."""
        return not self._put(key.encode(), value, overwrite=False, namespace=NAMESPACE)

    def get(self, key: str) -> bytes | None:
        return self._get(key.encode(), namespace=NAMESPACE)

    def remove(self, key: str) -> None:
        self._del(key.encode(), namespace=NAMESPACE)

    def keys(self, prefix: str) -> list[str]:
        return sorted(key.decode() for key in self._list(prefix.encode(), namespace=NAMESPACE))
