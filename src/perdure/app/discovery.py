"""The server of `perdure dev`: where it listens and what its token is, so that commands on this machine find it by themselves.

    DIRECTORY/.perdure/dev.json      while `dev` runs: its addresses
    DIRECTORY/.perdure/dev-token     the token of this project, kept from one `dev` to the next
    DIRECTORY/.perdure/secret-key    seals webhook secrets in the private database
    STATE/perdure/dev/PORT.json      while `dev` runs: its token, for commands in other directories

All of them can be read by their owner alone.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

URL_DEFAULT: Final = "http://127.0.0.1:8600"
GRPC_DEFAULT: Final = "127.0.0.1:8601"
PARENTS_MAX: Final = 8
TOKEN_BYTES: Final = 24
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@contextmanager
def announced(directory: Path, url: str, grpc: str, token: str = "") -> Generator[None]:
    """Write the two announcement files while `dev` runs."""
    files = [_note(directory), _state_note(url)]
    body = json.dumps({"url": url, "grpc": grpc, "token": token, "pid": os.getpid()})
    for file in files:
        with suppress(OSError):  # an unwritable home directory does not prevent the start
            _write_privately(file, body)
    try:
        yield
    finally:
        for file in files:
            with suppress(OSError):
                file.unlink(missing_ok=True)


def dev_token(directory: Path) -> str:
    """The token of a project; made when there is none."""
    file = directory / ".perdure" / "dev-token"
    with suppress(OSError):
        if file.stat().st_mode & 0o077 == 0 and (found := file.read_text().strip()):
            return found
    token = secrets.token_urlsafe(TOKEN_BYTES)
    _write_privately(file, token + "\n")
    return token


def secret_key(home: Path) -> str:
    """The key that seals secrets in the private database beside it; made when there is none. Without it webhooks need new secrets."""
    file = home / "secret-key"
    with suppress(FileNotFoundError):
        return file.read_text()
    _write_privately(file, base64.b64encode(secrets.token_bytes(32)).decode() + "\n")
    return file.read_text()


def server_url(directory: Path) -> str:
    return _found(directory).get("url", URL_DEFAULT)


def server_grpc(directory: Path) -> str:
    return _found(directory).get("grpc", GRPC_DEFAULT)


def server_token(url: str, directory: Path) -> str | None:
    """The token of the `dev` at this address, if it is one of this user's on this machine."""
    place = _place(url)
    for note in (_found(directory), _read(_state_note(url)) or {}):
        if place is not None and _place(note.get("url", "")) == place:
            return note.get("token") or None
    return None


def state_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "perdure"


def _found(directory: Path) -> dict[str, str]:
    """The announcement of a running `dev`, here or in a parent directory."""
    for place in [directory, *directory.parents][:PARENTS_MAX]:
        note = _read(_note(place))
        if note is not None:
            return note
    return {}


def _read(file: Path) -> dict[str, str] | None:
    """None: there is none, it belongs to another user, or its `dev` has ended."""
    try:
        note: Any = json.loads(file.read_text())
        os.kill(int(note["pid"]), 0)
        return {"url": str(note["url"]), "grpc": str(note["grpc"]), "token": str(note.get("token", ""))}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _note(directory: Path) -> Path:
    return directory / ".perdure" / "dev.json"


def _state_note(url: str) -> Path:
    _, port = _place(url) or ("", 0)
    return state_directory() / "dev" / f"{port}.json"


def _place(url: str) -> tuple[str, int] | None:
    """Host and port of a plain HTTP address of this machine; None for any other."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        return None
    if parts.scheme != "http" or host not in LOOPBACK:
        return None
    return ("127.0.0.1" if host == "localhost" else host, port)


def _write_privately(file: Path, text: str) -> None:
    """Never readable by others, not even for a moment; whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
    draft.replace(file)
