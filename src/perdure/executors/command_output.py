"""What a command writes: decoded, without secrets, and what its exit code and the end of its output come to. For every executor that runs
commands.
"""

from __future__ import annotations

import codecs
import re
import shlex
import signal
from collections.abc import Callable
from typing import Any, Final

import msgspec

from perdure.core.errors import Failure, clip
from perdure.core.limits import JOB_RESULT_BYTES_MAX
from perdure.executors.commands import SHELL, CommandSpec
from perdure.executors.port import JobFailed, JobState, JobSucceeded
from perdure.payloads.content import spooled

STDOUT_BYTES_MAX: Final = 64 * 1024
"""Bytes of output that a result has; the last ones."""
JSON_BYTES_MAX: Final = 96 * 1024
"""Bytes at the end of the output that are looked at as JSON. A larger value goes into the result file."""
STDERR_CHARS: Final = 4_000
"""Characters of what a command complained about that an error shows; the last ones."""
STDERR_BYTES: Final = 4 * STDERR_CHARS
MASK: Final = b"***"


class MaskedText:
    """Bytes of one stream in, text without secrets out."""

    def __init__(self, secrets: tuple[bytes, ...], write: Callable[[str], None]) -> None:
        self._secrets, self._write = secrets, write
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = b""
        """Given and not written yet: a secret may begin in it."""
        self.overlap = max((len(s) for s in secrets), default=1) - 1
        """Bytes of the longest secret but one: so much of it may be on one side of a cut."""

    def feed(self, data: bytes, *, final: bool = False) -> None:
        data = mask(self._held + data, self._secrets)
        cut = len(data) if final else max(len(data) - self.overlap, 0)
        data, self._held = data[:cut], data[cut:]
        text = self._decode(data, final)
        if text:
            self._write(text)


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a command that has exited, without secrets."""

    stdout: bytes
    """The last JSON_BYTES_MAX bytes."""
    is_whole: bool
    """Nothing came before them."""
    stderr: bytes
    result: bytes | None
    """The result file, at most JOB_RESULT_BYTES_MAX + 1 bytes of it; None: there is none."""


def outcome(command: CommandSpec | None, code: int, written: Written) -> JobState:
    """What the exit code means. `command` is None where it cannot be read any more."""
    meaning = (command.exit_codes if command is not None else {}).get(code, "success" if code == 0 else "retry")
    if meaning == "success":
        return _result(code, written)
    text = f"{command_shown(command)} {_how(code)}{complaint(written.stderr)}"
    return JobFailed(Failure("task_failed", clip(text), "ExitCode"), is_final=meaning == "fail")


def complaint(stderr: bytes) -> str:
    """The end of what it wrote to stderr, for an error."""
    said = stderr.decode("utf-8", "replace").strip()[-STDERR_CHARS:]
    return f"\n{said}" if said else ""


def _result(code: int, written: Written) -> JobState:
    """From the result file, or from what it wrote."""
    result: dict[str, Any] = {"exit_code": code, "stdout": shown(written.stdout)}
    if written.result is None:
        value = value_of(written.stdout, written.is_whole)
    elif len(written.result) > JOB_RESULT_BYTES_MAX:
        text = (
            f"the result file has more than JOB_RESULT_BYTES_MAX={JOB_RESULT_BYTES_MAX} bytes: write it to a store of your own, "
            "and return where it is"
        )
        return JobFailed(Failure("payload_too_large", text, "PayloadTooLarge"), is_final=True)
    else:
        value = value_of(written.result, True, as_text)
        if value is NOTHING:
            return JobFailed(Failure("task_failed", "the result file is not JSON", "InvalidResult"))
    if value is not NOTHING:
        result["json"] = value
    return JobSucceeded(spooled(msgspec.json.encode(result)))


def _how(code: int) -> str:
    if code > 128:
        try:
            return f"was ended by {signal.Signals(code - 128).name}"
        except ValueError:
            pass  # a code of the command's own
    return f"exited with code {code}"


def command_shown(command: CommandSpec | None) -> str:
    """Text for the shell as it was written, anything else as one would type it."""
    argv = command.argv if command is not None else []
    if not argv:
        return "the command"
    return clip(argv[2] if argv[:2] == SHELL else argv[0] if len(argv) == 1 else shlex.join(argv), 200)


def mask(data: bytes, secrets: tuple[bytes, ...]) -> bytes:
    for secret in secrets:
        data = data.replace(secret, MASK)
    return data


def without_secrets(data: bytes, at: int, secrets: tuple[bytes, ...]) -> bytes:
    """What follows after `at`, without secrets. One that began before `at` is masked as well: what precedes `at` shows it."""
    cut = at
    while (end := max((_end_across(data, cut, secret) for secret in secrets), default=0)) > cut:
        cut = end
    return (MASK if cut > at else b"") + mask(data[cut:], secrets)


def _end_across(data: bytes, at: int, secret: bytes) -> int:
    """Where a secret ends that began before `at` and goes on after it; 0: there is none."""
    found = data.find(secret, max(0, at - len(secret) + 1), at + len(secret) - 1)
    return found + len(secret) if found >= 0 else 0


def shown(data: bytes) -> str:
    """The end of it as text. Shorter where it is full of control characters, which take six bytes each in a result."""
    text = data[-STDOUT_BYTES_MAX:].decode("utf-8", "replace")
    while len(msgspec.json.encode(text)) > 2 * STDOUT_BYTES_MAX:
        text = text[len(text) // 4 + 1 :]
    return text


NOTHING: Final = object()


def value_of(data: bytes, is_whole: bool, decode: Callable[[bytes], Any] = msgspec.json.decode) -> Any:
    """Output as JSON: all of it, or else its last line. NOTHING where neither is JSON."""
    lines = data.rstrip().rsplit(b"\n", 1)
    for text in (data if is_whole else b"", lines[-1] if is_whole or len(lines) > 1 else b""):
        if text.strip():
            try:
                return decode(text)
            except NOT_JSON:
                pass  # it is text
    return NOTHING


NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises."""
_UNUSUAL_NUMBER: Final = re.compile(rb"\d{300}|[eE]\+?\d{3}")


def as_text(data: bytes) -> msgspec.Raw:
    """JSON as it was written, checked. No objects are made of it: those of a large text take many times its size. Raises NOT_JSON."""
    data.decode()
    if _UNUSUAL_NUMBER.search(data):  # it may be out of range, which only decoding tells
        msgspec.json.decode(data)
    return msgspec.json.decode(data, type=msgspec.Raw).copy()
