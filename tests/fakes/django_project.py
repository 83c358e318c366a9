"""The example application as processes of a test: its commands, on a database of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

EXAMPLE = Path(__file__).parents[2] / "examples" / "django_library"
BEFORE, AFTER = EXAMPLE / "before", EXAMPLE / "after"
COMMAND_S_MAX = 180


def environment(dsn: str, project: Path = AFTER) -> dict[str, str]:
    """The variables that its settings read, and where Python finds it."""
    parts = urlsplit(dsn)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "PERDURE_DSN", "DJANGO_"))}
    return kept | {
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port or ""),
        "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""),
        "PGDATABASE": parts.path.removeprefix("/"),
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "LIBRARY_EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend",
        "PYTHONPATH": os.pathsep.join([str(project), os.environ.get("PYTHONPATH", "")]),
    }


def manage(project: Path, dsn: str, *arguments: str) -> str:
    """`manage.py` of a project. Returns what it printed."""
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=project,
        env=environment(dsn, project) | {"PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    assert done.returncode == 0, f"manage.py {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
