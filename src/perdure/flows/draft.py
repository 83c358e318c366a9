"""A document that is fit to be deployed: compiled, with its version, and as it will be stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from perdure.core.subscriptions import encode
from perdure.flows.compile import Compiled, compile_flow, compile_value, version_of
from perdure.flows.model import Flow
from perdure.flows.source import read


class Draft(NamedTuple):
    compiled: Compiled
    version: str
    document: bytes
    """Canonical JSON, which the version is the hash of."""
    source: str
    """As its author wrote it."""

    @property
    def flow(self) -> Flow:
        return self.compiled.flow

    @property
    def control(self) -> bytes | None:
        """What it says about flow control of its runs, as JSON; None: nothing."""
        return msgspec.json.encode(self.flow.control) if self.flow.control is not None else None

    @property
    def subscriptions(self) -> bytes:
        """Named events that start runs of it, as JSON; empty: none."""
        return encode(self.flow.subscriptions)


def draft_text(text: str, *, name: str | None = None, file: str = "document") -> Draft:
    """FlowError with everything that is wrong."""
    document = read(text, name=file)
    compiled = compile_flow(document, name=name)
    return Draft(compiled, version_of(document.value), msgspec.json.encode(document.value), text)


def draft_value(value: Mapping[str, Any], *, name: str | None = None) -> Draft:
    compiled = compile_value(dict(value), name=name)
    encoded = msgspec.json.encode(value)
    return Draft(compiled, version_of(value), encoded, msgspec.json.format(encoded, indent=2).decode())
