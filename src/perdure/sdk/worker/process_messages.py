"""What a worker and its child processes say to each other, over a pipe.

worker --Job, BlobFile, SecretFound--> child
       <--ProcessReady, AttemptBegun, OutputLines, Pulsed, BlobWanted, SecretWanted, Ended--
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from perdure.core.payloads import Reference
from perdure.core.work import Assignment, LogLine, Report


class ProcessCall(msgspec.Struct, tag="job"):
    module: str
    qualname: str
    assignment: Assignment
    capture: bool
    tee: bool
    clock_us: int
    """The parent's clock, which runs ahead of the machine's monotonic one by a constant."""
    monotonic_us: int
    secrets: dict[str, str] = {}
    """Names of the secrets that are in the input, by value: the child masks them."""


class ProcessReady(msgspec.Struct, tag="ready"):
    """The child has started."""


class AttemptBegun(msgspec.Struct, tag="begun"):
    """It has the job: what happens from here on happens to the attempt."""


class OutputLines(msgspec.Struct, tag="lines"):
    lines: list[LogLine]


class Pulsed(msgspec.Struct, tag="beat"):
    details: bytes


class SpooledContent(msgspec.Struct, array_like=True):
    """A file that holds the content of a blob of the result. The parent stores it and, if it is owned, deletes it."""

    path: str
    sha256: bytes
    size: int
    owned: bool


class BlobWanted(msgspec.Struct, tag="blob"):
    """The task reads a blob: the parent has the connection."""

    reference: Reference


class SecretWanted(msgspec.Struct, tag="secret"):
    """The task reads a secret: the parent has the providers."""

    name: str


class Ended(msgspec.Struct, tag="ended"):
    report: Report
    contents: list[SpooledContent] = []


class BlobFile(msgspec.Struct, tag="file"):
    """The content of a blob as a file, which the child deletes; or why there is none."""

    path: str
    error: str = ""


class SecretFound(msgspec.Struct, tag="value"):
    """The value of a secret; or the code and the text of the error."""

    value: str
    code: str = ""
    error: str = ""


Order = ProcessCall | BlobFile | SecretFound
encode: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
decode_order: Callable[[bytes], Order] = msgspec.msgpack.Decoder(Order).decode
Answer = ProcessReady | AttemptBegun | OutputLines | Pulsed | BlobWanted | SecretWanted | Ended
decode_answer: Callable[[bytes], Answer] = msgspec.msgpack.Decoder(Answer).decode
