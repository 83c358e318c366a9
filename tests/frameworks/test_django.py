"""The Django app: starts in transactions, the client of the process, Django's tasks, and settings."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from django.test import override_settings
from django.utils import timezone

from perdure import SyncPerdure
from perdure.core.errors import Failure
from perdure.errors import InvalidInput, NotFound, PayloadMismatch
from perdure.frameworks.django import aclient, client, clients, emit, signal, start
from perdure.frameworks.django.configuration import configuration, database_dsn
from perdure.frameworks.django.testing import forget_started, started
from tests.fakes.waiting import until_sync
from tests.frameworks.django_jobs import (
    Refused,
    added,
    dj_add,
    dj_note,
    dj_refuse,
    dj_second_time,
    dj_shout,
    double,
    happened,
    paid,
    queries,
    sums,
    waits,
)

from perdure.frameworks.django.task_runs import tasks_api, tasks_exceptions, tasks_signals  # isort: skip - Django is set up above
from perdure.frameworks.django import tasks as backend_module  # isort: skip
from perdure.frameworks.django.tasks import class_path  # isort: skip

TaskResultStatus, task_backends = tasks_api.TaskResultStatus, tasks_api.task_backends
TaskResultDoesNotExist, TaskResultMismatch = (
    tasks_exceptions.TaskResultDoesNotExist,
    tasks_exceptions.TaskResultMismatch,
)
task_enqueued, task_started, task_finished = (
    tasks_signals.task_enqueued,
    tasks_signals.task_started,
    tasks_signals.task_finished,
)
ROOT = Path(__file__).parents[2]
RESULT_S = "30s"


@pytest.fixture
def database(dsn: str) -> Iterator[str]:
    """Django's default database is that of the test."""
    parts, given = urlsplit(dsn), connections["default"].settings_dict
    before = dict(given)
    given |= {
        "NAME": parts.path[1:],
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
    }
    yield dsn
    clients.close()
    connections.close_all()
    given.update(before)


@pytest.fixture
def engine(database: str) -> Iterator[SyncPerdure]:
    """An engine and a worker."""
    with SyncPerdure(database, queues=["default", "mail"], tune_gc=False) as opened:
        for one in (double, sums, waits, queries):
            opened._client.serve(one)  # type: ignore[union-attr]
        opened._loop.call(opened._client.engine.refresh())  # type: ignore[union-attr]
        yield opened


class Boom(Exception):
    pass


def settled() -> None:
    """Every request in SQL was carried out."""

    def is_empty() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from perdure.sql_request where error is null")
            return cursor.fetchone() == (0,)

    until_sync(is_empty)


def finished(result: Any) -> Any:
    def is_finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    until_sync(is_finished)
    return result


def test_a_run_exists_if_and_only_if_the_transaction_around_its_start_commits(engine: SyncPerdure) -> None:
    with pytest.raises(Boom), transaction.atomic():
        start(double, 1)
        raise Boom
    with transaction.atomic():
        run = start(double.options(key="two"), 2)
        with pytest.raises(Boom), transaction.atomic():
            start(double, 3)
            raise Boom
    settled()
    assert client().get(run, workflow=double).result(RESULT_S) == 4
    assert [one.key for one in engine.list()] == ["two"]
    assert start(double.options(key="two"), 5) == run, "a key belongs to one run"


def test_signals_and_events_are_part_of_the_transaction_too(engine: SyncPerdure) -> None:
    waiting = engine.start(waits)
    with transaction.atomic():
        run = start(sums)
        signal(added, run, 3)
        signal(added, run, 4)
        emit(paid, 9)
    settled()
    assert client().get(run).result(RESULT_S) == 7
    until_sync(lambda: emit(paid, 9) or waiting.status() == "success")
    assert waiting.result(RESULT_S) == 9


@override_settings(PERDURE={"DATABASE": "default", "START": "commit"})
def test_a_start_on_commit_comes_after_the_commit_and_can_be_found_by_what_it_returned(engine: SyncPerdure) -> None:
    with pytest.raises(Boom), transaction.atomic():
        start(double, 1)
        raise Boom
    with transaction.atomic():
        run = start(double, 2)
        with pytest.raises(NotFound):
            client().get(run)
    assert client().get(run, workflow=double).result(RESULT_S) == 4
    assert len(engine.list()) == 1
    with pytest.raises(PayloadMismatch):
        start(double, "two")  # type: ignore[arg-type]
    result = dj_add.enqueue(1, 2)
    assert finished(result).return_value == 3
    assert result.id.startswith("key:")


