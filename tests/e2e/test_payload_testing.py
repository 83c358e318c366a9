"""Large values and blobs where runs are tested, replayed and retried: TestEnv, exported histories, dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import Blob, EngineSettings, Perdure, Signal, TestEnv, export_history, flow, replay, task, wf, workflow
from perdure.core.api import dead_letters
from perdure.core.api.dead_letters import RetryDeadLetters
from perdure.errors import NondeterminismError, PayloadTooLarge, RunFailed
from perdure.sdk.definitions import Workflow
from perdure.testing import replayer
from tests.fakes.waiting import until

LARGE = 300_000
LIMIT = "60s"
note: Signal[str] = Signal("payload_testing_note", str)
broken: list[bool] = [True]


@task(name="payload_testing.text")
async def text(letter: str) -> str:
    return letter * LARGE


@task(name="payload_testing.blob")
async def blob(content: str) -> Blob:
    return Blob.from_bytes(content.encode(), name="b.txt")


@task(name="payload_testing.fragile", retry=1)
async def fragile(content: str, made: Blob) -> str:
    if broken[0]:
        raise ValueError("not yet")
    return f"{content[0]} {len(content)} {await made.aread_text()}"


@workflow(name="payload_testing.child")
async def child(content: str, made: Blob) -> int:
    return len(content) + made.size


@workflow(name="payload_testing.all")
async def everything(given: str) -> dict[str, Any]:
    large = await text("t")
    await wf.sleep("30d")
    made = await blob(large[:10])
    heard = await note.next()
    count = await child(large, made)
    return {"given": len(given), "heard": len(heard), "count": count, "blob": made, "large": large}


@workflow(name="payload_testing.calls")
async def calls(made: Blob) -> Any:
    return await flow("payload_testing.unknown")(made=made, content="c" * LARGE)


@workflow(name="payload_testing.failing")
async def failing(given: str) -> str:
    return await fragile(given, await blob("content"))


FLOW = """
flow: payload_testing_flow
tasks:
  text: {python: payload_testing.text, with: {letter: f}}
  blob: {python: payload_testing.blob, with: {content: inside}}
  last: {python: payload_testing.fragile, depends_on: [text, blob], when: "size(text) > 1000", with: {content: "${ text }", made: "${ blob }"}}
output: "${ last }"
"""


async def test_mocks_and_time_that_skips(dsn: str) -> None:
    def mocked_child(content: str, made: Blob) -> int:
        assert made.name == "m.txt"
        return len(content)

    async with TestEnv(dsn) as env:
        env.mock(text, lambda letter: letter * (2 * LARGE))
        env.mock(blob, lambda content: Blob.from_bytes(content.encode(), name="m.txt"))
        env.mock(flow("payload_testing.child"), mocked_child)
        handle = await env.start(everything, "g" * LARGE)
        assert await handle.status() == "running"
        await env.advance("31d")
        await note.send(handle.id, "n" * LARGE)
        result = await handle.result(LIMIT)
        assert await result["blob"].aread_text() == "t" * 10
    numbers = {name: result[name] for name in ("given", "heard", "count")}
    assert numbers == {"given": LARGE, "heard": LARGE, "count": 2 * LARGE} and len(result["large"]) == 2 * LARGE


async def test_a_workflow_of_which_only_the_name_is_known_is_mocked(dsn: str) -> None:
    async with TestEnv(dsn) as env:
        env.mock(flow("payload_testing.unknown"), lambda made, content: made.size + len(content))
        assert await env.run(calls, Blob.from_bytes(b"12345")) == 5 + LARGE


async def exported(dsn: str, directory: Path) -> Path:
    async with TestEnv(dsn) as env:
        handle = await env.start(everything, "g" * LARGE)
        await note.send(handle.id, "n" * LARGE)
        await env.advance("31d")
        await handle.result(LIMIT)
        path = directory / "all.json"
        path.write_bytes(await export_history(handle))
    return path


async def test_an_exported_history_is_replayed_without_a_store(dsn: str, tmp_path: Path) -> None:
    path = await exported(dsn, tmp_path)
    assert await replay(everything, histories=str(path)) == 1

    async def other(given: str) -> dict[str, Any]:
        return {"given": len(await text("u" + given[:1]))}

    changed = Workflow(other, {"name": everything.name})
    with pytest.raises(NondeterminismError):
        await replay(changed, histories=str(path))


async def test_an_export_has_a_limit(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayer, "EXPORTED_BYTES_MAX", LARGE)
    with pytest.raises(PayloadTooLarge, match="EXPORTED_BYTES_MAX"):
        await exported(dsn, tmp_path)


@pytest.mark.parametrize("kind", ["python", "flow"])
async def test_a_dead_letter_is_retried_with_its_stored_values_and_blobs(dsn: str, kind: str) -> None:
    broken[0] = True
    async with Perdure(dsn, settings=EngineSettings(payload_grace_s=0.0)) as client:
        if kind == "flow":
            await client.deploy(FLOW)
            handle = await client.start(flow("payload_testing_flow"))
        else:
            handle = await client.start(failing, "f" * LARGE)
        with pytest.raises(RunFailed, match="not yet"):
            await handle.result(LIMIT)
        await client.engine.payloads.sweep(100)
        broken[0] = False
        page = await client._backend.call(dead_letters.RETRY, RetryDeadLetters())
        assert [one.outcome for one in page.items] == ["retried"], page
        await until(lambda: ended(handle), "the retried run ended")
        assert await handle.result(LIMIT) == f"f {LARGE} " + ("inside" if kind == "flow" else "content")


async def ended(handle: Any) -> bool:
    return await handle.status() not in ("failed", "running", "pending")
