"""Pictures of every page for the documentation, from a server that `python -m tests.ui.seed` has filled.

    python -m tests.ui.screenshots SEED.json docs/images [PAGE...]

SEED.json is what the seed printed: its address, a key, and the ids of the runs that are shown.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.ui.conftest import CHROMIUM

SIZES = {"": {"width": 1440, "height": 900}, "-narrow": {"width": 390, "height": 844}}
THEMES = ("light", "dark")
SETTLED_MS = 2_500


def pages(runs: dict[str, str]) -> dict[str, str]:
    etl = f"/runs/{runs['etl']}"
    return {
        "runs": "/runs",
        "runs-failed": "/runs?view=Failed%20today",
        "start": "/runs?start=checkout-saga",
        "run": etl,
        "run-graph": f"{etl}?tab=graph",
        "run-history": f"{etl}?tab=history",
        "run-logs": f"{etl}?tab=logs",
        "run-failed": f"/runs/{runs['failed']}",
        "workflows": "/workflows",
        "workflow": "/workflows/nightly-etl",
        "workflow-editor": "/workflows/nightly-etl?tab=definition",
        "schedules": "/schedules?name=ledger-close",
        "approvals": "/approvals",
        "workers": "/workers",
        "limits": "/limits",
        "dead-letters": "/dead-letters",
        "events": "/events",
        "audit": "/audit",
        "settings": "/settings",
    }


def take(seed: dict[str, Any], out: Path, wanted: set[str]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for theme in THEMES:
            for suffix, size in SIZES.items():
                context = browser.new_context(
                    viewport=size, color_scheme=theme, reduced_motion="reduce", timezone_id="Europe/Paris"
                )  # type: ignore[arg-type]
                page = context.new_page()
                page.goto(f"{seed['url']}/signed-out")
                page.wait_for_timeout(500)
                if not wanted or "sign-in" in wanted:
                    page.screenshot(path=out / f"sign-in-{theme}{suffix}.png")
                answer = context.request.post(f"{seed['url']}/api/v1/session", data={"api_key": seed["admin"]})
                assert answer.ok, answer.text()
                for name, path in pages(seed["runs"]).items():
                    if not wanted or name in wanted:
                        one(page, seed["url"] + path, out / f"{name}-{theme}{suffix}.png")
                context.close()
        browser.close()


def one(page: Page, url: str, file: Path) -> None:
    page.goto(url)
    page.wait_for_timeout(SETTLED_MS)
    page.screenshot(path=file)
    print(file.name)


def main(arguments: list[str]) -> None:
    seed = json.loads(Path(arguments[0]).read_text())
    out = Path(arguments[1])
    out.mkdir(parents=True, exist_ok=True)
    take(seed, out, set(arguments[2:]))


if __name__ == "__main__":
    main(sys.argv[1:])
