"""Providers of secrets: variables, files, and those of other packages.

A package adds a provider by an entry point of the group `perdure.secrets`, which names a class or a function without arguments that makes one.
PERDURE_SECRETS lists the providers that a worker asks, in this order: `env,files,vault`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Protocol, cast

from perdure.core.application_limits import SECRET_BYTES_MAX, SECRET_PROVIDERS_MAX
from perdure.core.errors import InvalidInput, SecretMissing, SecretUnavailable
from perdure.core.secrets import variable_of
from perdure.core.suggestions import did_you_mean

GROUP: Final = "perdure.secrets"
ENV: Final = "env"
FILES: Final = "files"
DEFAULT: Final = (ENV, FILES)
PROVIDERS_VARIABLE: Final = "PERDURE_SECRETS"
DIR_VARIABLE: Final = "PERDURE_SECRETS_DIR"
ENV_PREFIX: Final = "PERDURE_SECRET_"
DIR_DEFAULT: Final = Path("/run/secrets")


class SecretProvider(Protocol):
    """A source of secrets. It is called from threads, several at a time, and may take SECRET_CALL_S for an answer."""

    def get(self, name: str) -> str | None:
        """The value; None: it has no secret of this name. SecretUnavailable: it cannot say now, and the attempt is tried again."""
        ...


class EnvSecrets:
    """Variables of the worker: PERDURE_SECRET_NAME. Characters of the name that a variable cannot have become `_`."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    def get(self, name: str) -> str | None:
        return self._environ.get(ENV_PREFIX + variable_of(name))


class FileSecrets:
    """A directory with a file for each secret, as Docker and Kubernetes mount them. One newline at the end of a file does not count."""

    def __init__(self, directory: Path | None = None) -> None:
        said = os.environ.get(DIR_VARIABLE, "").strip()
        self._directory = directory or (Path(said).expanduser() if said else DIR_DEFAULT)

    def get(self, name: str) -> str | None:
        path = self._directory / name
        try:
            with path.open("rb") as file:
                data = file.read(SECRET_BYTES_MAX + 3)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as e:
            raise SecretUnavailable(f"the file of the secret {name!r} cannot be read: {e.strerror}") from None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise SecretMissing(f"the file of the secret {name!r} is not text in UTF-8") from None
        return text.removesuffix("\n").removesuffix("\r")


def provider_names(text: str) -> tuple[str, ...]:
    """As PERDURE_SECRETS lists them."""
    found = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if len(found) > SECRET_PROVIDERS_MAX:
        raise InvalidInput(f"{PROVIDERS_VARIABLE} names {len(found)} providers; {SECRET_PROVIDERS_MAX} is the most")
    return found


def available() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def load(names: Sequence[str]) -> list[tuple[str, SecretProvider]]:
    """The providers of these names, in their order."""
    return [(name, _load(name)) for name in names]


def _load(name: str) -> SecretProvider:
    if name == ENV:
        return EnvSecrets()
    if name == FILES:
        return FileSecrets()
    point = available().get(name)
    if point is None:
        known = [ENV, FILES, *sorted(available())]
        raise InvalidInput(
            f"{PROVIDERS_VARIABLE}: there is no provider of secrets {name!r}; {did_you_mean(name, known)} Known: {', '.join(known)}."
        )
    make: Any = point.load()
    made = make()
    if not callable(getattr(made, "get", None)):
        raise InvalidInput(f"the provider of secrets {name!r} has no method get(name)")
    return cast(SecretProvider, made)
