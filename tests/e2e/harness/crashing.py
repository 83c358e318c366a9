"""A workflow whose code ends its worker, and one that does not."""

from __future__ import annotations

import os

from perdure import Signal, workflow

settled = Signal("crashing_settled", str)


@workflow(name="crashing_code")
async def crashing() -> None:
    os._exit(1)


@workflow(name="crashing_neighbour")
async def neighbour() -> str:
    return await settled.next()
