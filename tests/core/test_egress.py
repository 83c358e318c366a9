"""Which addresses `http:` may connect to: by rule, and on real sockets."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.core.egress import LOOPBACK, Egress
from perdure.core.retry import End
from perdure.errors import InvalidInput
from tests.sdk.test_builtin_tasks import Bench

CLOSED = [
    ("127.0.0.1", "loopback"),
    ("127.255.0.9", "loopback"),
    ("0.0.0.0", "this machine"),
    ("10.1.2.3", "private"),
    ("172.16.0.1", "private"),
    ("192.168.1.1", "private"),
    ("169.254.169.254", "metadata"),
    ("100.64.0.1", "CGNAT"),
    ("100.127.255.255", "CGNAT"),
    ("192.0.0.8", "reserved"),
    ("192.0.2.1", "private or reserved"),
    ("192.88.99.1", "6to4 relay"),
    ("198.18.0.1", "private or reserved"),
    ("224.0.0.1", "multicast"),
    ("239.1.1.1", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
    ("::", "this machine"),
    ("::1", "loopback"),
    ("::ffff:127.0.0.1", "loopback"),
    ("::ffff:a9fe:a9fe", "metadata"),
    ("::127.0.0.1", "loopback"),
    ("fe80::1", "link-local"),
    ("fe80::1%eth0", "link-local"),
    ("fc00::1", "private"),
    ("fd00:ec2::254", "private"),
    ("fec0::1", "not an address of the public internet"),
    ("ff02::1", "multicast"),
    ("2001:db8::1", "reserved"),
    ("3fff::1", "documentation"),
    ("64:ff9b::7f00:1", "leads to 127.0.0.1"),
    ("64:ff9b::10.0.0.1", "leads to 10.0.0.1"),
    ("64:ff9b:1::1", "public internet"),
    ("2002:7f00:1::", "leads to 127.0.0.1"),
    ("2002:a9fe:a9fe::1", "leads to 169.254.169.254"),
    ("2001:0:7f00:1::1", "reserved"),
    ("100::1", "reserved"),
    ("5f00::1", "public internet"),
]


@pytest.mark.parametrize(("address", "said"), CLOSED)
def test_addresses_beyond_the_public_internet_are_refused_with_their_kind(address: str, said: str) -> None:
    refusal = Egress().refusal("name.example", ["93.184.215.14", address], 80)
    assert refusal is not None and said in refusal and f"name.example is {address}" in refusal
    assert Egress(["name.example"]).refusal("name.example", [address], 80) is None


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "64:ff9b::1.1.1.1", "2002:101:101::1", "::ffff:1.1.1.1"]
)
def test_the_public_internet_is_open(address: str) -> None:
    assert Egress().refusal("name.example", [address], 443) is None


@pytest.mark.parametrize(
    ("entry", "host", "address", "port", "open_"),
    [
        ("10.0.0.0/8", "a", "10.9.9.9", 1, True),
        ("10.0.0.0/8", "a", "192.168.0.1", 1, False),
        ("10.0.0.0/8", "a", "::ffff:10.0.0.1", 1, True),
        ("10.0.0.0/8", "a", "64:ff9b::10.0.0.1", 1, True),
        ("127.0.0.1", "localhost", "127.0.0.1", 1, True),
        ("127.0.0.1", "localhost", "127.0.0.2", 1, False),
        ("127.0.0.1:81", "localhost", "127.0.0.1", 81, True),
        ("127.0.0.1:81", "localhost", "127.0.0.1", 80, False),
        ("::1", "x", "::1", 1, True),
        ("[::1]:81", "x", "::1", 81, True),
        ("[::1]:81", "x", "::1", 82, False),
        ("fd00::/8", "x", "fd12::1", 1, True),
        ("Inner.Example", "inner.example.", "10.0.0.1", 1, True),
        ("inner.example:81", "inner.example", "10.0.0.1", 80, False),
        ("inner.example", "sub.inner.example", "10.0.0.1", 1, False),
        ("*.inner.example", "sub.inner.example", "10.0.0.1", 1, True),
        ("*.inner.example", "inner.example", "10.0.0.1", 1, False),
        ("*.inner.example", "evilinner.example", "10.0.0.1", 1, False),
    ],
)
def test_entries_allow_hosts_addresses_networks_and_ports(
    entry: str, host: str, address: str, port: int, open_: bool
) -> None:
    assert (Egress([entry]).refusal(host, [address], port) is None) is open_


@pytest.mark.parametrize(
    "entry", ["10.0.0.1/8", "a/b", "host:0", "host:x", "host:70000", "*", "*.", "a b", "[::1", "http://a"]
)
def test_an_entry_that_cannot_be_read_is_named(entry: str) -> None:
    with pytest.raises(InvalidInput, match="http_allow: cannot read"):
        Egress([entry])


def test_loopback_is_this_machine_and_no_more() -> None:
    egress = Egress(LOOPBACK)
    assert egress.refusal("localhost", ["127.0.0.1", "::1"], 1) is None
    assert egress.refusal("a", ["10.0.0.1"], 1) is not None


# -- on sockets ------------------------------------------------------------------------------------------------------------


class Listener:
    """Counts connections and answers each request with `answer`."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi") -> None:
        self.answer, self.requests, self.port = answer, [b""][:0], 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(
    host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[Listener]:
    made = Listener(**options)
    server = await asyncio.start_server(made.serve, host, port, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "0", "localhost", "127.1"])
