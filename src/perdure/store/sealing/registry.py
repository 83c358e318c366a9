"""Which codec the connections to a database use. A process has one for each database, however many pools it opens."""

from __future__ import annotations

from typing import Final

from perdure.store.sealing.codec import PayloadCodec

_codecs: Final[dict[str, PayloadCodec]] = {}


def codec_for(dsn: str) -> PayloadCodec:
    return _codecs.setdefault(dsn, PayloadCodec())


def use_codec(dsn: str, codec: PayloadCodec) -> None:
    """For connections that are opened from now on."""
    _codecs[dsn] = codec
