"""The verifier on a real database: it reads in pages, meets orphans, and says by its exit code what it found."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

import perdure
from perdure import Approval, Blob, Handle, Perdure, Retry, Signal, task, wf, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.invariants import INVARIANTS, NEEDS
from perdure.core.messages import SignalMessage
from perdure.errors import InvalidInput, NotFound, RunFailed, RunFinished
from perdure.payloads.objects import ObjectStores
from perdure.programs import verify_ledger as ledgers
from perdure.programs.verify_ledger import read_ledger, read_starts, sorted_ledger
from perdure.store import verify as verifier
from perdure.store import verify_payloads
from perdure.store.verify import verify
from perdure.testing.ledger import Ledger, Starts
from perdure.wire.codec import decode_events, encode_events, encode_message
from tests.cli.live import perdure as perdure_command
from tests.fakes.waiting import until

open_ledger: list[Ledger] = []


@task(name="verified_task")
async def verified(after: list[str]) -> str:
    with open_ledger[-1].execution(after) as line:
        line.effect()
    return perdure.attempt().task_id


@task(name="verified_leaf")
def verified_leaf(n: int) -> int:
    with open_ledger[-1].execution() as line:
        line.effect()
    return n


@workflow(name="verified_flow")
async def flow(width: int) -> str:
    first = await verified([])
    await wf.map(verified_leaf, range(width))
    await wf.sleep(0.01)
    return await verified([first])


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    open_ledger.append(ledger)
    yield tmp_path / "ledger.jsonl", tmp_path / "starts.jsonl"
    open_ledger.pop()
    ledger.close()


async def run_some(dsn: str, starts: Path, count: int = 7) -> list[str]:
    acknowledged = Starts(starts)
    async with Perdure(dsn) as client:
        handles = await asyncio.gather(*(client.start(flow, 3) for _ in range(count)))
        for handle in handles:
            acknowledged.acknowledged(handle.id)
            await handle.result(timeout="20s")
    acknowledged.close()
    return [h.id for h in handles]


async def violations(dsn: str, files: tuple[Path, Path], **options: Any) -> dict[int, list[str]]:
    ledger, starts = files
    with sorted_ledger(ledger) as lines:
        names = frozenset(x.name for x in read_ledger(ledger))
        found = await verify(dsn, ledger=lines, names=names, starts=read_starts(starts), **options)
    return {t.number: [e.what for e in t.examples] for t in found if t.violations}


async def execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for one in statements:
            await connection.execute(one)
    finally:
        await connection.close()


async def test_a_sound_database_is_clean_in_pages_of_any_size(
    dsn: str, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_some(dsn, files[1])
    for page in (1, 2, 3, 200):
        monkeypatch.setattr(verifier, "PAGE_RUNS", page)
        monkeypatch.setattr(verifier, "PAGE_TASKS", page)
        monkeypatch.setattr(verifier, "PAGE_STARTS", page)
        monkeypatch.setattr(ledgers, "SORT_LINES", page)
        assert await violations(dsn, files, at_rest=True) == {}


async def test_without_ledger_starts_or_rest_only_the_database_itself_is_judged(
    dsn: str, files: tuple[Path, Path]
) -> None:
    await run_some(dsn, files[1], 2)
    found = await verify(dsn)
    assert [t.number for t in found] == list(INVARIANTS)
    assert {t.number: t.needs for t in found if t.needs} == NEEDS


@pytest.mark.parametrize(
    ("number", "what", "statement"),
    [
        (1, "found 0 times", "delete from perdure.run; delete from perdure.history; delete from perdure.task"),
        (
            1,
            "found 2 times",
            "insert into perdure.run_queue (run_id, ns, workflow, version, created_at, wake_at) select run_id, ns, workflow, version, now(), now() from perdure.run",
        ),
        (1, "is not in the database", "delete from perdure.run; delete from perdure.history; delete from perdure.task"),
        (3, "is followed by event", "delete from perdure.history where seq = 2"),
        (4, "0 rows in run_queue and run", "delete from perdure.run"),
        (4, "its run none", "delete from perdure.run; delete from perdure.history"),
        (4, "cannot be read", "update perdure.history set body = 'x' where seq = 2"),
        (4, "cannot be read", "update perdure.history set body = '\\x01ff' where seq = 2"),
        (4, "has no row", "delete from perdure.task where seq = 1"),
        (8, "without an effect", "update perdure.task set attempts = 2 where seq = 1"),
        (9, "the run is in epoch 0", "update perdure.run set epoch = 0"),
        (14, "early", "update perdure.history set at = at - interval '1 hour' where seq > 5"),
        (
            17,
            "message",
            "insert into perdure.inbox (ns, run_id, body, kind) select ns, run_id, '', 'signal' from perdure.run",
        ),
        (17, "promise", "insert into perdure.promise select run_id, 'p', ns, now() from perdure.run"),
        (17, "key", "insert into perdure.run_key values (1, 'k', gen_random_uuid(), '')"),
        (17, "commit_log", "insert into perdure.commit_log values (99, 1)"),
        (
            17,
            "which does not exist",
            "insert into perdure.run_queue (run_id, ns, workflow, version, created_at, wake_at, owner, status) select run_id, ns, workflow, version, now(), now(), 99, 'running' from perdure.run",
        ),
    ],
)
async def test_damage_in_the_database_is_found(
    dsn: str, files: tuple[Path, Path], number: int, what: str, statement: str
) -> None:
    await run_some(dsn, files[1], 2)
    await execute(dsn, *statement.split(";"))
    found = await violations(dsn, files, at_rest=True)
    assert number in found and any(what in one for one in found[number]), found


@pytest.mark.usefixtures("interpreter")
async def test_the_program_answers_by_exit_code_json_and_text(dsn: str, files: tuple[Path, Path]) -> None:
    runs = await run_some(dsn, files[1], 2)
    sound = _program(dsn, "--ledger", str(files[0]), "--starts", str(files[1]), "--at-rest", "--json")
    assert sound.returncode == 0, sound.stderr
    assert {t["number"]: t["violations"] for t in json.loads(sound.stdout)} == dict.fromkeys(INVARIANTS, 0)
    nothing_to_see = (2, 13, 15, 16, 17, 19, 20, 23, 24, 26, 27, 28)
    assert all(t["examined"] for t in json.loads(sound.stdout) if t["number"] not in nothing_to_see)
    await execute(dsn, f"delete from perdure.history where run_id = '{runs[0]}' and seq = 1")
    torn = _program(dsn)
    assert torn.returncode == 1
    assert "-\t8\t" in torn.stdout and "not checked without --ledger" in torn.stdout
    assert "FAIL\t3\tevent numbers per run are gapless from 1" in torn.stdout
    assert runs[0] in torn.stdout
    table = await asyncio.to_thread(_on_terminal, dsn)
    assert "invariant" in table and "FAIL" in table


def _command(dsn: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", "from perdure.cli.main import main; main()", "verify", "--dsn", dsn, *arguments]


def _program(dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(dsn, *arguments), capture_output=True, text=True, timeout=60, check=False)


def _on_terminal(dsn: str) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(_command(dsn), stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the other side of a terminal that is gone
        pass
    os.close(ours)
    process.wait(120)
    return shown.decode()


# -- messages ------------------------------------------------------------------------------------------------------------

word = Signal("verified_word", str)
deal = Approval("verified_deal", assignees=["ada"])
broken: set[str] = set()


@task(name="verified_spoken", retry=Retry(1))
async def spoken(name: str) -> str:
    if name in broken:
        raise ValueError(name)
    return name


@workflow(name="verified_conversation")
async def conversation(name: str, n: int) -> str:
    first = await word.next()
    if first == "on":
        wf.continue_as_new(name, n + 1)
    await deal.wait(details=n)
    await spoken(name)
    await deal.wait(details=n + 10)
    return await word.next()


@pytest.fixture
async def talk(dsn: str) -> AsyncIterator[dict[str, str]]:
    """A run that has failed with a word set aside, one that has continued, and one that was retried. What is active waits for an answer."""
    broken.clear()
    broken.update({"failed", "retried"})
    async with Perdure(dsn) as client:
        handles = {
            name: await client.start(conversation.options(key=name), name, 0) for name in ("failed", "chain", "retried")
        }
        await handles["chain"].signal(word, "on")
        for handle in handles.values():
            await handle.signal(word, "go")
        for name, handle in handles.items():
            await until(lambda handle=handle: _answered(handle))
            if name in broken:
                with pytest.raises(RunFailed):
                    await handle.result("10s")
        broken.clear()
        await handles["retried"].retry()
        await until(lambda: _asks(dsn, 2))
        yield {name: handle.id for name, handle in handles.items()}


async def _answered(handle: Handle[str]) -> bool:
    try:
        return await handle.approve(deal, by="ada")
    except (NotFound, RunFinished):
        return False


async def _asks(dsn: str, questions: int) -> bool:
    connection = await asyncpg.connect(dsn)
    try:
        return (
            await connection.fetchval("select count(*) from perdure.promise where asked and resolved_at is null")
            == questions
        )
    finally:
        await connection.close()


async def wrong(dsn: str) -> dict[int, list[str]]:
    return {t.number: [e.what for e in t.examples] for t in await verify(dsn) if t.violations}


async def test_messages_in_their_places_are_clean(dsn: str, talk: dict[str, str]) -> None:
    assert await wrong(dsn) == {}
    examined = {t.number: t.examined for t in await verify(dsn)}
    assert examined[27] == 3 and examined[28]


BODY = encode_message(SignalMessage("w", b"1")).hex()
FAILED = "(select run_id from perdure.run_key where key = 'failed')"
LAST = "(select run_id from perdure.run_key where key = 'chain')"
FIRST = "(select run_id from perdure.run_chain limit 1)"
SET_ASIDE = (
    "insert into perdure.set_aside_message (id, ns, run_id, kind, name, body, at, reason) values (999, 1, {run}, 'signal', 'w', '\\x"
    + BODY
    + "', now(), '{reason}')"
)


@pytest.mark.parametrize(
    ("number", "what", "statement"),
    [
        (
            26,
            "waits in the inbox",
            f"insert into perdure.inbox (ns, run_id, body, kind) values (1, {FAILED}, '\\x{BODY}', 'signal')",
        ),
        (
            26,
            "waits in the inbox",
            f"insert into perdure.inbox (ns, run_id, body, kind) values (1, {FIRST}, '\\x{BODY}', 'signal')",
        ),
        (26, "and the run is active", SET_ASIDE.format(run=LAST, reason="failed")),
        (26, "and the run is failed", SET_ASIDE.format(run=FAILED, reason="success")),
        (26, "and the run is continued", SET_ASIDE.format(run=FIRST, reason="success")),
        (26, "does not exist", SET_ASIDE.format(run="gen_random_uuid()", reason="success")),
        (28, "which continued as", f"update perdure.run_key set run_id = {FIRST} where key = 'chain'"),
        (28, "and continued as", f"update perdure.run_chain set head = {FIRST}"),
        (28, "and does not exist", "update perdure.run_chain set head = gen_random_uuid()"),
        (28, "has 2 active runs", "update perdure.run_queue set key = 'chain'"),
        (4, "asks something else", "update perdure.promise set question = '\\x00' where asked and resolved_at is null"),
        (4, "and the history has its value", "update perdure.promise set resolved_at = null where asked"),
        (
            4,
            "does not ask for it",
            f"insert into perdure.promise (run_id, name, ns, created_at) values ({LAST}, 'other', 1, now())",
        ),
        (2, "which does not name it", "delete from perdure.run_key where key = 'retried'"),
    ],
    ids=[
        "pending-of-a-failed-run",
        "pending-of-a-continued-run",
        "aside-of-an-active-run",
        "aside-with-another-reason",
        "aside-of-a-continued-run",
        "aside-of-no-run",
        "key-stays-behind",
        "chain-stays-behind",
        "chain-of-no-run",
        "two-runs-under-a-key",
        "another-question",
        "open-with-a-value",
        "never-asked",
        "key-is-lost",
    ],
)
async def test_a_message_in_the_wrong_place_is_found(
    dsn: str, talk: dict[str, str], number: int, what: str, statement: str
) -> None:
    await execute(dsn, statement)
    found = await wrong(dsn)
    assert number in found and any(what in one for one in found[number]), found


async def test_an_answer_without_its_question_is_found(dsn: str, talk: dict[str, str]) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        run = await connection.fetchval(f"select {LAST}")
        rows = await connection.fetch("select seq, body from perdure.history where run_id = $1", run)
        for r in rows:
            events = decode_events(r["body"])
            if any(type(e) is ev.PromiseCreated for e in events):
                kept = [
                    msgspec.structs.replace(e, spec=b'{"title":"x","quorum":1,"reject_quorum":1}')
                    if type(e) is ev.PromiseCreated
                    else e
                    for e in events
                ]
                await connection.execute(
                    "update perdure.history set body = $1 where run_id = $2 and seq = $3",
                    encode_events(kept),
                    run,
                    r["seq"],
                )
    finally:
        await connection.close()
    found = await wrong(dsn)
    assert any("that was not asked" in one for one in found[27]), found


# -- the ledger's files --------------------------------------------------------------------------------------------------


def test_a_line_that_was_torn_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "starts.jsonl"
    path.write_bytes(b'{"run":"a"}\n{"run":"b"}\n{"ru')
    assert list(read_starts(path)) == ["a", "b"]


def test_a_file_that_is_no_ledger_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"run":"a"}\n')
    with pytest.raises(InvalidInput, match="line 1"):
        list(read_ledger(path))
    with pytest.raises(InvalidInput, match="line 1"):
        list(read_starts(_written(tmp_path / "starts.jsonl", b"[]\n")))


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_many_writers_share_a_file_without_tearing_lines(tmp_path: Path) -> None:
    path = tmp_path / "starts.jsonl"

    def write(who: int) -> None:
        mine = Starts(path)
        for n in range(200):
            mine.acknowledged(f"{who}-{n}" * 20)
        mine.close()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(read_starts(path))) == 800


def test_a_ledger_larger_than_memory_comes_back_by_run_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "SORT_LINES", 10)
    path = tmp_path / "ledger.jsonl"
    wanted = [(f"{run:02}", time) for run in range(9) for time in range(7)]
    with path.open("wb") as file:
        for n in range(len(wanted)):
            run, time = wanted[n * 23 % len(wanted)]
            line = {
                "run": run,
                "task": "t",
                "name": "t",
                "attempt": 1,
                "epoch": 1,
                "worker": "w",
                "phase": "begin",
                "boot": "b",
                "mono_us": time,
            }
            file.write(msgspec.json.encode(line) + b"\n")
    with sorted_ledger(path) as lines:
        assert [(x.run, x.mono_us) for x in lines] == wanted


def test_task_ids_in_a_ledger_are_those_of_the_database() -> None:
    run = ids.run_id(1, 0, 1)
    assert ids.parse(ids.text(ids.derive(run, ids.TASK, 3))) == ids.derive(run, ids.TASK, 3)


@workflow(name="verified_stored")
async def stored(text: str, blob: Blob) -> int:
    return len(text) + blob.size


async def stored_content(dsn: str, stores: str, count: int) -> None:
    async with Perdure(dsn, payloads=stores) as client:
        for n in range(count):
            handle = await client.start(stored, f"{n}" * 100_000, Blob.from_bytes(b"b" * 2_500_000))
            await handle.result(timeout="30s")


async def looked_at(dsn: str, *stores: str) -> tuple[int, int, list[str]]:
    found = {t.number: t for t in await verify(dsn, stores=ObjectStores(stores))}[24]
    return found.examined, found.unchecked, [e.what for e in found.examples]


async def test_stored_content_is_read_in_pages_of_any_size(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await stored_content(dsn, "", 3)
    for page in (1, 2, 100):
        monkeypatch.setattr(verify_payloads, "PAGE_REFERENCES", page)
        monkeypatch.setattr(verify_payloads, "PAGE_CONTENTS", page)
        assert await looked_at(dsn) == (6 + 4, 0, []), "references, and contents"


async def test_content_of_an_object_store_is_read_where_the_store_is_known(dsn: str, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/payloads"
    await stored_content(dsn, store, 1)
    assert await looked_at(dsn) == (2, 2, [])
    assert await looked_at(dsn, store) == (2 + 2, 0, [])
    small, large = sorted((tmp_path / "payloads/ns-1").glob("*/*"), key=lambda file: file.stat().st_size)
    small.unlink()
    large.write_bytes(b"c" * 2_500_000)
    assert await looked_at(dsn) == (2, 2, [])
    assert sorted(what.split(": ")[-1] for what in (await looked_at(dsn, store))[2]) == [
        "it is missing in its store",
        "its bytes in its store do not have this SHA-256",
    ]
    options = {"PERDURE_DSN": dsn}
    assert "2 not checked" in (await asyncio.to_thread(perdure_command, "verify", **options)).out
    done = await asyncio.to_thread(perdure_command, "verify", PERDURE_PAYLOADS=store, **options)
    assert done.code == 1 and "it is missing in its store" in done.out
