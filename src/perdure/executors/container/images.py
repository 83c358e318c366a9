"""Names of images, and the credentials of their registries.

Credentials stand in a file of the worker in the form of Docker's config.json, so that `docker login` and `podman login` can write it. It is read
for each pull: a changed password needs no restart. What it holds goes to Docker or Podman alone.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.executors.port import JobRefused

IMAGE_CHARS_MAX: Final = 255
CREDENTIALS_BYTES_MAX: Final = 1024 * 1024
DOCKER_HUB: Final = "docker.io"
_HUB_KEYS: Final = (DOCKER_HUB, "index.docker.io", "https://index.docker.io/v1/")
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE: Final = re.compile(
    rf"(?:(?P<registry>localhost(?::\d+)?|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::\d+)?|[A-Za-z0-9-]+:\d+)/)?"
    rf"(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>[a-z0-9]+:[0-9a-f]{32,128}))?\Z"
)


class Image(msgspec.Struct, frozen=True):
    name: str
    """Without tag and digest."""
    tag: str
    """Or the digest."""
    registry: str


def read_image(value: Any) -> Image:
    """Raises Refused for a name that no registry could have."""
    if not isinstance(value, str) or not value:
        raise JobRefused("there is no image: give the name of one, such as docker.io/library/python:3.12")
    found = _IMAGE.match(value) if len(value) <= IMAGE_CHARS_MAX else None
    if found is None:
        raise JobRefused(f"{value[:IMAGE_CHARS_MAX]!r} is not the name of an image")
    registry = found["registry"]
    name = f"{registry}/{found['path']}" if registry else found["path"]
    return Image(name, found["digest"] or found["tag"] or "latest", registry or DOCKER_HUB)


def credentials(path: str, registry: str) -> str:
    """The header for a registry; empty: the file has none for it. Raises OSError or ValueError for a file that cannot be read."""
    if not path:
        return ""
    auths = _auths(path)
    entry = next((auths[key] for key in (_HUB_KEYS if registry == DOCKER_HUB else (registry,)) if key in auths), None)
    if entry is None:
        return ""
    name, _, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
    login = {
        "username": entry.get("username", name),
        "password": entry.get("password", password),
        "identitytoken": entry.get("identitytoken", ""),
        "serveraddress": registry,
    }
    return base64.urlsafe_b64encode(msgspec.json.encode({k: v for k, v in login.items() if v})).decode()


def _auths(path: str) -> dict[str, dict[str, str]]:
    with Path(path).open("rb") as file:
        data = file.read(CREDENTIALS_BYTES_MAX)
    try:
        return msgspec.convert(msgspec.json.decode(data)["auths"], dict[str, dict[str, str]])
    except (msgspec.MsgspecError, KeyError, TypeError):
        raise ValueError(f'{path} is not of the form {{"auths": {{"REGISTRY": {{"auth": "..."}}}}}}') from None
