"""Podman of the tests' own, and images to stand in for those of a registry, which cannot be reached here: made with debootstrap from Debian's packages.

The stand-in for python:3.13-slim is Debian 13 with its own Python 3.13, slimmed as Debian's slim images are. That for PostgreSQL has an entry point
that does what compose.yaml uses of the official image's; Prometheus is Debian's package in the same image. There is none for Grafana.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.supervisor import TEMPORARY

SUITE = "trixie"
BASES = Path(os.environ.get(TEMPORARY, tempfile.gettempdir())) / f"perdure-bases-{SUITE}-1"
"""Archives of the stand-ins, kept between runs, so beside the temporary directory of this one: making them takes a minute or two. The number changes with what is in them."""
DEBOOTSTRAP_S_MAX = 600
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NEEDED = ("podman", "runc", "debootstrap", "/usr/lib/podman/netavark", "/usr/lib/podman/aardvark-dns")
SKIP = (
    "set PERDURE_IMAGES=1: building images takes minutes (`just image-test`)"
    if os.environ.get("PERDURE_IMAGES") != "1"
    else "podman with netavark and aardvark-dns (names in a network), runc and debootstrap are not installed, or the tests do not run as root"
    if not all(map(shutil.which, NEEDED)) or os.getuid() != 0
    else ""
)
PACKAGES = {
    "python": ["python3", "python3-venv", "python-is-python3"],
    "services": ["postgresql", "prometheus"],
}
# What Debian's slim images leave out, caches, and LLVM, with which PostgreSQL compiles queries if `jit` is on.
UNWANTED = (
    "usr/share/doc/*",
    "usr/share/man/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/lib/*/libLLVM*",
    "var/lib/apt/lists/*",
    "var/cache/apt/*",
    "var/log/*",
)
CONTAINERS_CONF = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[network]
network_backend = "netavark"
network_config_dir = "{root}/networks"
"""
STORAGE_CONF = """\
[storage]
driver = "{driver}"
graphroot = "{root}/graph"
runroot = "{root}/run"
"""


def call(*words: str | Path, timeout_s: float = 300, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=timeout_s, env=env, cwd=ROOT)
    assert done.returncode == 0, f"{' '.join(map(str, words))}:\n{done.stdout}{done.stderr}"
    return done.stdout


class Podman:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "networks").mkdir()
        (root / "containers.conf").write_text(CONTAINERS_CONF.format(root=root))
        self.driver = "overlay" if can_overlay(root) else "vfs"
        (root / "storage.conf").write_text(STORAGE_CONF.format(root=root, driver=self.driver))
        self.env = os.environ | {
            "CONTAINERS_CONF": str(root / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(root / "storage.conf"),
        }

    def run(self, *words: str | Path, timeout_s: float = 300) -> str:
        return call("podman", *words, env=self.env, timeout_s=timeout_s)

    def fails(self, *words: str | Path) -> str:
        done = subprocess.run(
            ["podman", *map(str, words)], env=self.env, capture_output=True, text=True, timeout=120, cwd=ROOT
        )
        assert done.returncode != 0, done.stdout
        return done.stderr

    def import_bases(self) -> None:
        archives = bases()
        self.run("import", "--quiet", archives["python"], "localhost/base")
        self.run("import", "--quiet", archives["services"], "localhost/services")
        for name in ("postgres", "prometheus"):
            file = HERE / f"{name}.Dockerfile"
            self.run("build", "--quiet", "--format=docker", "--tag", f"localhost/{name}", "--file", file, HERE)

    def build(self, tag: str) -> None:
        """As anyone does, but that the build trusts the certificates that this machine trusts: there may be a proxy before the index."""
        trusted = ("--layers=false", "--volume", "/etc/ssl/certs:/etc/ssl/certs:ro")
        call("just", "image", "localhost/base", tag, "mail objects otel", *trusted, env=self.env, timeout_s=580)

    def close(self) -> None:
        self.run("rm", "--all", "--force", "--volumes", "--time", "0")
        self.run("network", "prune", "--force")
        self.run("rmi", "--all", "--force")
        shutil.rmtree(self.root, ignore_errors=True)


def can_overlay(root: Path) -> bool:
    """vfs, the alternative, copies a whole image for each container."""
    layers = [root / f"try-{name}" for name in ("lower", "upper", "work", "merged")]
    for layer in layers:
        layer.mkdir()
    lower, upper, work, merged = layers
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    tried = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(merged)], capture_output=True)
    if tried.returncode == 0:
        call("umount", merged)
    return tried.returncode == 0


def bases() -> dict[str, Path]:
    archives = {name: BASES / f"{name}.tar" for name in PACKAGES}
    if not all(archive.exists() for archive in archives.values()):
        shutil.rmtree(BASES, ignore_errors=True)
        BASES.mkdir()
        minimal = BASES / "minimal"
        call(
            "debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, minimal, timeout_s=DEBOOTSTRAP_S_MAX
        )
        for name, archive in archives.items():
            make_base(minimal, archive, PACKAGES[name])
        shutil.rmtree(minimal)
    return archives


def make_base(minimal: Path, archive: Path, packages: list[str]) -> None:
    tree = archive.with_suffix("")
    call("cp", "--archive", minimal, tree)
    clusters = tree / "etc/postgresql-common/createcluster.conf"
    clusters.parent.mkdir()
    clusters.write_text("create_main_cluster = false\n")
    call("chroot", tree, "apt-get", "update", "-qq")
    quietly = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends")
    call("chroot", tree, *quietly, *packages)
    for pattern in UNWANTED:
        for unwanted in tree.glob(pattern):
            shutil.rmtree(unwanted) if unwanted.is_dir() and not unwanted.is_symlink() else unwanted.unlink()
    call("tar", "--directory", tree, "--create", "--file", archive.with_suffix(".new"), ".")
    archive.with_suffix(".new").rename(archive)
    shutil.rmtree(tree)
