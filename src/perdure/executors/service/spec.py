"""What a call of a service is: read from the arguments of its task, with the secrets that it may use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from perdure.core.durations import to_us
from perdure.core.errors import InvalidInput
from perdure.core.limits import SERVICE_ATTEMPTS_DEFAULT, SERVICE_ATTEMPTS_MAX, SERVICE_DELAY_MS_MAX
from perdure.core.names import checked_name
from perdure.executors.port import Job, JobRefused

ATTEMPT_DELAY_MS_DEFAULT: Final = 200
HEADERS_MAX: Final = 50
"""Headers of one call."""
SECRET_CHARS_MIN: Final = 4
"""Shorter secrets are not masked: they would mask ordinary text."""
MASK: Final = "***"

Scalar = str | int | float | bool


class ServiceSecrets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Secrets by the names of the worker's variables. A value never stands in a spec: that is recorded."""

    bearer_env: str = ""
    headers_env: dict[str, str] = {}
    """Header -> variable."""


class ServiceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    service: str = ""
    url: str = ""
    """Called as it is, instead of an instance of a service."""
    input: Any = None
    params: dict[str, Any] | None = None
    headers: dict[str, Scalar] | None = None
    auth: ServiceSecrets | None = None
    max_attempts: int | None = None
    attempt_delay_ms: int | None = None
    weighted_by_load: bool = False
    timeout: float | str | None = None
    """Of one call."""


class ServiceCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as it will be made."""

    service: str
    url: str
    body: dict[str, Any]
    headers: dict[str, Scalar]
    secrets: tuple[str, ...]
    """Values that no message may show."""
    is_weighted: bool
    max_attempts: int
    delay_s: float
    timeout_s: float | None

    @property
    def shown(self) -> str:
        return f"the service {self.service!r}" if self.service else f"the service at {self.url.partition('?')[0]}"

    def masked(self, text: str) -> str:
        for secret in self.secrets:
            if len(secret) >= SECRET_CHARS_MIN:
                text = text.replace(secret, MASK)
        return text


def read_call(job: Job, allowed: Collection[str], environ: Mapping[str, str]) -> ServiceCall:
    try:
        spec = msgspec.convert(job.spec, ServiceSpec)
        timeout_s = to_us(spec.timeout) / 1e6 if spec.timeout is not None else None
        if spec.service:
            checked_name("service", spec.service)
    except (msgspec.ValidationError, InvalidInput) as e:
        raise JobRefused(f"a call of a service is wrong: {e}") from e
    if bool(spec.service) == bool(spec.url):
        raise JobRefused(
            f"a call of a service has {'both' if spec.url else 'neither'} service and url; give one of them"
        )
    headers, secrets = _headers(spec, allowed, environ)
    once = job.assignment.options.at_most_once
    return ServiceCall(
        service=spec.service,
        url=spec.url,
        body={"input": spec.input, "params": spec.params or {}},
        headers=headers,
        secrets=secrets,
        is_weighted=spec.weighted_by_load,
        max_attempts=1
        if once
        else _bounded(spec.max_attempts, "max_attempts", 1, SERVICE_ATTEMPTS_MAX, SERVICE_ATTEMPTS_DEFAULT),
        delay_s=_bounded(spec.attempt_delay_ms, "attempt_delay_ms", 0, SERVICE_DELAY_MS_MAX, ATTEMPT_DELAY_MS_DEFAULT)
        / 1000,
        timeout_s=timeout_s,
    )


def secret_names(text: str) -> frozenset[str]:
    """Names of variables whose values calls may send, separated by commas."""
    names = frozenset(name for name in map(str.strip, text.split(",")) if name)
    for name in names:
        _check_secret(name)
    return names


def _check_secret(name: str) -> None:
    if name.startswith("PERDURE_") or name == "DATABASE_URL":
        raise JobRefused(f"{name} belongs to Perdure and is not sent to services: give a service a secret of its own")


def _headers(
    spec: ServiceSpec, allowed: Collection[str], environ: Mapping[str, str]
) -> tuple[dict[str, Scalar], tuple[str, ...]]:
    headers = dict(spec.headers or {})
    auth = spec.auth or ServiceSecrets()
    named = {**auth.headers_env, **({"Authorization": auth.bearer_env} if auth.bearer_env else {})}
    if len(headers) + len(named) > HEADERS_MAX:
        raise JobRefused(f"a call of a service has more than HEADERS_MAX={HEADERS_MAX} headers")
    secrets = {header: _secret(name, allowed, environ) for header, name in named.items()}
    sent = {h: f"Bearer {v}" if auth.bearer_env and h == "Authorization" else v for h, v in secrets.items()}
    return {**headers, **sent}, tuple(secrets.values())


def _secret(name: str, allowed: Collection[str], environ: Mapping[str, str]) -> str:
    _check_secret(name)
    if name not in allowed:
        raise JobRefused(
            f"the call asks for the secret {name}, which this worker does not send: allow it with "
            f"--executor-option service.secrets={name}"
        )
    if name not in environ:
        raise JobRefused(f"the call asks for the secret {name}, which this worker's environment does not have")
    return environ[name]


def _bounded(value: int | None, name: str, least: int, most: int, default: int) -> int:
    if value is None:
        return default
    if not least <= value <= most:
        raise JobRefused(f"{name} of a call of a service is {value}; give {least} to {most}")
    return value
