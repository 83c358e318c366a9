"""`python -m perdure.programs.probe`: whether the server of this container is ready. For the health check of the image.

Exit code 0 if it is, or if the container has no server; 1 with the reasons otherwise.
"""

from __future__ import annotations

import os
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

PROBE_S: Final = 2.0
HTTP_DEFAULT: Final = "127.0.0.1:8600"
COMMAND: Final = Path("/proc/1/cmdline")
"""Of the container's first process."""


def main() -> int:
    words = COMMAND.read_bytes().split(b"\0") if COMMAND.exists() else []
    if b"server" not in words:
        return 0
    port = _port_of(words)
    connection = HTTPConnection("127.0.0.1", port, timeout=PROBE_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        print(f"the server does not answer on port {port}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        connection.close()
    if answer.status != 200:
        print(text, file=sys.stderr)  # noqa: T201
    return 0 if answer.status == 200 else 1


def _port_of(words: list[bytes]) -> int:
    """Of `--http HOST:PORT`, else of PERDURE_HTTP_BIND."""
    given = os.environ.get("PERDURE_HTTP_BIND", HTTP_DEFAULT)
    for n, word in enumerate(words):
        if word == b"--http" and n + 1 < len(words):
            given = words[n + 1].decode()
        elif word.startswith(b"--http="):
            given = word.removeprefix(b"--http=").decode()
    return int(given.rpartition(":")[2])


if __name__ == "__main__":
    sys.exit(main())
