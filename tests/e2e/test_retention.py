"""Ended runs go when their retention is over: exported first, a day at a time, and what is to stay stays whole."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from harness.aged import day_ago, days_ago, fetched, retain

from perdure import EngineSettings, Perdure, Promise, Retry, State, task, workflow
from perdure.app.payload_keys import read_sealing, sealing_options
from perdure.core.retention import Manifest
from perdure.engine.retention_port import NewJob
from perdure.engine.services import retention as service
from perdure.errors import Conflict, InvalidInput
from perdure.exports import records
from perdure.exports.archive import Archive
from perdure.store import partitions
from perdure.store.imports import import_exports
from perdure.store.migrate import migrate
from perdure.store.sealing.codec import MARK
from perdure.store.verify import verify
from tests.cli.live import perdure as command
from tests.fakes.waiting import until
from tests.store.test_payload_keys import new_key, written

OLD = 100.5
"""Days: more than the default keeps."""
go_on = Promise("go_on_then", str)
progress = State("progress", "")


@task(name="retained.step")
async def step(text: str) -> str:
    return f"<{text}>"


@task(name="retained.flaky", retry=Retry(3, delay="1ms"))
async def flaky(text: str) -> str:
    import perdure

    if perdure.attempt().number == 1:
        raise ValueError("the first attempt fails")
    return text


@workflow(name="retained.order")
async def order(text: str) -> str:
    progress.set(text)
    return await flaky(await step(text))


@workflow(name="retained.audit")
async def audit(text: str) -> str:
    return await step(text)


@workflow(name="retained.waits")
async def waits(text: str) -> str:
    before = await step(text)
    progress.set(before)
    return before + await go_on.wait()


async def clean(dsn: str) -> None:
    found = {t.number: [e.what for e in t.examples] for t in await verify(dsn) if t.violations}
    assert found == {}


async def count(dsn: str, table: str = "run") -> int:
    return int((await fetched(dsn, f"select count(*) as n from perdure.{table}"))[0]["n"])


async def rows_of_all(dsn: str) -> dict[str, list[Any]]:
    """All that is stored of ended runs."""
    out = {}
    for table in partitions.TABLES:
        out[table] = sorted(map(tuple, await fetched(dsn, f"select * from perdure.{table}")), key=repr)
    return out


async def partitions_of(dsn: str, days: float) -> set[str]:
    stamp = f"_p{day_ago(days):%Y%m%d}"
    rows = await fetched(dsn, "select relname as name from pg_class where relname like '%' || $1", stamp)
    return {r["name"].removesuffix(stamp) for r in rows}


def manifests(directory: Path) -> list[tuple[Path, Manifest]]:
    import msgspec

    found = sorted(directory.rglob("manifest.json"))
    return [(p.parent, msgspec.json.decode(p.read_bytes(), type=Manifest)) for p in found]


async def test_ended_runs_go_after_ninety_days_with_their_partition(dsn: str) -> None:
    async with days_ago(dsn, OLD):
        await asyncio.gather(*(order.options(key=f"k{n}").run(f"{n}") for n in range(5)))
    async with days_ago(dsn, 80):
        await order.run("younger")
    await retain(dsn)
    assert await partitions_of(dsn, OLD) == set()
    assert await partitions_of(dsn, 80) >= set(partitions.TABLES)
    assert await count(dsn) == 1 and await count(dsn, "run_key") == 0, "keys of runs that are gone are free"
    counted = await fetched(dsn, "select sum(success)::int as n from perdure.run_count where workflow = ''")
    assert counted[0]["n"] == 6, "counters are not changed"
    await clean(dsn)


async def test_what_is_active_or_kept_longer_is_carried_forward(dsn: str) -> None:
    async with days_ago(dsn, OLD) as client:
        active = await waits.start("a")
        kept = await audit.start("kept")
        await asyncio.gather(kept.result(), *(order.run(f"{n}") for n in range(3)))

        async def has_begun() -> bool:
            return await progress.read(active.id) == "<a>"

        await until(has_begun)
        await client.engine.queue.drained()
    await fetched(
        dsn,
        "insert into perdure.retention_policy (ns, workflow, days, updated_by) values (1, 'retained.audit', null, '')",
    )
    await retain(dsn)
    assert await partitions_of(dsn, OLD) == set()
    async with Perdure(dsn) as client:
        assert [r.id for r in await client.list(status="success")] == [kept.id]
        assert await client.engine.retention.work_once() is False
        await go_on.resolve(active.id, "!")
        assert await (await client.get(active.id)).result("60s") == "<a>!"
    await clean(dsn)


async def old_runs(dsn: str, runs: int = 4, **settings: Any) -> None:
    """Of every kind of row: attempts that failed, state, keys, stored content, logs, attributes."""
    async with days_ago(dsn, OLD, EngineSettings(**settings)) as client:
        await asyncio.gather(
            *(order.options(key=f"key {n}", attributes={"n": n, "who": "ada"}).run(f"{n}") for n in range(runs)),
            audit.run("x" * 100_000),
            audit.run("café \x01"),
        )
        with pytest.raises(Exception, match="stops"):
            await fails.run("stops")
        await client.engine.task_logs.close()


@task(name="retained.fails", retry=Retry(1))
async def refuse(text: str) -> str:
    print("it prints")
    raise ValueError(text)


@workflow(name="retained.fails")
async def fails(text: str) -> str:
    return await refuse(text)


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
async def test_an_import_restores_what_was_exported_row_by_row(
    dsn: str, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "EXPORT_PART_RUNS", 3)
    monkeypatch.setattr(service, "EXPORT_PAGE_RUNS", 2)
    await old_runs(dsn)
    before = await rows_of_all(dsn)
    keys = await fetched(dsn, "select * from perdure.run_key order by key")
    assert all(before[t] for t in ("history", "run", "task", "task_attempt", "run_state", "task_log", "payload_use"))
    await retain(dsn, retention_export=f"file://{tmp_path}", retention_format=format)
    assert await count(dsn) == await count(dsn, "history") == await count(dsn, "payload_use") == 0
    [(folder, manifest)] = manifests(tmp_path)
    assert manifest.runs == 7 and [p.runs for p in manifest.parts] == [4, 3] and manifest.tasks == len(before["task"])
    assert {p.name for p in folder.iterdir()} == {"manifest.json", *(p.object for p in manifest.parts)}

    archive = Archive(f"file://{tmp_path}")
    dry = await import_exports(dsn, archive, None, is_dry_run=True)
    assert (dry.runs, await count(dsn)) == (7, 0)
    done = await import_exports(dsn, archive, None)
    assert (done.exports, done.runs, done.present) == (1, 7, 0)
    assert await rows_of_all(dsn) == before, "ids, histories, hashes, times: all as it was"
    assert await fetched(dsn, "select * from perdure.run_key order by key") == keys
    again = await import_exports(dsn, archive, None)
    assert (again.runs, again.present) == (0, 7)
    await clean(dsn)
    assert await one_job(dsn) is None, "what was imported is held"


async def one_job(dsn: str, **settings: Any) -> Any:
    """The job that retention does next, if there is one."""
    before = {r["id"] for r in await fetched(dsn, "select id from perdure.retention_job")}
    await retain(dsn, **settings)
    rows = await fetched(dsn, "select * from perdure.retention_job order by created_at")
    return next((r for r in rows if r["id"] not in before), None)


async def test_an_export_can_be_read_without_perdure(dsn: str, tmp_path: Path) -> None:
    await old_runs(dsn, 2)
    await retain(dsn, retention_export=f"file://{tmp_path}")
    [(folder, manifest)] = manifests(tmp_path)
    lines = [
        json.loads(line) for line in gzip.decompress((folder / manifest.parts[0].object).read_bytes()).splitlines()
    ]
    found = next(line for line in lines if line["key"] == "key 1")
    assert (
        found["workflow"] == "retained.order" and found["status"] == "success" and found["attributes"]["who"] == "ada"
    )
    events = [event for row in found["history"] for event in row["events"]]
    assert events[0]["type"] == "RunStarted" and events[-1]["type"] == "RunSucceeded"
    assert json.loads(events[-1]["data"]["result"]["text"]) == "<1>"
    assert [t["name"] for t in found["tasks"]] == ["retained.step", "retained.flaky"]
    assert [a["outcome"] for a in found["attempts"]] == ["error"]
    assert found["state"] == {"progress": {"text": '"1"'}}


async def test_imported_runs_are_listed_shown_and_replayed_in_another_database(
    dsn: str, bare_dsn: str, tmp_path: Path
) -> None:
    from perdure.testing.replayer import export_history, replay

    await old_runs(dsn, 3)
    await retain(dsn, retention_export=f"file://{tmp_path}")
    await migrate(bare_dsn)
    done = await import_exports(bare_dsn, Archive(f"file://{tmp_path}"), 30)
    assert done.runs == 6 and done.missing_payloads == 2, "the content of a large value is not in the export"
    async with Perdure(bare_dsn) as client:
        found = await client.list(workflow="retained.order")
        assert [r.status for r in found] == ["success"] * 3
        handle = await client.get(found[0].id)
        assert (await handle.result()).startswith("<")
        assert len(await handle.history()) > 5
        path = tmp_path / "history.json"
        path.write_bytes(await export_history(handle))
        await replay(order, histories=str(path))


async def test_the_command_imports_what_was_exported(dsn: str, bare_dsn: str, tmp_path: Path) -> None:
    """As docs/how-to/retain-and-export.md shows it."""
    await old_runs(dsn, 3)
    await retain(dsn, retention_export=f"file://{tmp_path}")
    await migrate(bare_dsn)
    [(folder, _)] = manifests(tmp_path)
    day = folder.parent
    checked = await asyncio.to_thread(command, "import", f"file://{day}", "--dsn", bare_dsn, "--dry-run")
    assert checked.code == 0 and "6 runs would be imported from 1 export" in checked.out, checked.err
    done = await asyncio.to_thread(command, "import", f"file://{day}", "--dsn", bare_dsn)
    assert done.code == 0 and "6 runs imported from 1 export, 0 were there already" in done.out, done.err
    assert f"{folder.name}: 6 runs" in done.out and await count(bare_dsn) == 6
    again = await asyncio.to_thread(command, "import", f"file://{tmp_path}", "--dsn", bare_dsn, "--json")
    assert json.loads(again.out)["present"] == 6
    nothing = await asyncio.to_thread(command, "import", f"file://{tmp_path}/no-such-day", "--dsn", bare_dsn)
    assert nothing.code == 4 and "no export was found" in nothing.err


async def test_a_record_that_was_changed_is_refused(dsn: str, tmp_path: Path) -> None:
    await old_runs(dsn, 1)
    await retain(dsn, retention_export=f"file://{tmp_path}")
    [(folder, manifest)] = manifests(tmp_path)
    path = folder / manifest.parts[0].object
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text.replace(b"ada", b"bob")))
    with pytest.raises(InvalidInput, match="its manifest says"):
        await import_exports(dsn, Archive(f"file://{tmp_path}"), None)
    line = json.loads(text.splitlines()[0])
    line["history"][0]["events"][0]["data"]["workflow"] = "another"
    assert line["history"][0]["events"][0]["type"] == "RunStarted"
    with pytest.raises(InvalidInput, match="was changed after its export"):
        records.rows_of(records.decode(json.dumps(line).encode()))
    assert await count(dsn) == 0


async def test_an_import_that_conflicts_says_with_what(dsn: str, tmp_path: Path) -> None:
    await old_runs(dsn, 1)
    await retain(dsn, retention_export=f"file://{tmp_path}")
    archive = Archive(f"file://{tmp_path}")
    await import_exports(dsn, archive, None)
    await fetched(dsn, "update perdure.run set head = '\\x00' where workflow = 'retained.order'")
    with pytest.raises(Conflict, match="cannot be imported: here it has"):
        await import_exports(dsn, archive, None)
    await fetched(dsn, "insert into perdure.namespace (name) values ('other')")
    await fetched(dsn, "update perdure.namespace set name = 'was default' where name = 'default'")
    with pytest.raises(Conflict, match="had number 1 .* cannot have that number"):
        await import_exports(dsn, archive, None)


async def test_a_shorter_policy_deletes_run_by_run_where_a_day_keeps_many(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RETENTION_CARRIED_RUNS_MAX", 2)
    monkeypatch.setattr(service, "RETENTION_DELETED_RUNS", 2)
    async with days_ago(dsn, 20):
        await asyncio.gather(*(audit.run(f"{n}") for n in range(5)), *(order.run(f"{n}") for n in range(4)))
    await policy(dsn, "retained.audit", 7)
    job = await one_job(dsn, retention_export=f"file://{tmp_path}")
    assert (job["action"], job["status"], job["expected"], job["removed"]) == ("delete", "done", 5, 5)
    assert await count(dsn) == 4 and await partitions_of(dsn, 20) >= set(partitions.TABLES)
    [(_, manifest)] = manifests(tmp_path)
    assert manifest.runs == 5
    await clean(dsn)
    await policy(dsn, "retained.order", 7)
    job = await one_job(dsn, retention_export=f"file://{tmp_path}")
    assert (job["action"], job["expected"]) == ("drop", 4)
    assert await partitions_of(dsn, 20) == set()
    await clean(dsn)


async def policy(dsn: str, workflow: str, days: float | None, ns: int = 1) -> None:
    await fetched(
        dsn,
        "insert into perdure.retention_policy (ns, workflow, days, updated_by) values ($1, $2, $3, '') "
        "on conflict (ns, workflow) do update set days = excluded.days, updated_at = now()",
        ns,
        workflow,
        days,
    )


async def test_runs_that_were_carried_forward_go_when_their_own_time_is_over(dsn: str) -> None:
    async with days_ago(dsn, OLD):
        await asyncio.gather(audit.run("1"), order.run("2"))
    await policy(dsn, "retained.audit", 400)
    assert (await one_job(dsn))["kept"] == 1
    assert await count(dsn) == 1
    await policy(dsn, "retained.audit", 95)
    job = await one_job(dsn)
    assert (job["name"], job["action"], job["removed"]) == ("rest", "delete", 1)
    assert await count(dsn) == await count(dsn, "history") == await count(dsn, "task") == 0


async def test_a_policy_that_changes_before_the_removal_withdraws_the_export(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_runs(dsn, 2)
    written = Archive.write_manifest

    async def changed_meanwhile(self: Archive, folder: str, manifest: Manifest) -> None:
        await written(self, folder, manifest)
        await policy(dsn, "retained.order", None)
        monkeypatch.setattr(Archive, "write_manifest", written)

    monkeypatch.setattr(Archive, "write_manifest", changed_meanwhile)
    await retain(dsn, retention_export=f"file://{tmp_path}")
    rows = await fetched(dsn, "select status, runs, kept from perdure.retention_job order by created_at")
    assert [(r["status"], r["runs"], r["kept"]) for r in rows] == [("abandoned", 5, 0), ("done", 3, 2)]
    [(_, manifest)] = manifests(tmp_path)
    assert manifest.runs == 3 and await count(dsn) == 2
    await clean(dsn)


async def test_a_run_that_is_retried_while_it_is_exported_stays(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_runs(dsn, 2)
    written = Archive.write_manifest

    async def retried_meanwhile(self: Archive, folder: str, manifest: Manifest) -> None:
        await written(self, folder, manifest)
        async with Perdure(dsn, settings=EngineSettings(retention_export="file:///nowhere/else")) as client:
            [failed] = await client.list(workflow="retained.fails")
            handle = await client.get(failed.id)
            await handle.retry()
            with pytest.raises(Exception, match="stops"):
                await handle.result("60s")

    monkeypatch.setattr(Archive, "write_manifest", retried_meanwhile)
    await retain(dsn, retention_export=f"file://{tmp_path}")
    rows = await fetched(dsn, "select workflow from perdure.run")
    assert [r["workflow"] for r in rows] == ["retained.fails"], "it ended again after the cutoff"
    await clean(dsn)


async def test_an_engine_that_knows_no_export_address_removes_nothing(dsn: str, tmp_path: Path) -> None:
    await old_runs(dsn, 1)
    async with Perdure(dsn, settings=EngineSettings(retention_export=f"file://{tmp_path}")):
        pass
    assert await one_job(dsn) is None and await count(dsn) == 4
    job = await one_job(dsn, retention_export="off")
    assert job["url"] is None and job["removed"] == 4


async def test_an_export_that_fails_removes_nothing_and_says_why(dsn: str, tmp_path: Path) -> None:
    await old_runs(dsn, 1)
    closed = tmp_path / "file"
    closed.write_text("no directory")
    with pytest.raises(Exception, match="object store"):
        await retain(dsn, retention_export=f"file://{closed}/below")
    [row] = await fetched(dsn, "select status, error from perdure.retention_job")
    assert row["status"] == "exporting" and "object store" in row["error"]
    assert await count(dsn) == 4
    job = await one_job(dsn, retention_export=f"file://{tmp_path}")
    assert job["status"] == "done" and await count(dsn) == 0, "another address starts anew"


async def test_an_engine_that_finds_another_at_work_leaves_the_other_days_to_it(dsn: str) -> None:
    for days in (OLD, OLD + 1):
        async with days_ago(dsn, days):
            await audit.run("1")
    async with Perdure(dsn) as client:
        store = client.engine.retention._store
        rules, ranges = await store.rules(90.0), await store.ranges()
        new = NewJob(range=ranges[1], action="drop", rules=rules, expected=1, url="", format="jsonl")
        assert await store.create(new, 90.0, 0.5) is not None
        assert await client.engine.retention.work_once() is False and await store.looks() == {}
    await until(lambda: everything_removed(dsn))


async def everything_removed(dsn: str) -> bool:
    """Once the lease of the engine that is gone has run out."""
    await retain(dsn)
    return await count(dsn) == 0


async def test_an_export_of_encrypted_runs_is_readable_and_is_imported_as_it_was_stored(
    dsn: str, bare_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file = written(tmp_path / "master.keys", new_key())
    monkeypatch.setenv("PERDURE_PAYLOAD_KEYS", f"file:{key_file}")
    exports = tmp_path / "exports"
    await old_runs(dsn, 2)
    before = await rows_of_all(dsn)
    assert before["history"][0][6].startswith(MARK)
    await retain(dsn, retention_export=f"file://{exports}")
    [(folder, manifest)] = manifests(exports)
    lines = gzip.decompress((folder / manifest.parts[0].object).read_bytes()).splitlines()
    found = next(r for r in map(json.loads, lines) if r["key"] == "key 1")
    assert json.loads(found["history"][-1]["events"][-1]["data"]["result"]["text"]) == "<1>"
    assert found["state"] == {"progress": {"text": '"1"'}} and "sealed" in found["history"][0]
    archive = Archive(f"file://{exports}")
    await migrate(bare_dsn)
    with pytest.raises(Conflict, match="exported from a database that encrypts"):
        await import_exports(bare_dsn, archive, None)
    done = await import_exports(dsn, archive, None)
    assert done.runs == 5
    after = await rows_of_all(dsn)
    assert after["history"] == before["history"] and after["run_state"] != before["run_state"], "sealed anew"
    async with Perdure(dsn) as client:
        [one, _] = await client.list(workflow="retained.order")
        handle = await client.get(one.id)
        assert (await handle.result()).startswith("<") and await progress.read(one.id) in ("0", "1")
    read_sealing(dsn, sealing_options(os.environ), os.environ)
    await clean(dsn)
