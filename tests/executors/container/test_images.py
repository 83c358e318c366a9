"""Names of images, credentials of registries, and streams of output; without an engine."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.executors.container.images import Image, credentials, read_image
from perdure.executors.container.streams import BrokenStream, demultiplexed, unchunked
from perdure.executors.port import JobRefused

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("busybox", Image("busybox", "latest", "docker.io")),
        ("library/python:3.12", Image("library/python", "3.12", "docker.io")),
        ("localhost:5000/a/b", Image("localhost:5000/a/b", "latest", "localhost:5000")),
        (f"ghcr.io/x/y:1@{DIGEST}", Image("ghcr.io/x/y", DIGEST, "ghcr.io")),
    ],
)
def test_names_of_images(text: str, image: Image) -> None:
    assert read_image(text) == image


@pytest.mark.parametrize(
    "text", ["", None, 3, "../x", "a/../b", "a b", "a?b=c", "a\nb", "http://x/y", "-x", "a/", "A", "a:b:c", "x" * 300]
)
def test_what_is_no_name_of_an_image(text: object) -> None:
    with pytest.raises(JobRefused):
        read_image(text)


def test_credentials_are_those_of_the_registry(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    auth = base64.b64encode(b"me:pass:word").decode()
    file.write_text(json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": auth}, "ghcr.io": {"auth": auth}}}))
    for registry in ("docker.io", "ghcr.io"):
        login = json.loads(base64.urlsafe_b64decode(credentials(str(file), registry)))
        assert login == {"username": "me", "password": "pass:word", "serveraddress": registry}
    assert credentials(str(file), "evil.example.com") == credentials("", "ghcr.io") == ""
    file.write_text("{}")
    with pytest.raises(ValueError, match="auths"):
        credentials(str(file), "ghcr.io")


def test_chunks_in_any_pieces() -> None:
    whole = b"3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n"
    for cut in range(len(whole)):
        body, rest, is_over = unchunked(whole[:cut])
        more, _, is_over_later = unchunked(rest + whole[cut:]) if not is_over else (b"", b"", True)
        assert body + more == b"abcd"
        assert is_over_later
    with pytest.raises(BrokenStream):
        unchunked(b"zz\r\n")


async def test_frames_in_any_pieces() -> None:
    whole = b"\1\0\0\0\0\0\0\2ab" + b"\2\0\0\0\0\0\0\1c" + b"\1\0\0\0\0\0\0\1d"
    for cut in range(len(whole)):

        async def parts(cut: int = cut) -> AsyncIterator[bytes]:
            yield whole[:cut]
            yield whole[cut:]

        found = {"stdout": b"", "stderr": b""}
        async for piece in demultiplexed(parts()):
            for stream, data in piece.items():
                found[stream] += data
        assert found == {"stdout": b"abd", "stderr": b"c"}
