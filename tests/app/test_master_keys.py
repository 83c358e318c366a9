"""Master keys behind a program and behind a server with the transit protocol. The server here is small and our own; no Vault runs."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from perdure import Perdure, workflow
from perdure.app.master_keys import master_keys
from perdure.core.errors import InvalidInput, PayloadKeyMissing
from perdure.core.master_keys import WrappedKey
from perdure.store.connections import connect

KEY = bytes(range(32))

PROGRAM = """#!{python}
import base64, sys
from cryptography.fernet import Fernet
keys = dict(line.split() for line in open({file!r}))
newest = list(keys)[-1]
if sys.argv[1] == "newest":
    print(newest)
elif sys.argv[1] == "wrap":
    print(newest, Fernet(keys[newest]).encrypt(base64.b64decode(sys.stdin.read())).decode())
elif sys.argv[2] not in keys:
    sys.exit("there is no key " + sys.argv[2])
else:
    print(base64.b64encode(Fernet(keys[sys.argv[2]]).decrypt(sys.stdin.read().encode())).decode())
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    keys, made = tmp_path / "keys", tmp_path / "wrap-key"
    keys.write_text(f"one {Fernet.generate_key().decode()}\n")
    made.write_text(PROGRAM.format(python=sys.executable, file=str(keys)))
    made.chmod(0o700)
    return made


@pytest.mark.usefixtures("interpreter")
async def test_a_program_wraps_and_unwraps(program: Path) -> None:
    keys = master_keys(f"command:{program}", os.environ)
    first = await keys.wrap(KEY)
    assert first.master == await keys.newest() == "one" and KEY not in first.data
    with program.with_name("keys").open("a") as f:
        f.write(f"two {Fernet.generate_key().decode()}\n")
    assert (await keys.wrap(KEY)).master == await keys.newest() == "two"
    assert await keys.unwrap(first) == KEY
    with pytest.raises(PayloadKeyMissing, match=r"unwrap` failed: exit code 1: there is no key three"):
        await keys.unwrap(WrappedKey("three", first.data))


async def test_a_program_that_is_not_there_says_so() -> None:
    with pytest.raises(PayloadKeyMissing, match=r"`/no/such wrap` failed: No such file"):
        await master_keys("command:/no/such", os.environ).wrap(KEY)


class Transit(BaseHTTPRequestHandler):
    """Of the transit protocol what the client uses: encrypt, decrypt and the version of the newest key."""

    keys: list[Fernet]
    token = "s.token"

    def do_GET(self) -> None:
        self._answer(200, {"data": {"latest_version": len(self.keys)}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["X-Vault-Token"] != self.token:
            self._answer(403, {"errors": ["permission denied"]})
        elif self.path == "/v1/transit/encrypt/perdure":
            sealed = self.keys[-1].encrypt(base64.b64decode(body["plaintext"])).decode()
            self._answer(200, {"data": {"ciphertext": f"vault:v{len(self.keys)}:{sealed}"}})
        else:
            _, version, sealed = body["ciphertext"].split(":")
            plain = self.keys[int(version[1:]) - 1].decrypt(sealed.encode())
            self._answer(200, {"data": {"plaintext": base64.b64encode(plain).decode()}})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def transit() -> Iterator[str]:
    Transit.keys = [Fernet(Fernet.generate_key())]
    server = HTTPServer(("127.0.0.1", 0), Transit)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"transit:http://127.0.0.1:{server.server_port}/v1/transit/perdure"
    server.shutdown()
    server.server_close()
    thread.join()


async def test_a_key_server_wraps_and_unwraps(transit: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s.token\n")
    keys = master_keys(transit, {"PERDURE_TRANSIT_TOKEN_FILE": str(token)})
    first = await keys.wrap(KEY)
    assert first.master == await keys.newest() == "v1"
    Transit.keys.append(Fernet(Fernet.generate_key()))
    assert (await keys.wrap(KEY)).master == await keys.newest() == "v2"
    assert await keys.unwrap(first) == KEY
    token.write_text("another\n")
    with pytest.raises(
        PayloadKeyMissing, match=r"\(key perdure\) did not answer as it should: 403 Forbidden: .*permission denied"
    ):
        await keys.unwrap(first)


@workflow
async def behind_a_server(text: str) -> str:
    return text


async def test_runs_are_encrypted_with_a_key_server(dsn: str, transit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_PAYLOAD_KEYS", transit)
    monkeypatch.setenv("VAULT_TOKEN", "s.token")
    for _ in range(2):
        async with Perdure(dsn) as client:
            assert await client.run(behind_a_server, "a secret of ours") == "a secret of ours"
    connection = await connect(dsn)
    try:
        bodies = [r["body"] for r in await connection.fetch("select body from perdure.history")]
        assert await connection.fetchval("select count(*) from perdure.payload_key where master = 'v1'") == 1
    finally:
        await connection.close()
    assert bodies and not any(b"secret" in body for body in bodies)


async def test_compression_works_without_encryption(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_PAYLOAD_COMPRESS", "500")
    async with Perdure(dsn) as client:
        assert await client.run(behind_a_server, "ab" * 5000) == "ab" * 5000
    connection = await connect(dsn)
    try:
        assert await connection.fetchval("select max(length(body)) from perdure.history") < 500
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/etc/keys", "does not say where the master keys are"),
        ("vault:https://x/y", "does not say where the master keys are"),
        ("transit:http://vault.example.com/v1/transit/k", "over the network in the clear: use https"),
        ("transit:https://", "is not the URL of a transit key"),
    ],
)
def test_a_setting_that_is_wrong_says_so(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        master_keys(text, {})
