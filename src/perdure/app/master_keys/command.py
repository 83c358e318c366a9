"""Master keys behind a program: any key management service that a few lines of shell can reach.

    PROGRAM newest             prints the id of the master key that wraps now
    PROGRAM wrap               reads a data key in base64 from stdin; prints `ID CIPHERTEXT`, two words
    PROGRAM unwrap ID          reads CIPHERTEXT from stdin; prints the data key in base64

Anything but exit code 0 is a failure, and what the program wrote to stderr is its reason. Arguments never hold a key.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import shlex
from typing import Final

from perdure.core.errors import PayloadKeyMissing
from perdure.core.master_keys import WrappedKey

COMMAND_S: Final = 30.0
REASON_CHARS: Final = 500


class CommandKeys:
    def __init__(self, command: str) -> None:
        self._words = shlex.split(command)

    async def newest(self) -> str:
        return (await self._run("newest")).strip()

    async def wrap(self, key: bytes) -> WrappedKey:
        words = (await self._run("wrap", given=base64.b64encode(key).decode())).split()
        if len(words) != 2:
            raise self._failed(
                "wrap", f"it printed {len(words)} words, and two were expected: the id and the ciphertext"
            )
        return WrappedKey(words[0], words[1].encode())

    async def unwrap(self, wrapped: WrappedKey) -> bytes:
        text = await self._run("unwrap", wrapped.master, given=wrapped.data.decode("ascii", "replace"))
        try:
            return base64.b64decode(text.strip(), validate=True)
        except (ValueError, binascii.Error):
            raise self._failed("unwrap", "it did not print a key in base64") from None

    async def _run(self, *arguments: str, given: str = "") -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise self._failed(arguments[0], error.strerror or str(error)) from None
        try:
            async with asyncio.timeout(COMMAND_S):
                out, err = await process.communicate(given.encode())
        except TimeoutError:
            process.kill()
            await process.wait()
            raise self._failed(arguments[0], f"it did not end within {COMMAND_S:g} s") from None
        if process.returncode:
            reason = " ".join(err.decode(errors="replace").split())[:REASON_CHARS]
            raise self._failed(
                arguments[0], f"exit code {process.returncode}: {reason or 'it wrote nothing to stderr'}"
            )
        return out.decode(errors="replace")

    def _failed(self, act: str, why: str) -> PayloadKeyMissing:
        return PayloadKeyMissing(f"the program of master keys `{self._words[0]} {act}` failed: {why}")
