"""The committed description of the API is the one that the code gives, and it is fit for client generators."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

from perdure.server.rest.app import application
from perdure.server.rest.problems import answered_errors
from tests.docs.pages import DOCS


def _generator() -> Any:
    spec = importlib.util.spec_from_file_location("docs_openapi", DOCS / "openapi.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_description_is_up_to_date() -> None:
    generator = _generator()
    assert generator.PAGE.read_text() == generator.document(), "run `uv run python docs/openapi.py`"


def _references(part: Any) -> set[str]:
    if isinstance(part, dict):
        own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*(_references(v) for v in part.values()))
    return set().union(*(_references(v) for v in part)) if isinstance(part, list) else set()


def test_every_reference_leads_somewhere_and_every_operation_is_described() -> None:
    document = application().openapi()
    schemas = document["components"]["schemas"]
    assert {r.removeprefix("#/components/schemas/") for r in _references(document)} <= set(schemas)
    names = [op["operationId"] for ops in document["paths"].values() for op in ops.values()]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names), names
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if status >= "400":
                    assert list(answer["content"]) == ["application/problem+json"], (operation["operationId"], status)
    assert "HTTPValidationError" not in json.dumps(document)


def test_every_code_has_a_status_and_a_meaning() -> None:
    found = answered_errors()
    assert len({kind.code for kind in found}) == len(found) > 30
    assert all(400 <= kind.http_status < 600 and kind.meaning().endswith(".") for kind in found)