@override_settings(PERDURE={"DATABASE": "default", "START": "now"})
def test_a_start_that_is_made_now_survives_a_rollback(engine: SyncPerdure) -> None:
    with pytest.raises(Boom), transaction.atomic():
        run = start(double, 2)
        raise Boom
    assert client().get(run, workflow=double).result(RESULT_S) == 4


@override_settings(PERDURE={"START": "record"})
def test_recorded_starts_are_those_that_no_rollback_has_taken_back(database: str) -> None:
    forget_started()
    with pytest.raises(Boom), transaction.atomic():
        start(double, 1)
        with pytest.raises(Boom), transaction.atomic():
            start(double, 2)
            raise Boom
        signal(added, "key:x", 3)
        dj_note.enqueue("x")
        assert [(one.name, one.args) for one in started()][:2] == [("dj_double", (1,)), ("dj_added", ("key:x", 3))]
        assert len(started("django_task")) == 1
        raise Boom
    assert started() == []
    start(double, 4)
    assert [one.args for one in started()] == [(4,)]
    forget_started()
    assert started() == []


def test_options_that_a_transaction_cannot_have_are_refused_in_every_mode(database: str) -> None:
    for given in ({"DATABASE": "default"}, {}, {"START": "record"}):
        with override_settings(PERDURE=given), pytest.raises(InvalidInput, match="takes no start_within"):
            start(double.options(start_within="1h"), 1)


def test_async_views_use_the_client_of_the_process_from_their_own_loop(engine: SyncPerdure) -> None:
    async def view() -> int:
        handle = await (await aclient()).start(double, 4)
        return await handle.result(RESULT_S)

    assert asyncio.run(view()) == 8
    assert asyncio.run(view()) == 8, "another loop"
    assert clients.process_client.get() is clients.process_client.get()


def test_connections_of_a_task_are_closed_after_it_as_after_a_request(engine: SyncPerdure, database: str) -> None:
    pid = engine.run(queries)
    with psycopg.connect(database, autocommit=True) as other:
        alive = "select count(*) from pg_stat_activity where pid = %s"
        until_sync(lambda: other.execute(alive, [pid]).fetchone() == (0,))


FORKING = """
import os, sys
from tests.frameworks import django_jobs
from django.db import connections
from urllib.parse import urlsplit
parts = urlsplit(sys.argv[1])
connections["default"].settings_dict |= {"NAME": parts.path[1:], "HOST": parts.hostname, "PORT": parts.port, "USER": parts.username, "PASSWORD": parts.password or ""}
from perdure.frameworks.django import client, clients
mine = client()
assert mine.list() == []
pid = os.fork()
if pid == 0:
    assert not clients.process_client.is_open
    assert client() is not mine
    assert client().list() == []
    sys.exit(0)  # closes its own client, and leaves that of the parent alone
assert os.waitpid(pid, 0)[1] == 0
assert mine.list() == []
print("ended well")
"""


@pytest.mark.usefixtures("interpreter")
def test_each_process_opens_a_client_of_its_own_after_a_fork_and_closes_it_at_its_end(dsn: str) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", FORKING, dsn],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ended well\n"), done.stderr
    with psycopg.connect(dsn, autocommit=True) as database:
        assert database.execute("select count(*) from perdure.engine_session where expires_at > now()").fetchone() == (
            0,
        )


# -- Django's tasks ----------------------------------------------------------------------------------------------------


