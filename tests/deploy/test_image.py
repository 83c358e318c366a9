"""The image of Dockerfile, built by `just image` on a stand-in base (see images.py) and run by Podman."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.deploy.conftest import IMAGE
from tests.deploy.images import Podman

BYTES_MAX = 250 * 10**6
UID = "10001"


@pytest.fixture
def config(podman: Podman) -> dict[str, Any]:
    (inspected,) = json.loads(podman.run("image", "inspect", IMAGE))
    return dict(inspected)


def test_it_is_small(config: dict[str, Any], record_property: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nimage: {config['Size'] / 1e6:.0f} MB")
    assert 50 * 10**6 < config["Size"] < BYTES_MAX


def test_it_runs_as_a_user_who_may_write_nothing(podman: Podman, config: dict[str, Any]) -> None:
    assert config["Config"]["User"] == f"{UID}:{UID}"
    shell = ("run", "--rm", "--entrypoint", "sh")
    assert podman.run(*shell, IMAGE, "-c", "id -u; id -g").split() == [UID, UID]
    places = "$(python -c 'import perdure; print(perdure.__path__[0])') /opt/perdure /app / /etc /usr/local"
    found = podman.run(*shell, IMAGE, "-c", f"for d in {places}; do [ -w $d ] && echo $d; done; true")
    assert found == ""


def test_its_root_file_system_may_be_read_only(podman: Podman) -> None:
    assert podman.run("run", "--rm", "--read-only", IMAGE, "--version").startswith("perdure ")
    refused = podman.fails("run", "--rm", "--read-only", "--user", "0", "--entrypoint", "touch", IMAGE, "/etc/new")
    assert "Read-only file system" in refused


def test_what_it_needs_is_compiled_and_pip_is_gone(podman: Podman) -> None:
    """Nothing may be written when it runs, so what is not compiled would be compiled at every start."""
    program = (
        "import sys, perdure.programs.server_process, perdure.programs.worker_process as w, pathlib;"
        "print(sum(not pathlib.Path(m.__cached__).exists() for m in list(sys.modules.values())"
        " if getattr(m, '__cached__', None) and '/opt/perdure' in m.__cached__), len(sys.modules))"
    )
    missing, loaded = map(int, podman.run("run", "--rm", "--entrypoint", "python", IMAGE, "-c", program).split())
    assert missing == 0 and loaded > 500
    assert "No module named pip" in podman.fails("run", "--rm", "--entrypoint", "python", IMAGE, "-m", "pip")


def test_the_dependencies_are_the_locked_ones(podman: Podman) -> None:
    program = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"
    there = {
        w.lower().replace("_", "-")
        for w in podman.run("run", "--rm", "--entrypoint", "python", IMAGE, "-c", program).split()
    }
    assert {w.partition("==")[0] for w in there} > {"perdure", "perdure-core", "asyncpg", "grpcio", "obstore"}
    assert there & {"pytest", "ruff", "mypy"} == set()


def test_the_health_check_says_no_while_a_server_does_not_answer(podman: Podman) -> None:
    check = podman.run("image", "inspect", IMAGE, "--format", "{{json .Config.Healthcheck.Test}}")
    assert json.loads(check) == ["CMD", "python", "-m", "perdure.programs.probe"]
    # A server that waits for a database that is not there.
    name = podman.run(
        "run", "--detach", "--entrypoint", "python", IMAGE, "-c", "import signal; signal.pause()", "server"
    ).strip()
    refused = podman.fails("exec", name, "python", "-m", "perdure.programs.probe")
    assert "the server does not answer on port 8600" in refused
    podman.run("rm", "--force", "--time", "0", name)
