"""A client of some version: `mixed_client.py ADDRESS begin PREFIX` starts one run of each kind, `... end PREFIX` brings them to their end.

Prints the results as JSON; `RESULTS` is what they have to be.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from harness import mixed
from perdure import Client, flow

RESULTS: dict[str, Any] = {
    "chain": 23,
    "spread": 2 * 30,
    "nap": 3,
    "asking": "well for 7",
    "updated": 12,
    "family": [3, 5, 0],
    "event": 9,
    "dag": 20,
    "graph": {"rounds": 4},
}
EVENT = 9


async def begin(client: Client, prefix: str) -> dict[str, Any]:
    starts = {
        "chain": mixed.mixed_chain.options(key=f"{prefix}chain").bind(5),
        "spread": mixed.mixed_spread.options(key=f"{prefix}spread").bind(5),
        "nap": mixed.mixed_nap.options(key=f"{prefix}nap").bind(),
        "asking": mixed.mixed_asking.options(key=f"{prefix}asking").bind(),
        "updated": mixed.mixed_updated.options(key=f"{prefix}updated").bind(),
        "family": mixed.mixed_family.options(key=f"{prefix}family").bind(),
        "event": mixed.mixed_event.options(key=f"{prefix}event").bind(EVENT),
        "dag": flow("mixed-dag").options(key=f"{prefix}dag").bind(base=5),
        "graph": flow("mixed-graph").options(key=f"{prefix}graph").bind(),
    }
    found = {name: (await client.start(bound)).id for name, bound in starts.items()}
    assert await client.update(mixed.add, found["updated"], 5, timeout="120s") == 5
    return found


async def end(client: Client, prefix: str) -> dict[str, Any]:
    handles = {name: await client.get(key=f"{prefix}{name}") for name in RESULTS}
    ids = {name: handle.id for name, handle in handles.items()}
    for name in ("chain", "spread", "dag", "graph", "graph", "graph"):
        await mixed.go.send(ids[name], "now")
    for number in range(2):
        await mixed.go.send(f"key:{prefix}family/{number}", "now")
    assert await client.update(mixed.add, ids["updated"], 7, timeout="120s") == 12
    await mixed.go.send(ids["updated"], "now")
    await mixed.terms.approve(ids["asking"], mixed.Terms(7), by="ada")
    await mixed.word.resolve(ids["asking"], "well")
    await mixed.delivered.emit({"number": EVENT})
    await mixed.ok.approve(ids["dag"], by="ada")
    async with asyncio.timeout(180):
        return {name: await handle.result() for name, handle in handles.items()}


async def main(address: str, what: str, prefix: str) -> None:
    async with Client(address) as client:
        print(json.dumps(await (begin if what == "begin" else end)(client, prefix)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