def test_a_task_is_enqueued_run_and_read(engine: SyncPerdure) -> None:
    seen: list[tuple[str, str]] = []
    receivers = [
        (one, lambda task_result, word=word, **_: seen.append((word, task_result.id)))
        for word, one in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished))
    ]
    for one, receiver in receivers:
        one.connect(receiver)
    try:
        result = dj_add.enqueue(1, b=2)
        assert (result.status, result.attempts, result.started_at) == (TaskResultStatus.READY, 0, None)
        with pytest.raises(ValueError, match="not finished"):
            _ = result.return_value
        finished(result)
    finally:
        for one, receiver in receivers:
            one.disconnect(receiver)
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert (result.args, result.kwargs, result.errors) == ([1], {"b": 2}, [])
    assert seen == [(word, result.id) for word in ("enqueued", "started", "finished")]
    assert dj_add.get_result(result.id).return_value == 3
    (run,) = engine.list()
    assert run.attributes == {"task": "tests.frameworks.django_jobs.dj_add"}


def test_a_task_exists_if_and_only_if_the_transaction_around_its_enqueuing_commits(engine: SyncPerdure) -> None:
    with pytest.raises(Boom), transaction.atomic():
        lost = dj_note.enqueue("lost")
        assert dj_note.get_result(lost.id).status == TaskResultStatus.READY, "this transaction sees it"
        raise Boom
    with transaction.atomic():
        kept = dj_note.enqueue("kept")
    assert kept.id and finished(kept).return_value is None
    assert happened == ["kept"]
    with pytest.raises(TaskResultDoesNotExist):
        dj_note.get_result(lost.id)
    happened.clear()


def test_a_task_is_found_that_became_a_run_while_it_was_looked_for(
    engine: SyncPerdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = backend_module._requested

    def late(id: str) -> Any:
        settled()  # after the look for the run, and before the look for its request
        return requested(id)

    monkeypatch.setattr(backend_module, "_requested", late)
    with transaction.atomic():
        id = dj_add.enqueue(1, 2).id
    assert dj_add.get_result(id).id == id


def test_a_task_that_raises_is_tried_as_often_as_its_backend_says_and_keeps_every_error(engine: SyncPerdure) -> None:
    result = finished(dj_refuse.enqueue("no"))
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
    assert [one.exception_class for one in result.errors] == [Refused, Refused]
    assert "raise Refused(why)" in result.errors[0].traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    once = finished(dj_second_time.enqueue(7))
    assert once.return_value == f"7: attempt 2 of {once.id}"
    assert [one.exception_class for one in once.errors] == [ValueError]


def test_async_functions_queues_and_async_calls_work(engine: SyncPerdure) -> None:
    async def view() -> Any:
        result = await dj_shout.aenqueue("hello")
        while not result.is_finished:
            await result.arefresh()
        return await dj_shout.aget_result(result.id)

    try:
        result = asyncio.run(view())
    finally:
        connections.close_all()
    assert (result.return_value, result.task.queue_name, result.task.priority) == ("HELLO", "mail", 5)
    (run,) = engine.list()
    (item,) = [e.data for e in engine.get(run.id).events() if e.type == "TasksScheduled"]
    assert (item.queue, item.options.control.priority) == ("mail", 5)  # type: ignore[union-attr]


def test_a_deferred_task_is_ready_until_its_time_and_then_runs(engine: SyncPerdure) -> None:
    at = timezone.now() + timedelta(seconds=5)
    result = dj_add.using(run_after=at).enqueue(1, 2)
    settled()
    result.refresh()
    assert (result.status, result.task.run_after) == (TaskResultStatus.READY, at)
    assert finished(result).started_at >= at
    assert dj_add.get_result(result.id).task.run_after == at


def test_results_that_are_not_there_or_not_of_the_task_are_said_to_be_so(engine: SyncPerdure) -> None:
    run = engine.start(double, 1).id
    for id in (run, "0197f000-0000-7000-8000-000000000001", "key:nothing", "nonsense", "@last"):
        with pytest.raises(TaskResultDoesNotExist):
            dj_add.get_result(id)
    result = finished(dj_add.enqueue(1, 2))
    with pytest.raises(TaskResultMismatch):
        dj_note.get_result(result.id)
    with pytest.raises(TaskResultDoesNotExist):
        dj_refuse.get_result(result.id)  # it is of another backend


def test_a_cancelled_task_has_failed_with_an_error(engine: SyncPerdure) -> None:
    result = dj_add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1, 2)
    settled()
    engine.get(result.id).cancel()
    assert finished(result).status == TaskResultStatus.FAILED
    assert len(result.errors) == 1


