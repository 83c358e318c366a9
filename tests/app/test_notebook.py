"""Notebooks: a client for the life of the program, and runs as HTML."""

from __future__ import annotations

import ast
import asyncio
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import perdure
from perdure.errors import PerdureError
from perdure.sdk.client.base import RunInfo
from perdure.sdk.client.handles import Handle
from perdure.store.connections import connect

HOSTILE = "<script>alert('x')</script>&\""


class Notebook:
    """Cells with an `await` at their top level, each run to its end on one loop, as IPython does it."""

    def __init__(self, **names: Any) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", **names}
        self._loop = asyncio.new_event_loop()

    def run(self, cell: str) -> None:
        code = compile(textwrap.dedent(cell), "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        ran = eval(code, self.names)  # noqa: S307
        if inspect.iscoroutine(ran):
            self._loop.run_until_complete(ran)

    def close(self) -> None:
        self.run("import perdure\nawait perdure.close()")
        self._loop.close()


@pytest.fixture
def notebook(dsn: str) -> Iterator[Notebook]:
    one = Notebook(DSN=dsn)
    yield one
    one.close()


DEFINITIONS = """
import perdure
from perdure import task, workflow

@task(name="notebook_double")
async def double(n: int) -> int:
    return 2 * n

@workflow(name="notebook_flow")
async def doubled(n: int) -> int:
    return await double(n)
"""


def test_a_client_lives_from_cell_to_cell_and_workflows_are_defined_and_run_in_cells(notebook: Notebook) -> None:
    notebook.run("import perdure")
    notebook.run("client = await perdure.open(DSN)")
    notebook.run(DEFINITIONS)
    notebook.run("handle = await doubled.start(4)")
    notebook.run("result = await handle.result()")
    notebook.run("runs = await client.list()\nshown = runs[0]._repr_html_()")
    assert notebook.names["result"] == 8
    assert "notebook_flow" in notebook.names["shown"]
    notebook.run("again = await perdure.open(DSN)")
    assert notebook.names["again"] is notebook.names["client"], "a cell that is run again"
    notebook.run("other = await perdure.open(DSN, slots=3)")
    assert notebook.names["other"] is not notebook.names["client"]
    assert notebook.names["other"].worker.slots == 3
    notebook.run("result = await doubled.run(5)")
    assert notebook.names["result"] == 10
    notebook.run("await perdure.close()\nawait perdure.close()")
    with pytest.raises(PerdureError, match="no Perdure client here"):
        notebook.run("await doubled.start(4)")


def test_a_client_that_is_open_on_another_loop_is_not_returned(notebook: Notebook) -> None:
    notebook.run("import perdure\nawait perdure.open(DSN)")
    with pytest.raises(PerdureError, match="on another event loop"):
        asyncio.run(perdure.open(notebook.names["DSN"]))


def test_a_client_whose_loop_is_gone_is_replaced(dsn: str) -> None:
    async def leave() -> None:
        client = await perdure.open(dsn)
        await client.close()

    asyncio.run(leave())
    notebook = Notebook(DSN=dsn)
    try:
        notebook.run("import perdure\nclient = await perdure.open(DSN)\nruns = await client.list()")
        assert notebook.names["runs"] == []
    finally:
        notebook.close()


@pytest.mark.usefixtures("interpreter")
async def test_a_program_that_ends_without_closing_signs_off(dsn: str) -> None:
    code = f"""
    import asyncio, perdure
    loop = asyncio.new_event_loop()
    loop.run_until_complete(perdure.open({dsn!r}))
    """
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    connection = await connect(dsn)
    try:
        assert await connection.fetchval("select count(*) from perdure.engine_session") == 0
    finally:
        await connection.close()


def test_runs_and_handles_are_html_in_which_everything_is_escaped() -> None:
    run = RunInfo(
        id="0" * 32,
        key=HOSTILE,
        workflow=HOSTILE,
        version="1",
        status="failed",
        created_at=datetime(2026, 11, 18, tzinfo=UTC),
        finished_at=None,
        error=HOSTILE + "e" * 5000,
        attributes={HOSTILE: HOSTILE, "open": True},
        stuck=HOSTILE,
    )
    handle = Handle[int](None, bytes(16), None, HOSTILE)  # type: ignore[arg-type]
    for html in (run._repr_html_(), handle._repr_html_()):
        assert "<script" not in html
        assert html.count("&lt;script&gt;") >= 1
        assert html.startswith("<table>")
        assert html.endswith("</table>")
    assert "2026-11-18 00:00:00+00:00" in run._repr_html_()
    assert "e" * 1001 not in run._repr_html_()
    assert "finished" not in run._repr_html_()
