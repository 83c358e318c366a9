"""Services without our SDK: the worker of 40 lines in Python, and the one in JavaScript."""

from __future__ import annotations

import pytest

from tests.executors.services import EXAMPLES, deployed, instance, online, result_of, serving

pytestmark = pytest.mark.usefixtures("processes")


async def test_a_service_in_40_lines_of_plain_python(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = EXAMPLES / "worker.py"
    assert len(program.read_text().splitlines()) <= 40
    async with serving(dsn, monkeypatch) as server:
        flow = {
            "tasks": {
                "up": {"service": {"name": "scale"}, "with": "${ input.text }"},
                "add": {"service": "sum", "with": [1, 2, "${ input.n }"]},
            }
        }
        await deployed(server, flow, "plain")
        with instance(server, program):
            await online(server, "sum")
            run = await result_of(server, "plain", {"text": "hush", "n": 4})
            assert run["status"] == "failed" and "KeyError: 'by'" in run["error"]["message"]
            flow["tasks"].pop("up")
            await deployed(server, flow, "plain")
            assert (await result_of(server, "plain", {"text": "hush", "n": 4}))["result"] == {"add": 7}


async def test_a_service_in_javascript_ends_now_or_later(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(dsn, monkeypatch) as server:
        flow = {
            "tasks": {
                "back": {"service": "reverse", "with": "abc"},
                "slow": {"service": "slow", "with": "${ back }", "depends_on": ["back"]},
            },
            "output": "${ slow }",
        }
        await deployed(server, flow, "node")
        with instance(server, EXAMPLES / "worker.mjs"):
            await online(server, "slow")
            run = await result_of(server, "node")
            assert (run["status"], run["result"]) == ("success", "done: cba"), run
