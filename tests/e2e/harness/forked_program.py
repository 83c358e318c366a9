"""What a process of the fleet runs after its fork. What programs import only when they need it is imported here, before the fork."""

from __future__ import annotations

import os
import runpy
import socket
import sys
from typing import Any

import django.db.backends.postgresql.base  # noqa: F401

import perdure.app.embedded
import perdure.frameworks.django.worker
import perdure.frameworks.pydantic_ai
import perdure.programs.server_process
import perdure.programs.worker_process  # noqa: F401
from perdure.cli.main import main
from tests.fakes.killed_forks import Steps


def run_program(listener: socket.socket, arguments: dict[str, Any], steps: Steps) -> None:
    listener.close()
    for number, file in enumerate(arguments["files"], 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    os.environ.clear()
    os.environ.update(arguments["environment"])
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.argv = arguments["words"]
    try:
        main() if sys.argv[0] == "perdure" else runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
