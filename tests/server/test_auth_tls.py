"""Certificates: with a client authority only those get a connection who have one of its certificates, people and workers alike."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import grpc
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from perdure.core.access import NewKey, Role
from perdure.programs.server_process import ServerProcess
from perdure.programs.settings import Address, ServerSettings, TlsFiles


class Authority:
    """Signs certificates into a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._cert = self._sign(name, self._key.public_key(), True)
        self.ca = directory / f"{name}.ca.pem"
        self.ca.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        cert, private = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        cert.write_bytes(self._sign(name, key.public_key(), False).public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert, private

    def _sign(self, name: str, public: ec.EllipticCurvePublicKey, is_authority: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, self._name)])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(is_authority, None), True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
            .sign(self._key, hashes.SHA256())
        )


@dataclass
class World:
    process: ServerProcess
    servers: Authority
    clients: Authority
    strangers: Authority
    key: str

    async def http(self, identity: tuple[Path, Path] | None) -> int:
        context = ssl.create_default_context(cafile=str(self.servers.ca))
        if identity is not None:
            context.load_cert_chain(*identity)
        async with httpx2.AsyncClient(verify=context, trust_env=False, timeout=120) as client:
            headers = {"authorization": f"Bearer {self.key}"}
            return (await client.get(f"{self.process.url}/api/v1/whoami", headers=headers)).status_code

    async def grpc(self, identity: tuple[Path, Path] | None, key: str | None) -> grpc.StatusCode:
        cert, private = (p.read_bytes() for p in identity) if identity is not None else (None, None)
        credentials = grpc.ssl_channel_credentials(self.servers.ca.read_bytes(), private, cert)
        metadata = [("authorization", f"Bearer {key}")] if key else []
        async with grpc.aio.secure_channel(str(self.process.grpc), credentials) as channel:
            try:
                await channel.unary_unary("/perdure.v1.Workers/Beat")(b"", metadata=metadata, timeout=5)
            except grpc.aio.AioRpcError as e:
                return e.code()
        return grpc.StatusCode.OK


@pytest.fixture
async def world(dsn: str, tmp_path: Path) -> AsyncIterator[World]:
    servers, clients, strangers = (Authority(tmp_path, name) for name in ("servers", "clients", "strangers"))
    cert, key = servers.issue("server")
    tls = TlsFiles(cert=cert, key=key, client_ca=clients.ca)
    anywhere = Address("127.0.0.1", 0)
    process = ServerProcess(ServerSettings(dsn=dsn, http=anywhere, grpc=anywhere, tls=tls, drain_s=5.0))
    await process.start()
    try:
        _, secret = await process.server.api.ports.keys.create(NewKey(name="w", role=Role.WORKER, created_by="test"))
        yield World(process, servers, clients, strangers, secret)
    finally:
        await process.stop()


async def test_people_need_a_certificate_of_the_client_authority(world: World) -> None:
    assert world.process.url.startswith("https://")
    assert await world.http(world.clients.issue("person")) == 200
    for identity in (None, world.strangers.issue("stranger"), world.servers.issue("another-server")):
        with pytest.raises(httpx2.TransportError):
            await world.http(identity)


async def test_workers_need_a_certificate_and_a_key(world: World) -> None:
    known = world.clients.issue("worker")
    assert await world.grpc(known, world.key) not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED)
    assert await world.grpc(known, None) is grpc.StatusCode.UNAUTHENTICATED, "a certificate does not replace the key"
    for identity in (None, world.strangers.issue("stranger"), world.servers.issue("another-server")):
        assert await world.grpc(identity, world.key) is grpc.StatusCode.UNAVAILABLE
