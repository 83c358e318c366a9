"""Stored values and blobs over REST and on the command line."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Blob, task, workflow
from tests.cli.live import Cli
from tests.server.rest_live import Live, live


@task(name="rest_payload_blob")
async def make(size: int) -> Blob:
    return Blob.from_bytes(b"r" * size, name="r.bin")


@workflow(name="rest_payloads")
async def payloads(text: str, size: int) -> dict[str, Any]:
    return {"length": len(text), "text": text, "blob": await make(size)}


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Live]:
    async with live(dsn) as one:
        one.perdure.serve(payloads)
        yield one


async def result_of(api: Live, size: int) -> Any:
    run = await api.start("rest_payloads", input={"text": "t" * size, "size": 3_000_000})
    return (await api.get(f"/runs/{run['id']}/result", wait=60))["result"], run["id"]


async def test_a_stored_value_is_answered_in_place_and_a_blob_as_a_reference(api: Live) -> None:
    result, run_id = await result_of(api, 500_000)
    assert result["length"] == 500_000 and result["text"] == "t" * 500_000
    about = result["blob"]["$payload"]
    assert (about["size"], about["name"]) == (3_000_000, "r.bin")
    answer = await api.http.get(about["href"].removeprefix("/api/v1"))
    assert answer.content == b"r" * 3_000_000 and answer.headers["content-length"] == "3000000"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "attachment" in answer.headers["content-disposition"]
    history = await api.get(f"/runs/{run_id}/history")
    assert history["items"][0]["data"]["input"]["text"]["$payload"]["size"] == 500_002


async def test_a_value_that_is_too_large_for_an_answer_is_a_reference_with_a_link(
    api: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.server.rest.payloads.PAYLOAD_SHOWN_BYTES_MAX", 100_000)
    result, _ = await result_of(api, 200_000)
    about = result["text"]["$payload"]
    assert (about["size"], about["media_type"], result["length"]) == (200_002, "application/json", 200_000)
    assert (await api.http.get(about["href"].removeprefix("/api/v1"))).json() == "t" * 200_000


async def test_content_that_is_not_there_and_names_that_are_no_digest(api: Live) -> None:
    missing = hashlib.sha256(b"never stored").hexdigest()
    assert (await api.get(f"/payloads/{missing}", 410))["code"] == "payload_missing"
    await api.get("/payloads/short", 422)


async def test_the_command_line_saves_and_checks_it(api: Live, tmp_path: Path) -> None:
    result, _ = await result_of(api, 10)
    digest = result["blob"]["$payload"]["sha256"]
    target = tmp_path / "out.bin"
    await asyncio.to_thread(Cli(api.url, tmp_path).ok, "payload", "get", digest, "--file", str(target))
    assert target.read_bytes() == b"r" * 3_000_000 and list(tmp_path.glob(".*.part")) == []


async def test_the_command_line_shows_stored_values_and_blobs_as_lines(api: Live, tmp_path: Path) -> None:
    result, run_id = await result_of(api, 500_000)
    digest = result["blob"]["$payload"]["sha256"]
    text = hashlib.sha256(b'"' + b"t" * 500_000 + b'"').hexdigest()
    cli = Cli(api.url, tmp_path)
    for shown in (
        await asyncio.to_thread(cli.ok, "show", run_id),
        await asyncio.to_thread(cli.ok, "show", run_id, tty=True, COLUMNS="300"),
    ):
        assert f"stored value, 488.3 KiB, application/json; perdure payload get {text}" in shown
        assert f"blob r.bin, 2.9 MiB, application/octet-stream; perdure payload get {digest}" in shown
        assert "$payload" not in shown and "href" not in shown
    modes: tuple[dict[str, Any], ...] = ({}, {"tty": True, "COLUMNS": "300"})
    for mode in modes:
        events = await asyncio.to_thread(cli.ok, "history", run_id, **mode)
        assert "$payload" not in events and "stored value, 488.3 KiB, application/json" in events
        assert f"blob r.bin, 2.9 MiB, application/octet-stream, sha256 {digest[:8]}…" in events or digest in events
    whole = await asyncio.to_thread(cli.ok, "show", run_id, "-o", "json")
    assert msgspec.json.decode(whole)["result"]["blob"]["$payload"]["sha256"] == digest
