"""A Podman of the tests' own: its service on a socket of its own, storage in a directory of its own, and an image made of busybox.

No registry is reached: the image is imported from a file, and names that cannot be pulled lead to a closed port of this machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path

from tests.fakes.waiting import busy_thread

IMAGE = "busybox"
NOWHERE = "localhost:1/nothing"
"""An image of a registry that does not answer."""
SKIP = (
    ""
    if all(map(shutil.which, ("podman", "runc", "busybox"))) and os.getuid() == 0
    else "podman, runc and busybox-static are not installed, or the tests do not run as root (`just setup` installs them)"
)
START_S = 60.0
PROGRAMS = (
    "sh",
    "cat",
    "echo",
    "sleep",
    "true",
    "seq",
    "env",
    "id",
    "head",
    "touch",
    "tr",
    "ls",
    "mv",
    "yes",
    "printf",
)
# vfs and limits below the machine's own: what works where overlays cannot be mounted and limits cannot be raised.
CONTAINERS_CONF = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
"""
STORAGE_CONF = """\
[storage]
driver = "vfs"
graphroot = "{root}/graph"
runroot = "{root}/run"
"""


class Podman:
    def __init__(self, root: Path) -> None:
        self.root, self.socket = root, root / "podman.sock"
        (root / "containers.conf").write_text(CONTAINERS_CONF)
        (root / "storage.conf").write_text(STORAGE_CONF.format(root=root))
        self._env = {
            **os.environ,
            "CONTAINERS_CONF": str(root / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(root / "storage.conf"),
        }
        self._service: subprocess.Popen[bytes] | None = None

    def run(self, *args: str) -> str:
        made = subprocess.run(
            ["podman", *args], env=self._env, cwd=self.root, capture_output=True, text=True, timeout=120
        )
        assert made.returncode == 0, made.stderr
        return made.stdout

    def import_image(self, name: str = IMAGE) -> None:
        archive = self.root / "busybox.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(shutil.which("busybox") or "", "bin/busybox")
            for program in PROGRAMS:
                link = tarfile.TarInfo(f"bin/{program}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
            for directory in ("tmp", "etc", "data"):
                entry = tarfile.TarInfo(directory)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o777
                tar.addfile(entry)
        self.run("import", "--quiet", str(archive), name)

    def start(self) -> None:
        """The service. It is in a session of its own, so that containers do not get its signals."""
        self.socket.unlink(missing_ok=True)
        with (self.root / "service.log").open("ab") as log:
            self._service = subprocess.Popen(
                ["podman", "system", "service", "--time=0", f"unix://{self.socket}"],
                env=self._env,
                cwd=self.root,  # where a file "oom" is left for a container that took too much memory
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + START_S
        while not self.socket.is_socket():
            assert self._service.poll() is None and time.monotonic() < until, (self.root / "service.log").read_text()
            busy_thread(0.05)

    def stop(self) -> None:
        """Containers go on: each has a parent of its own."""
        if self._service is not None:
            self._service.send_signal(signal.SIGKILL)
            self._service.wait(120)
            self._service = None

    def containers(self) -> list[str]:
        return self.run("ps", "--all", "--format", "{{.Names}}").split()

    def close(self) -> None:
        self.run("rm", "--all", "--force", "--volumes", "--time", "0")
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)
