"""Encryption and compression of user data, as a process sets them up for its database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from perdure.app.master_keys import master_keys
from perdure.core.errors import InvalidInput
from perdure.store.payload_keys import PayloadKeys, read_with_keys, use_payload_keys

KEYS_VARIABLE: Final = "PERDURE_PAYLOAD_KEYS"
COMPRESS_VARIABLE: Final = "PERDURE_PAYLOAD_COMPRESS"
DAYS_VARIABLE: Final = "PERDURE_PAYLOAD_KEY_DAYS"
DAYS_DEFAULT: Final = 90.0
DAY_S: Final = 86_400.0


class SealingOptions(msgspec.Struct, frozen=True):
    keys: str = ""
    """Where the master keys are; empty: nothing is encrypted."""
    compress_from: int | None = None
    """Values of so many bytes are compressed; 0: none; None: 1,024 with encryption, else none."""
    key_days: float = DAYS_DEFAULT
    """A data key that is older is followed by a new one; 0: never by itself."""


def sealing_options(environ: Mapping[str, str]) -> SealingOptions:
    """For programs that embed Perdure."""
    compress, days = environ.get(COMPRESS_VARIABLE, ""), environ.get(DAYS_VARIABLE, "")
    try:
        return SealingOptions(
            environ.get(KEYS_VARIABLE, ""), int(compress) if compress else None, float(days) if days else DAYS_DEFAULT
        )
    except ValueError:
        raise InvalidInput(
            f"{COMPRESS_VARIABLE} is a number of bytes and {DAYS_VARIABLE} a number of days; found {compress!r} and {days!r}"
        ) from None


def read_sealing(dsn: str, options: SealingOptions, environ: Mapping[str, str]) -> None:
    """The same for a process that only reads."""
    if options.keys:
        read_with_keys(dsn, master_keys(options.keys, environ))


async def use_sealing(dsn: str, options: SealingOptions, environ: Mapping[str, str]) -> PayloadKeys | None:
    """For all connections to this database that the process opens from now on."""
    master = master_keys(options.keys, environ) if options.keys else None
    return await use_payload_keys(
        dsn, master, compress_from=options.compress_from, rotate_after_s=options.key_days * DAY_S
    )
