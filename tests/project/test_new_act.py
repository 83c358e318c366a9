"""A new act costs four source files: its request and its line of the table, its handler, its route, its command.

The act `workflow.touch` is added to a copy of the source. There it must work through every door, with the permission, the audit line and
the checks that every act has, and nothing else may have to change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

pytestmark = pytest.mark.usefixtures("processes")

ROOT = Path(__file__).parents[2]
FILES_MAX = 4

ADDED = {
    "core/api/definitions.py": (
        (
            "\nACTS = (LIST, ",
            """

class TouchWorkflow(msgspec.Struct, frozen=True):
    name: str
    reason: str = ""


class WorkflowTouched(msgspec.Struct, frozen=True):
    name: str
    by: str


TOUCH: Act[TouchWorkflow, WorkflowTouched] = Act(
    "workflow.touch", TouchWorkflow, WorkflowTouched, Permission.DEVELOP, ("workflow.touch",), True
)

ACTS = (TOUCH, LIST, """,
        ),
    ),
    "engine/api/definitions.py": (
        (
            "\n@handles(acts.GET)\n",
            """
@handles(acts.TOUCH)
async def touch(api: NamespaceApi, r: acts.TouchWorkflow) -> acts.WorkflowTouched:
    found = await workflow_of(api, r.name)
    await api.record("workflow.touch", found.name, reason=r.reason)
    return acts.WorkflowTouched(found.name, api.by)


@handles(acts.GET)
""",
        ),
    ),
    "server/rest/workflows.py": (
        (
            '\n@router.get("/workflows", ',
            '''
@router.post("/workflows/{name}/touch", responses=responses(401, 403, 404, 422))
async def touch_workflow(
    caller: Annotated[RestCaller, asks(definitions.TOUCH)], name: WorkflowName, reason: str = ""
) -> dict[str, str]:
    """Touch a workflow."""
    touched = await caller.call(definitions.TOUCH, definitions.TouchWorkflow(name, reason))
    return {"name": touched.name, "by": touched.by}


@router.get("/workflows", ''',
        ),
    ),
    "cli/workflows.py": (
        (
            "\n@workflow.command()\n@remote\ndef delete(",
            '''
@workflow.command()
@remote
def touch(server: Remote, name: Name) -> None:
    """Touch a workflow."""
    server.out.say(f"touched by {server.api.post(_path(name, 'touch'))['by']}")


@workflow.command()
@remote
def delete(''',
        ),
    ),
}
"""File -> (old text, new text)."""

PROGRAM = """
import asyncio, pathlib, sys, tempfile

import perdure
from perdure import Client
from perdure.core.access import Role
from perdure.core.api import ACTS, definitions
from perdure.core.api.definitions import TouchWorkflow
from perdure.engine.api.api import HANDLERS
from perdure.errors import Forbidden, InvalidInput, NotRegistered
from perdure.server.rest.app import guarded_routes
from perdure.server.rest.guard import allow_of
from tests.cli.live import Cli
from tests.server.parity.routes import WITHOUT_ROUTE
from tests.server.parity.stage import stage

assert perdure.__file__.startswith(sys.argv[1]), perdure.__file__
NAME = "parity_done"


async def refused(kind, call, request):
    try:
        await call(definitions.TOUCH, request)
    except kind:
        return
    raise AssertionError(f"{request} was not refused with {kind.__name__}")


async def main():
    assert HANDLERS.keys() == ACTS.keys()
    routed = {act.name for route in guarded_routes() if (act := allow_of(route.dependant).act) is not None}
    assert "workflow.touch" in routed and routed == ACTS.keys() - WITHOUT_ROUTE
    async with stage(sys.argv[2]) as one:
        grpc, embedded = one.client._backend.call, one.embedded
        for call in (grpc, embedded):
            assert (await call(definitions.TOUCH, TouchWorkflow(NAME))).name == NAME
            await refused(NotRegistered, call, TouchWorkflow("nowhere"))
            await refused(InvalidInput, call, TouchWorkflow(NAME, "a\\0b"))
        answer = await one.live.http.post(f"/workflows/{NAME}/touch")
        assert answer.json()["name"] == NAME, answer.text
        assert (await one.live.http.post("/workflows/nowhere/touch")).status_code == 404
        key = one.keys[Role.VIEWER]
        async with Client(one.address, api_key=key) as viewer:
            await refused(Forbidden, viewer._backend.call, TouchWorkflow(NAME))
        headers = {"Authorization": f"Bearer {key}"}
        assert (await one.live.http.post(f"/workflows/{NAME}/touch", headers=headers)).status_code == 403
        cli = Cli(one.live.url, pathlib.Path(tempfile.mkdtemp()))
        done = await asyncio.to_thread(cli, "workflow", "touch", NAME, PERDURE_API_KEY=one.keys[Role.ADMIN])
        assert (done.code, "touched by key:" in done.err) == (0, True), done
        lines = [line for line in await one.audit() if line.action == "workflow.touch"]
        assert [line.target for line in lines] == [NAME] * 4, lines


asyncio.run(main())
"""


def test_a_new_act_works_at_every_door_after_a_change_of_four_files(dsn: str, tmp_path: Path) -> None:
    source = tmp_path / "src" / "perdure"
    shutil.copytree(Path(perdure.__file__).parent, source)
    assert len(ADDED) <= FILES_MAX
    for name, edits in ADDED.items():
        file = source / name
        text = file.read_text()
        for old, new in edits:
            assert text.count(old) == 1, f"{name}: {old!r}"
            text = text.replace(old, new)
        file.write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(source.parent), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source.parent), dsn],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
