"""A Kubernetes control plane on loopback, with kubelet.py as its only node.

With PERDURE_KUBERNETES, the directory of the binaries that build_kubernetes.sh makes, it is the real kube-apiserver, kube-controller-manager and
etcd; without it, kubernetes_emulator takes their place.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.fakes.waiting import busy_thread
from tests.object_stores import free_port

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
READY_S = 120.0
TOKEN = "test-token"
ROOT = Path(__file__).parents[2]


def programs() -> Path | None:
    """Where the real control plane is; None: the emulator is used."""
    given = os.environ.get("PERDURE_KUBERNETES")
    if not given:
        return None
    missing = [name for name in PROGRAMS if not (Path(given) / name).exists()]
    assert not missing, f"PERDURE_KUBERNETES is {given}, which has no {', '.join(missing)}"
    return Path(given)


@dataclass(frozen=True)
class Cluster:
    port: int
    folder: Path
    """Where the node keeps logs; a file `evict-JOB` evicts a pod. For files of the emulator see its server.py."""

    def kubeconfig(self, path: Path, port: int) -> str:
        path.write_text(json.dumps(_kubeconfig(port)))
        return str(path)


def _kubeconfig(port: int) -> dict[str, object]:
    server = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }


@contextmanager
def cluster(folder: Path, place: Path | None = None) -> Iterator[Cluster]:
    """`place` has the programs of the real control plane; None: the emulator."""
    folder.mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    port, kubelet_port, pem = free_port(), free_port(), _certificate(folder)
    try:
        if place is None:
            _start_emulator(folder, port, pem, started)
        else:
            _start_control_plane(place, folder, port, started)
        request(port, "POST", "/api/v1/nodes", _node(kubelet_port))
        request(port, "PATCH", "/api/v1/nodes/local/status", {"status": _node(kubelet_port)["status"]})
        command = [sys.executable, "-m", "tests.executors.kubelet", f"https://127.0.0.1:{port}", TOKEN, str(folder)]
        started.append(_spawn([*command, str(kubelet_port), pem], folder / "kubelet.txt"))
        yield Cluster(port, folder)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start_emulator(folder: Path, port: int, pem: str, started: list[subprocess.Popen[bytes]]) -> None:
    log = folder / "emulator.txt"
    command = [sys.executable, "-m", "tests.executors.kubernetes_emulator.server", str(port), TOKEN, str(folder), pem]
    started.append(_spawn(command, log))
    _await_ready(port, started[-1], log)


def _start_control_plane(place: Path, folder: Path, port: int, started: list[subprocess.Popen[bytes]]) -> None:
    client, peer = free_port(), free_port()
    etcd = f"http://127.0.0.1:{client}"
    peers = f"http://127.0.0.1:{peer}"
    flags = ["--data-dir", str(folder / "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd]
    flags += [
        "--listen-peer-urls",
        peers,
        "--initial-advertise-peer-urls",
        peers,
        "--initial-cluster",
        f"default={peers}",
    ]
    started.append(_spawn([str(place / "etcd"), *flags, "--unsafe-no-fsync"], folder / "etcd.txt"))
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    tokens = folder / "tokens.csv"
    tokens.write_text(f"{TOKEN},test,test,system:masters\n")
    flags = [
        f"--etcd-servers={etcd}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={folder / 'certificates'}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=AlwaysAllow",
        "--disable-admission-plugins=ServiceAccount",
        "--service-account-issuer=https://test",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--feature-gates=TTLAfterFinished=true",
        "--endpoint-reconciler-type=none",
        "--kubelet-preferred-address-types=InternalIP",
    ]
    started.append(_spawn([str(place / "kube-apiserver"), *flags], folder / "apiserver.txt"))
    _await_ready(port, started[-1], folder / "apiserver.txt")
    config = folder / "kubeconfig"
    config.write_text(json.dumps(_kubeconfig(port)))
    flags = [f"--kubeconfig={config}", "--controllers=job,garbagecollector,ttl-after-finished", "--leader-elect=false"]
    flags += ["--port=0", "--secure-port=0", "--feature-gates=TTLAfterFinished=true", "--concurrent-gc-syncs=2"]
    started.append(_spawn([str(place / "kube-controller-manager"), *flags], folder / "controller.txt"))


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, start_new_session=True)


def _await_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            request(port, "GET", "/readyz")
            request(port, "GET", "/api/v1/namespaces/default")
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3_000:]
            busy_thread(0.2)


def request(port: int, method: str, path: str, body: object = None) -> bytes:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    if method == "PATCH":
        headers["Content-Type"] = "application/merge-patch+json"
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", data, headers, method=method)
    context = ssl._create_unverified_context()
    with urllib.request.urlopen(request, timeout=10, context=context) as response:
        return bytes(response.read())


def _node(kubelet_port: int) -> dict[str, object]:
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "local"}, "status": status}


def _certificate(folder: Path) -> str:
    """Of the node, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local")])
    began = datetime.now(UTC) - timedelta(days=1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(began)
    signed = builder.not_valid_after(began + timedelta(days=30)).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "node.pem"
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return str(path)
