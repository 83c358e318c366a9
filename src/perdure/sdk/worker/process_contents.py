"""What a child process has to ask its parent for, and what its parent has to store for it: it has no connection of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perdure.core.errors import PerdureError, clip
from perdure.core.payloads import Reference
from perdure.core.work import Report
from perdure.payloads.content import FileContent, UnsentPayload
from perdure.sdk.payloads.blobs import Blob
from perdure.sdk.worker.attempts import Attempt, AttemptHost
from perdure.sdk.worker.process_messages import BlobFile, SecretFound, SpooledContent


def secret_found(attempt: Attempt, host: AttemptHost, name: str) -> SecretFound:
    """In the parent."""
    try:
        return SecretFound(host.secret(attempt, name))
    except PerdureError as e:
        return SecretFound("", e.code, clip(str(e)))
    except Exception as e:
        return SecretFound("", PerdureError.code, clip(f"{type(e).__name__}: {e}"))


def with_contents(report: Report, contents: list[SpooledContent]) -> Report:
    """The report of a child, with the files that it wrote for blobs."""
    if contents:
        files = tuple(FileContent(Path(c.path), c.sha256, c.size, owned=c.owned) for c in contents)
        report.value = UnsentPayload.of(report.value, files)
    return report


def blob_file(reference: Reference, file_of: Callable[[Reference], Path]) -> BlobFile:
    try:
        return BlobFile(str(file_of(reference)))
    except Exception as e:
        return BlobFile("", clip(f"{type(e).__name__}: {e}"))


def spooled_contents(payload: bytes) -> list[SpooledContent]:
    """The contents of a result's blobs as files, for the parent, which deletes what was written for this alone."""
    found: list[SpooledContent] = []
    for content in payload.contents if isinstance(payload, UnsentPayload) else ():
        if not isinstance(content, FileContent):
            with Blob.writer() as out:
                for chunk in content.chunks():
                    out.write(chunk)
            file = out.blob.content
        else:
            file = content
        assert isinstance(file, FileContent)
        found.append(SpooledContent(str(file.path), file.sha256, file.size, file.owned))
        file.disown()
    return found