def test_a_start_that_cannot_be_carried_out_is_a_failed_task(engine: SyncPerdure) -> None:
    result = dj_add.enqueue(1, 2)
    finished(result)
    with connection.cursor() as cursor:
        cursor.execute("select perdure.start('django_task', '{\"wrong\": 1}')")
    settled()
    with connection.cursor() as cursor:
        cursor.execute("select run_id::text, error from perdure.sql_request")
        ((id, error),) = cursor.fetchall()
        cursor.execute(
            "update perdure.sql_request set payload = %s",
            [
                '{"call": {"function": "tests.frameworks.django_jobs.dj_add", "args": [], "kwargs": {}, "backend": "default", "queue": "default"}}'
            ],
        )
    found = dj_add.get_result(id)
    assert found.status == TaskResultStatus.FAILED
    assert error in found.errors[0].traceback


def test_what_the_backend_says_about_itself_is_true() -> None:
    backend = task_backends["default"]
    flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
    assert all(getattr(backend, flag) for flag in flags)
    with pytest.raises(Exception, match="Queue 'other' is not valid"):
        dj_add.using(queue_name="other")


@pytest.mark.parametrize(
    ("failure", "path"),
    [
        (Failure("task_failed", "x", "ValueError", "Traceback ...\nValueError: x\n"), "builtins.ValueError"),
        (Failure("task_failed", "x", "Late", "Traceback ...\nshop.errors.Late: x\nLate: y\n"), "builtins.Late"),
        (Failure("task_failed", "x", "Late", "Late: y\nTraceback ...\nshop.errors.Late: x"), "shop.errors.Late"),
        (Failure("task_failed", "", "Inner", "Traceback ...\nshop.Outer.Inner\n"), "shop.Outer.Inner"),
        (Failure("run_cancelled", "stopped"), "perdure.errors.PerdureError"),
    ],
)
def test_the_class_of_an_error_is_read_from_its_traceback(failure: Failure, path: str) -> None:
    assert class_path(failure) == path


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"SERVERS": "x"}, "unknown field `SERVERS`.*Its keys are SERVER, API_KEY"),
        ({"START": "soon"}, "START is one of transaction, commit, now, record"),
        ({"START": "transaction"}, r"needs PERDURE\['DATABASE'\]"),
        ({"DATABASE": "default", "NAMESPACE": "moon"}, "go to the namespace 'default' only"),
        ([], "must be a dict"),
    ],
)
def test_mistakes_in_the_settings_are_explained(given: Any, text: str) -> None:
    with override_settings(PERDURE=given), pytest.raises(ImproperlyConfigured, match=text):
        configuration()
    with override_settings(PERDURE=given):
        assert [one.id for one in run_checks()] == ["perdure.E001"]


def test_a_database_that_is_not_there_or_not_postgresql_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="not in DATABASES"):
        database_dsn("other")
    lite = {"default": connections.settings["default"], "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": "x"}}
    fresh = type(connections)(lite)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perdure.frameworks.django.configuration.connections", fresh)
        with pytest.raises(ImproperlyConfigured, match="a database of sqlite"):
            database_dsn("lite")


@pytest.mark.parametrize(
    ("given", "dsn"),
    [
        (
            {"NAME": "shop", "HOST": "db", "PORT": 5433, "USER": "ada", "PASSWORD": "a/b@c"},
            "postgresql://ada:a%2Fb%40c@db:5433/shop",
        ),
        ({"NAME": "shop", "HOST": "/run/pg", "PORT": 5433}, "postgresql:///shop?host=%2Frun%2Fpg&port=5433"),
        (
            {"NAME": "shop", "USER": "ada", "OPTIONS": {"sslmode": "require", "pool": True}},
            "postgresql://ada@/shop?sslmode=require",
        ),
    ],
)
def test_the_dsn_is_that_of_the_settings(given: dict[str, Any], dsn: str) -> None:
    settings = connections["default"].settings_dict
    before = dict(settings)
    try:
        settings |= {"NAME": "", "HOST": "", "PORT": "", "USER": "", "PASSWORD": "", "OPTIONS": {}} | given
        assert database_dsn("default") == dsn
    finally:
        settings.update(before)
