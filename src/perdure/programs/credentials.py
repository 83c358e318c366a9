"""What `perdure login` keeps: one credential per server, in a file that only its owner can read.

    CONFIG/perdure/credentials.json    {"servers": {URL: credential}}
    CONFIG/perdure/credentials.lock    held while the file changes: a refresh token may work only once

CONFIG is XDG_CONFIG_HOME, or ~/.config.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from perdure.core.errors import InvalidInput

SERVERS_MAX: Final = 100
"""Servers whose credentials are kept; the one that was signed in to first is forgotten."""
EARLY_S: Final = 30.0
"""A token is renewed so long before it expires: it has to hold until its request arrives."""
TokenWord = Literal["access_token", "id_token"]


class Credential(NamedTuple):
    secret: str
    """An API key, or the token that requests carry."""
    expires_s: float = 0.0
    """Unix seconds; 0: it holds until the server says otherwise."""
    refresh_token: str = ""
    token_endpoint: str = ""
    client_id: str = ""
    uses: TokenWord = "access_token"
    """Which of the provider's tokens the server accepts."""

    def is_expired(self, now_s: float) -> bool:
        return bool(self.expires_s) and now_s >= self.expires_s - EARLY_S


Renew = Callable[[str, Credential], Credential]
"""Server, its credential that has expired -> a new one. Raises a PerdureError when there is none."""


class Credentials:
    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or config_directory()
        self.file = self._directory / "credentials.json"

    def get(self, url: str) -> Credential | None:
        found = self._all().get(server_key(url))
        return _credential(found) if isinstance(found, dict) else None

    def secret(self, url: str, renew: Renew) -> str | None:
        """What requests to a server carry; None: there is no sign-in for it."""
        found = self.get(url)
        if found is None or not found.is_expired(time.time()):
            return found.secret if found is not None else None
        with self._locked():
            found = self.get(url)  # another process may have renewed it meanwhile
            if found is not None and found.is_expired(time.time()):
                found = renew(url, found)
                self._put(url, found)
        return found.secret if found is not None else None

    def put(self, url: str, credential: Credential) -> None:
        with self._locked():
            self._put(url, credential)

    def delete(self, url: str) -> bool:
        """Whether there was one."""
        if not self.file.exists():
            return False
        with self._locked():
            known = self._all()
            found = known.pop(server_key(url), None)
            if found is not None:
                self._write(known)
        return found is not None

    def _put(self, url: str, credential: Credential) -> None:
        known = {name: value for name, value in self._all().items() if name != server_key(url)}
        kept = dict(list(known.items())[-(SERVERS_MAX - 1) :])
        self._write(kept | {server_key(url): credential._asdict()})

    def _all(self) -> dict[str, Any]:
        try:
            with self.file.open() as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise InvalidInput(f"{self.file} can be read by others: run `chmod 600 {self.file}`, or delete it")
                found = json.load(file)["servers"]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InvalidInput(f"{self.file} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise InvalidInput(f"{self.file} is damaged: delete it, and run `perdure login`") from None
        return found if isinstance(found, dict) else {}

    def _write(self, servers: dict[str, Any]) -> None:
        """Never readable by others, not even for a moment; whole or not at all."""
        draft = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as out:
            json.dump({"servers": servers}, out, indent=1)
        draft.replace(self.file)

    @contextmanager
    def _locked(self) -> Generator[None]:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._directory / "credentials.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InvalidInput(f"{self._directory} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def config_directory() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "perdure"


def server_key(url: str) -> str:
    """One server, however its address is written."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return f"{parts.scheme}://{parts.netloc}".lower() + parts.path.rstrip("/")


def _credential(found: dict[str, Any]) -> Credential | None:
    try:
        return Credential(**found)
    except TypeError:
        return None
