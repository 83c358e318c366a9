"""Deploys a flow and runs it with an executor, in one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from perdure import Perdure, flow
from perdure.engine.api.ports import Deployment
from perdure.executors.port import Executor
from perdure.flows.compile import compile_value, version_of
from perdure.store.definitions import PostgresDefinitions

DOCS = Path(__file__).parents[2] / "docs" / "how-to"


async def deploy(dsn: str, ns: int, text: str) -> str:
    document = yaml.safe_load(text)
    compiled = compile_value(document).flow
    registry = PostgresDefinitions(dsn)
    await registry.open()
    try:
        deployment = Deployment(
            name=compiled.name,
            version=version_of(document),
            kind=compiled.kind,
            description=None,
            document=msgspec.json.encode(document),
            source=text,
        )
        await registry.deploy(ns, deployment)
    finally:
        await registry.close()
    return compiled.name


async def run_flow(dsn: str, executor: Executor, text: str, **input: Any) -> Any:
    async with Perdure(dsn, executors=[executor]) as client:
        return await flow(await deploy(dsn, client.engine.ns, text)).run(**input)


def block(page: str, language: str) -> str:
    """The first block of a language on a how-to page."""
    found = re.search(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]
