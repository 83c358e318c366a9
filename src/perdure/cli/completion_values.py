"""Values for the shell's completion. A server that does not answer contributes none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.programs.http_client import HttpApi

Suggestions = list[tuple[str, str]]
RUNS_MAX = 20


def workflows(incomplete: str) -> Suggestions:
    return _asked(
        lambda api: [(w["name"], w["kind"]) for w in api.items("/workflows", [("q", incomplete)], limit=100)],
        incomplete,
    )


def runs(incomplete: str) -> Suggestions:
    found = _asked(
        lambda api: [(r["id"], f"{r['workflow']} {r['status']}") for r in api.items("/runs", limit=RUNS_MAX)],
        incomplete,
    )
    return [*found, *([("@last", "the run you started last")] if "@last".startswith(incomplete) else [])]


def _asked(ask: Callable[[HttpApi], Suggestions], incomplete: str) -> Suggestions:
    from perdure.app.discovery import server_token, server_url
    from perdure.core.errors import PerdureError
    from perdure.programs.credentials import Credentials
    from perdure.programs.http_client import HttpApi

    url = os.environ.get("PERDURE_URL") or server_url(Path.cwd())
    try:
        stored = Credentials().get(url)  # as it is: a completion does not wait for an identity provider
        key = os.environ.get("PERDURE_API_KEY") or server_token(url, Path.cwd()) or (stored.secret if stored else None)
        with HttpApi(url, key=key, namespace=os.environ.get("PERDURE_NAMESPACE")) as api:
            return [(name, help) for name, help in ask(api) if name.startswith(incomplete)]
    except PerdureError:
        return []
