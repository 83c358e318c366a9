"""The curl lines of the documentation are requests that a server understands."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.core import callbacks
from tests.docs.test_start import PAGES
from tests.server.rest_live import Live, live

DOCS = Path(__file__).parents[2] / "docs"
LINE = re.compile(r"^\$ (curl (?:.*\\\n)*.*)$", re.M)
LINES = [
    (f"{page.name}:{n}", line)
    for page in sorted(DOCS.rglob("*.md"))
    if str(page.relative_to(DOCS)) not in PAGES  # walked there
    for n, line in enumerate(LINE.findall(page.read_text()))
]


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as server:
        yield server


def test_there_are_some() -> None:
    assert len(LINES) >= 6


async def test_no_curl_line_is_refused_for_its_form(api: Live) -> None:
    """The runs and workflows that they name do not exist here, so 404 is an answer; 415 and 422 say that the request itself is wrong."""
    assert shutil.which("curl") is not None
    for place, line in LINES:
        line = re.sub(r"https?://[\w.:-]+", api.url, line)
        environment = os.environ | {
            "URL": api.url,
            "PERDURE_URL": api.url,
            "PERDURE_API_KEY": "key",
            "RUN": "@last",
            "body": "{}",
            "CALLBACK": f"{api.url}{callbacks.PATH}/no-such-token",
        }
        shell = await asyncio.create_subprocess_shell(
            f"{line} -s -o /dev/null -w '%{{http_code}}'", stdout=asyncio.subprocess.PIPE, env=environment
        )
        out, _ = await asyncio.wait_for(shell.communicate(), 60)
        assert int(out) in (200, 201, 202, 401, 404), (place, line, out)
