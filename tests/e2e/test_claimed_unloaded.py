"""A run that was claimed is this engine's, even when the database goes away before its history could be read, or before it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure import Perdure, task, workflow
from perdure.core import ids
from perdure.core.api import runs
from perdure.core.errors import Unavailable
from perdure.core.work import StartRequest


@task
async def unloaded_noop(n: int) -> int:
    return n


@workflow
async def unloaded(n: int) -> int:
    return await unloaded_noop(n)


async def test_a_claim_whose_answer_is_lost_strands_nothing(dsn: str) -> None:
    async with Perdure(dsn, worker=False) as starter:
        started = await starter._backend.call(
            runs.START, StartRequest(workflow="unloaded", version="1", input=b'{"n": 7}')
        )
        lost: list[int] = []
        async with Perdure(dsn) as runner:
            claim = runner.store.claim_runs

            async def answerless(*args: Any, **kwargs: Any) -> Any:
                claimed = await claim(*args, **kwargs)
                if claimed and not lost:
                    lost.append(len(claimed))
                    raise Unavailable("the answer is lost for the test")
                return claimed

            runner.store.claim_runs = answerless  # type: ignore[method-assign]
            runner.serve(unloaded)
            result = await (await runner.get(ids.text(started.run_id), workflow=unloaded)).result("3m")
            assert runner.engine.counters.sessions_fenced == len(lost)
        assert result == 7
        assert lost == [1]


async def test_what_was_claimed_is_loaded_once_the_database_answers_again(dsn: str) -> None:
    async with Perdure(dsn, worker=False) as starter:  # it cannot run code: the run waits for somebody who can
        started = await starter._backend.call(
            runs.START, StartRequest(workflow="unloaded", version="1", input=b'{"n": 7}')
        )
        failures: list[int] = []
        async with Perdure(dsn) as runner:
            load = runner.store.load

            async def broken(run_ids: Sequence[bytes]) -> Any:
                if len(failures) < 2:
                    failures.append(len(run_ids))
                    raise Unavailable("away for the test")
                return await load(run_ids)

            runner.store.load = broken  # type: ignore[method-assign]
            runner.serve(unloaded)
            result = await (await runner.get(ids.text(started.run_id), workflow=unloaded)).result("3m")
        assert (result, failures) == (7, [1, 1])
