"""Scenarios of stored content. Workers and clients upload through gRPC; REST downloads."""

from __future__ import annotations

from perdure.core.api import payloads
from perdure.core.api.payloads import AnnouncePayloads, FindPayload, GetPayload, PutPayload
from perdure.core.payload_port import AnnouncedPayload
from perdure.core.payloads import digest_of
from tests.server.parity.stage import NO_ROUTE, Refusal, Scenario, Stage

CONTENT = b"parity"
MISSING = "00" * 32


def digest(subject: str) -> bytes:
    return bytes.fromhex(subject) if len(subject) == len(MISSING) else digest_of(subject.encode())


async def stored(stage: Stage) -> str:
    found = digest_of(CONTENT)
    await stage.embedded(payloads.PUT, PutPayload(found, len(CONTENT), 0, CONTENT))
    return found.hex()


SCENARIOS = (
    Scenario(
        act=payloads.ANNOUNCE,
        request=lambda s: AnnouncePayloads("", [AnnouncedPayload(digest_of(CONTENT), len(CONTENT))]),
        rest=None,
        refusal=lambda name: Refusal(
            code="invalid_input", request=AnnouncePayloads("nowhere", [AnnouncedPayload(b"", 1)]), rest=NO_ROUTE
        ),
    ),
    Scenario(
        act=payloads.PUT,
        request=lambda s: PutPayload(digest_of(CONTENT), len(CONTENT), 0, CONTENT),
        rest=None,
        refusal=lambda name: Refusal(
            code="payload_corrupt", request=PutPayload(bytes(32), len(CONTENT), 0, CONTENT), rest=NO_ROUTE
        ),
    ),
    Scenario(
        act=payloads.GET,
        setup=stored,
        request=lambda s: GetPayload(digest(s)),
        rest=None,
        nowhere=(MISSING, "payload_missing"),
    ),
    Scenario(
        act=payloads.FIND,
        setup=stored,
        request=lambda s: FindPayload(digest(s)),
        rest=None,
        nowhere=(MISSING, "payload_missing"),
    ),
)
