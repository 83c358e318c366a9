"""Writes docs/reference/openapi.json from the routes of the server: `uv run python docs/openapi.py`.

tests/server/test_rest_openapi.py compares the committed file with what this would write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from perdure.server.rest.app import application

PAGE = Path(__file__).parent / "reference" / "openapi.json"


def document() -> str:
    return json.dumps(application().openapi(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    PAGE.write_text(document(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
