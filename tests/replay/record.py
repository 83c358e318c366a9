"""Record golden histories that are not there yet: `python -m tests.replay.record`. Existing files are never touched."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from perdure import Handle, TestEnv
from perdure.testing.replayer import export_history
from tests.replay import workflows as w

HERE = Path(__file__).parent / "histories"
ROOT = Path(__file__).parents[2]


async def save(name: str, handle: Handle[object]) -> None:
    path = HERE / f"{name}.json"
    if not path.exists():
        text = (await export_history(handle)).decode()
        for place in (str(ROOT) + "/", sys.prefix + "/", sys.base_prefix + "/"):
            text = text.replace(place, "")  # tracebacks name files; where they lie is nobody's business
        path.write_text(text)
        print("recorded", path.name)


async def until_ended(env: TestEnv, handle: Handle[object]) -> None:
    for _ in range(50):
        if await handle.status() not in ("pending", "running"):
            return
        await env.advance("1h")


async def main() -> None:
    async with TestEnv() as env:
        for workflow, argument in (
            (w.chained, w.Order("apple", 3)),
            (w.fanned, 8),
            (w.timed, "2h"),
            (w.leaf, 21),
            (w.parent, 5),
            (w.failing, 1),
        ):
            handle = await env.start(workflow, argument)  # type: ignore[arg-type]
            await until_ended(env, handle)
            await save(f"{workflow.name}-1", handle)
        handle = await env.start(w.messaged, 1)
        await w.note.send(handle.id, "one")
        await w.note.send(handle.id, "two")
        await env.advance("1m")
        await w.approve.resolve(handle.id, True)
        await until_ended(env, handle)
        await save("messaged-1", handle)
        handle = await env.start(w.cancelled, 1)
        await handle.cancel("enough")
        await until_ended(env, handle)
        await save("cancelled-1", handle)
        handle = await env.start(w.renewed, 2)
        await until_ended(env, handle)
        await save("renewed-1", handle)
        handle = await env.start(w.witness, 1)
        sleeper = await env.client.start_workflow(w.sleeper.options(id="sleeper-of-witness-1", on_conflict="attach"), 1)
        await sleeper.cancel("by somebody else")
        await until_ended(env, handle)
        await save("witness-1", handle)
        handle = await env.start(w.persistent, 1)
        for mended in ("part", "patience", "child"):
            await until_ended(env, handle)
            w.mended.add(mended)
            await handle.retry()
        await until_ended(env, handle)
        await save("persistent-1", handle)
        waiting = await env.start(w.messaged, 2)
        await w.note.send(waiting.id, "only one")
        await env.advance("1m")
        await save("messaged-waiting-1", waiting)


if __name__ == "__main__":
    asyncio.run(main())