async def test_no_spelling_of_this_machine_is_reached(host: str) -> None:
    async with listening() as there, Bench() as b:
        report = await b.report("perdure.http", url=f"http://{host}:{there.port}/secret?token=x")
        assert report.end is End.FINAL_ERROR and report.failure is not None
        assert report.failure.type == "AddressRefused"
        assert f"GET http://{host}:{there.port}/secret is refused: " in report.failure.message
        assert f"--http-allow {host}:{there.port} or PERDURE_HTTP_ALLOW={host}:{there.port}" in report.failure.message
        assert "token" not in report.failure.message
        assert there.requests == []


async def test_what_is_allowed_is_reached_and_nothing_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as open_, listening() as closed:
        async with Bench(http_allow=[f"127.0.0.1:{open_.port}"]) as b:
            assert (await b.value("perdure.http", url=f"http://localhost:{open_.port}"))["body"] == "hi"
            assert (await b.report("perdure.http", url=f"http://localhost:{closed.port}")).end is End.FINAL_ERROR
        monkeypatch.setenv("PERDURE_HTTP_ALLOW", "10.0.0.0/8, 127.0.0.0/8")
        async with Bench() as b:
            assert (await b.value("perdure.http", url=f"http://127.0.0.1:{closed.port}"))["status"] == 200
        with pytest.raises(InvalidInput, match="http_allow"):
            Bench(http_allow=["10.0.0.1/8"])


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[str]]]:
    """Answers in turn: the last one stays."""
    answers: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name in answers:
            found = answers[name]
            host = found.pop(0) if len(found) > 1 else found[0]
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return answers


async def test_a_name_that_resolves_differently_the_second_time_gets_nowhere(resolver: dict[str, list[str]]) -> None:
    """DNS rebinding: the address that is connected to is the one that was checked."""
    async with (
        listening() as secret,
        listening("127.0.0.2", secret.port) as public,
        Bench(http_allow=["127.0.0.2"]) as b,
    ):
        resolver["rebind.example"] = ["127.0.0.2", "127.0.0.1"]
        url = f"http://rebind.example:{secret.port}/"
        assert (await b.value("perdure.http", url=url))["body"] == "hi"
        assert f"host: rebind.example:{secret.port}" in public.requests[0].decode().lower()
        report = await b.report("perdure.http", url=url)
        assert report.end is End.FINAL_ERROR and report.failure is not None
        assert "rebind.example is 127.0.0.1, and 127.0.0.1 is a loopback address" in report.failure.message
        assert secret.requests == [] and len(public.requests) == 1


async def test_every_hop_of_a_redirect_is_checked(resolver: dict[str, list[str]]) -> None:
    """It stays at the same host, whose address changes."""
    to = b"HTTP/1.1 302 Found\r\nlocation: /next\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    async with listening() as secret, listening("127.0.0.2", secret.port, answer=to) as public:
        async with Bench(http_allow=["127.0.0.2"]) as b:
            resolver["hop.example"] = ["127.0.0.2", "127.0.0.1"]
            report = await b.report("perdure.http", url=f"http://hop.example:{secret.port}/")
            assert report.failure is not None and report.failure.type == "AddressRefused"
            assert len(public.requests) == 1 and secret.requests == []


async def test_the_address_of_a_service_is_open_to_its_calls_only() -> None:
    done = b'{"result": 7, "error": ""}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(done), done)
    async with listening(answer=answer) as there, Bench(services={"s": f"http://127.0.0.1:{there.port}"}) as b:
        assert await b.value("perdure.http", service="s", body=1) == 7
        report = await b.report("perdure.http", url=f"http://127.0.0.1:{there.port}/admin")
        assert report.failure is not None and report.failure.type == "AddressRefused"
        assert len(there.requests) == 1


async def test_tls_verifies_the_name_and_not_the_address(
    resolver: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = certificate("named.example", tmp_path)
    seen: list[str | None] = []
    context.sni_callback = lambda _, name, __: seen.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    resolver["named.example"] = resolver["other.example"] = ["127.0.0.1"]
    async with listening(tls=context) as there, Bench(http_allow=["127.0.0.1"]) as b:
        assert (await b.value("perdure.http", url=f"https://named.example:{there.port}"))["body"] == "hi"
        report = await b.report("perdure.http", url=f"https://other.example:{there.port}")
        assert (
            report.end is End.ERROR and report.failure is not None and "CERTIFICATE" in report.failure.message.upper()
        )
        assert seen == ["named.example", "other.example"]


def certificate(name: str, directory: Path) -> ssl.SSLContext:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (directory / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "key.pem").write_bytes(private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    return context
