"""The private PostgreSQL of a project: found, started and stopped by Perdure. On Linux and macOS."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.core.errors import Unavailable

if TYPE_CHECKING:
    from perdure.localpg.cluster import PrivateCluster


def private_cluster(directory: Path | None = None, settings: Mapping[str, str] | None = None) -> PrivateCluster:
    """Not started yet. By default that of the project in the current directory."""
    if os.name != "posix":
        raise Unavailable(
            "Perdure starts a PostgreSQL of its own on Linux and macOS only. Pass the DSN of one that runs, as in "
            "Perdure('postgresql://user:password@host/database')"
        )
    from perdure.localpg.cluster import PrivateCluster, default_directory  # what it stands on is not on Windows

    return PrivateCluster(directory or default_directory(), settings=settings)
