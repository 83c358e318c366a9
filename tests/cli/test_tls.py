"""Certificates for both doors, and for both sides."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.cli.live import perdure
from tests.cli.processes import free_port, started

pytestmark = pytest.mark.usefixtures("processes")

FLOWS = """
from perdure import task, workflow

@task
def quick() -> str:
    return "done"

@workflow
async def promptly() -> str:
    return await quick()
"""


@dataclass
class Pair:
    cert: Path
    key: Path


class Authority:
    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.cert = directory / f"{name}.pem"
        self._certificate = self._signed(self._name, self._key, is_authority=True)
        self.cert.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def pair(self, name: str) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self._signed(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), key)
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        pair.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def _signed(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, is_authority: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


@pytest.mark.parametrize("mutual", [False, True])
def test_both_doors_speak_tls(dsn: str, tmp_path: Path, mutual: bool) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)
    authority = Authority(tmp_path, "authority")
    server, client = authority.pair("server"), authority.pair("client")
    http, grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    words = ["--dsn", dsn, "--http", http, "--grpc", grpc, "--auth", "open"]
    words += ["--tls-cert", str(server.cert), "--tls-key", str(server.key)]
    trusting = {"PERDURE_CA": str(authority.cert)}
    known = {"PERDURE_CLIENT_CERT": str(client.cert), "PERDURE_CLIENT_KEY": str(client.key)}
    if mutual:
        words += ["--tls-client-ca", str(authority.cert)]
    us = trusting | (known if mutual else {})
    with started("server", *words, cwd=tmp_path) as process:
        assert f"https://{http}" in process.until("ready")
        with started("worker", "flows", "--server", grpc, cwd=tmp_path, **us) as worker:
            worker.until("connected")
            done = perdure("run", "promptly", "--watch", "--url", f"https://{http}", **us)
            assert done.code == 0, done.err
            assert worker.stop() == 0
        assert perdure("list", "--url", f"https://{http}").code == 5, "an unknown authority is not trusted"
        assert perdure("list", "--url", f"http://{http}").code == 5
        if mutual:
            assert perdure("list", "--url", f"https://{http}", **trusting).code == 5, "nobody without a certificate"
        assert perdure("list", "--url", f"https://{http}", PERDURE_CA=str(tmp_path / "no-such")).code == 2
        assert process.stop() == 0
