"""Master keys that wrap data keys, by the setting PERDURE_PAYLOAD_KEYS.

file:/etc/perdure/master.keys                          keys in base64, one per line; the first wraps, all unwrap
command:/usr/local/bin/keys-of-perdure                 a program that wraps and unwraps
transit:https://vault.example.com/v1/transit/perdure   a server that speaks the protocol of Vault's transit engine
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.app.master_keys.command import CommandKeys
from perdure.app.master_keys.key_file import KeyFile
from perdure.app.master_keys.transit import TransitKeys
from perdure.core.errors import InvalidInput
from perdure.core.master_keys import MasterKeys


def master_keys(text: str, environ: Mapping[str, str]) -> MasterKeys:
    """From the setting. Nothing is read or called yet."""
    kind, colon, where = text.strip().partition(":")
    if colon and where:
        match kind:
            case "file":
                return KeyFile(where)
            case "command":
                return CommandKeys(where)
            case "transit":
                return TransitKeys(where, environ)
            case _:
                pass
    raise InvalidInput(
        f"{text!r} does not say where the master keys are. Write file:PATH, command:PROGRAM or transit:URL; see docs/how-to/encrypt-payloads.md"
    )
