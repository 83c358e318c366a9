"""Requests nobody would think of, made from the API's own description: none may end in a 500 or in an answer the description does not know."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.server.rest_live import Live, live

SEED = 8600
BUDGET_S = 20.0
EXAMPLES_MIN, EXAMPLES_MAX = 2, 6
"""Requests of one operation and one kind, valid or invalid: however slow the machine, and however fast."""
WAIT_S = 0.05
"""Nobody here waits a minute for a result."""
SKIPPED = {"stream"}
"""It does not end; tests/server/test_rest_stream.py has it."""


def explore(url: str, session: requests.Session) -> dict[str, int]:
    """How many requests each operation got."""
    import schemathesis
    from schemathesis.generation import GenerationMode

    schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json")
    schema.config.update(base_url=url)
    operations = [found.ok() for found in schema.get_all_operations()]
    operations = [o for o in operations if o.definition.raw["operationId"] not in SKIPPED]
    began, asked = time.monotonic(), dict[str, int]()
    for number, operation in enumerate(operations):
        share_s = (BUDGET_S - (time.monotonic() - began)) / (len(operations) - number)
        asked[operation.label] = sum(_try(operation, session, mode, share_s / 2) for mode in GenerationMode)
    return asked


def _try(operation: Any, session: requests.Session, mode: Any, within_s: float) -> int:
    from schemathesis import checks as common
    from schemathesis.specs.openapi import checks

    checked = [
        common.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    until, count, failed = time.monotonic() + within_s, 0, False

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES_MAX,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=False,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def probe(case: Any) -> None:
        nonlocal count, failed
        if failed or count < EXAMPLES_MIN or time.monotonic() < until:  # a failure is asked for again, to be reported
            count += 1
            if isinstance(case.query.get("wait"), int | float):
                case.query["wait"] = min(case.query["wait"], WAIT_S)
            try:
                case.call_and_validate(checks=checked, session=session)
            except Exception:
                failed = True
                raise

    probe()
    return count


@pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module"
)  # the engine does, in its own thread, at the same time
async def test_no_request_made_from_the_description_breaks_the_server(dsn: str) -> None:
    async with live(dsn) as api:
        await _something_to_find(api)
        with requests.Session() as session:
            asked = await asyncio.to_thread(explore, api.url, session)
        assert len(asked) > 25
        assert all(asked.values()), asked
        assert (await api.get("/whoami"))["subject"] == "dev"


async def _something_to_find(api: Live) -> None:
    await api.ended("rest_sum", input={"x": 1}, key="0")
    await api.ended("rest_fail", input={"why": "so"})
    await api.start("rest_listen", attributes={"env": "prod"})
