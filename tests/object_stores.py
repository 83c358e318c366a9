"""Real object stores for tests, on loopback: SeaweedFS speaks S3, Azurite speaks Azure Blob Storage."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.waiting import busy_thread

READY_S = 60.0
AZURE_ACCOUNT = "devstoreaccount1"
# The key that every Azurite has; it is public.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class ObjectServer:
    port: int
    env: dict[str, str] = field(default_factory=dict)
    """What its clients need in their environment."""
    url: str = ""


def free_port(margin: int = 0) -> int:
    """A free port, below which `margin` the same port is free as well: SeaweedFS listens for gRPC at port + 10000."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            if not margin:
                return port
            try:
                other.bind(("127.0.0.1", port - margin))
                return port - margin
            except (OSError, OverflowError):
                continue


@contextmanager
def s3_server(folder: Path) -> Iterator[ObjectServer]:
    """SeaweedFS with a bucket `jobs`."""
    weed = Path(sys.executable).with_name("weed")
    ports = [free_port(10_000) for _ in range(4)]
    s3 = ports[3]
    names = ("-master.port", "-volume.port", "-filer.port", "-s3.port")
    flags = [f"{name}={port}" for name, port in zip(names, ports, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(weed), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", *flags]
    command += [
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]  # these have fixed ports, which a second server would want too
    command += ["-volume.max=100", "-master.volumeSizeLimitMB=128", "-master.telemetry=false"]
    with _running(command, folder / "weed.log") as process:
        _await(process, lambda: _create_bucket(s3, "jobs"), folder / "weed.log")
        yield ObjectServer(s3, s3_environment(s3), "s3://jobs")


def s3_environment(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    }


AZURITE = Path(__file__).parent / "azurite" / "node_modules" / ".bin" / "azurite-blob"


@contextmanager
def azure_server(folder: Path) -> Iterator[ObjectServer]:
    """Azurite with a container `jobs`."""
    assert AZURITE.exists(), "`just setup` installs it"
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    env = {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}",
        "AZURE_ALLOW_HTTP": "true",
    }
    flags = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--silent"]
    command = [str(AZURITE), *flags, "--skipApiVersionCheck", "--disableTelemetry"]
    with _running(command, folder / "azurite.log") as process:
        _await(process, lambda: _create_container(port), folder / "azurite.log")
        yield ObjectServer(port, env, "az://jobs")


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], ready: object, log: Path) -> None:
    assert callable(ready)
    deadline = time.monotonic() + READY_S
    while not ready():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3_000:]
        busy_thread(0.1)


def _create_bucket(port: int, name: str) -> bool:
    """Whether it exists and can be written. Requests without a signature are accepted: no identities are configured."""
    try:
        for method, path, body in (
            ("PUT", f"/{name}", None),
            ("PUT", f"/{name}/ready", "x"),
            ("GET", f"/{name}/ready", None),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request(method, path, body)
            status = connection.getresponse().status
            connection.close()
            if status not in (200, 409):
                return False
    except (OSError, http.client.HTTPException):
        return False
    return True


def _create_container(port: int) -> bool:
    import base64
    import hashlib
    import hmac
    from email.utils import formatdate

    date, version = formatdate(usegmt=True), "2021-08-06"
    headers = {"x-ms-date": date, "x-ms-version": version}
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/jobs\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{version}", resource])
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("PUT", f"/{AZURE_ACCOUNT}/jobs?restype=container", headers=headers)
        status = connection.getresponse().status
        connection.close()
    except (OSError, http.client.HTTPException):
        connection.close()
        return False
    return status in (201, 409)
