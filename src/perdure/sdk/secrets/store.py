"""Asks the providers of a worker, in order, and keeps what they say for a short time.

A provider is called in a thread of its own: one that hangs costs a thread, not the worker. As many calls as SECRET_CALLS_MAX may be under way;
while all of them hang, secrets are unavailable at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from time import monotonic  # bound here, before workflow guards wrap it
from typing import Any

from perdure.core.application_limits import (
    SECRET_BYTES_MAX,
    SECRET_CACHE_S,
    SECRET_CALL_S,
    SECRET_CALLS_MAX,
    SECRET_CHARS_MIN,
    SECRETS_CACHED_MAX,
)
from perdure.core.errors import PerdureError, SecretMissing, SecretUnavailable
from perdure.core.secrets import checked_secret_name, variable_of
from perdure.sdk.secrets.known import known
from perdure.sdk.secrets.providers import DEFAULT, PROVIDERS_VARIABLE, SecretProvider, load, provider_names


class SecretStore:
    """Called from any thread. The providers are loaded when the first secret is asked for."""

    def __init__(
        self,
        names: Sequence[str] | None = None,
        *,
        load: Callable[[Sequence[str]], list[tuple[str, SecretProvider]]] = load,
        call_s: float = SECRET_CALL_S,
        cache_s: float = SECRET_CACHE_S,
    ) -> None:
        """`names`: of the providers; None: as PERDURE_SECRETS lists them."""
        self._names, self._load, self._call_s, self._cache_s = names, load, call_s, cache_s
        self._providers: list[tuple[str, SecretProvider]] | None = None
        self._lock = threading.Lock()
        self._calls = threading.BoundedSemaphore(SECRET_CALLS_MAX)
        self._cached: dict[str, tuple[float, str]] = {}
        self._asking: dict[str, _ProviderCall] = {}

    @property
    def providers(self) -> list[tuple[str, SecretProvider]]:
        with self._lock:
            if self._providers is None:
                names = self._names
                if names is None:
                    names = provider_names(os.environ.get(PROVIDERS_VARIABLE, "")) or DEFAULT
                self._providers = self._load(names)
            return self._providers

    def cached(self, name: str) -> str | None:
        """What is known without asking."""
        found = self._cached.get(name)
        return found[1] if found is not None and found[0] > monotonic() else None

    def get(self, name: str) -> str:
        """The value of a secret, which is masked from now on. Blocks while a provider is asked; threads that ask for the same wait together."""
        value = self.cached(name)
        if value is None:
            checked_secret_name(name)
            value = self._ask(name)
            with self._lock:
                if len(self._cached) >= SECRETS_CACHED_MAX:
                    self._cached.clear()
                self._cached[name] = (monotonic() + self._cache_s, value)
        known.learn(name, value)
        return value

    def _ask(self, name: str) -> str:
        for provider_name, provider in self.providers:
            with self._lock:
                key = f"{provider_name} {name}"
                call = self._asking.get(key)
                if call is None:
                    call = self._asking[key] = self._call(key, name, provider)
            value = call.wait(self._call_s, provider_name, name)
            if value is not None:
                return _usable(name, value)
        asked = ", ".join(n for n, _ in self.providers)
        raise SecretMissing(
            f"this worker has no secret {name!r}; it asked {asked}. Set PERDURE_SECRET_{variable_of(name)} for it, "
            f"or add a file {name} to its directory of secrets"
        )

    def _call(self, key: str, name: str, provider: SecretProvider) -> _ProviderCall:
        if not self._calls.acquire(blocking=False):
            raise SecretUnavailable(
                f"the secret {name!r} cannot be read now: SECRET_CALLS_MAX={SECRET_CALLS_MAX} calls of providers have not been answered"
            )
        call = _ProviderCall()

        def work() -> None:
            try:
                call.value = provider.get(name)
            except Exception as e:
                call.error = e
            finally:
                self._calls.release()
                with self._lock:
                    self._asking.pop(key, None)
                call.done.set()

        threading.Thread(target=work, name="perdure-secret", daemon=True).start()
        return call


class _ProviderCall:
    """One call of a provider."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.value: Any = None
        self.error: Exception | None = None

    def wait(self, wait_s: float, provider: str, name: str) -> Any:
        if not self.done.wait(wait_s):
            raise SecretUnavailable(
                f"the provider {provider!r} did not answer within {wait_s:g} s for the secret {name!r}"
            )
        if isinstance(self.error, PerdureError):
            raise self.error
        if self.error is not None:
            # Its text may hold what it found, so that only its type is told.
            raise SecretUnavailable(
                f"the provider {provider!r} failed for the secret {name!r}: {type(self.error).__name__}"
            )
        return self.value


def _usable(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SecretMissing(f"the secret {name!r} is a {type(value).__name__}; a provider has to give text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise SecretMissing(f"the secret {name!r} is not text that can be written as UTF-8") from None
    if len(value) < SECRET_CHARS_MIN:
        raise SecretMissing(
            f"the secret {name!r} has {len(value)} characters and cannot be used: one of fewer than SECRET_CHARS_MIN={SECRET_CHARS_MIN} cannot "
            "be masked in texts without masking ordinary words as well. Use a longer one"
        )
    if size > SECRET_BYTES_MAX:
        raise SecretMissing(
            f"the secret {name!r} has more than SECRET_BYTES_MAX={SECRET_BYTES_MAX} bytes and cannot be used"
        )
    return value
