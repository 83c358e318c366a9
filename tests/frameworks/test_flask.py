"""Perdure in Flask applications: one client per process, opened after the fork, found in every thread, closed at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from flask import Flask, jsonify
from werkzeug.serving import make_server

from perdure import SyncClient, SyncPerdure, sync_client, workflow
from perdure.errors import NotRegistered, PerdureError
from perdure.frameworks import flask as module
from perdure.frameworks.flask import FlaskPerdure

PROGRAM = Path(__file__).parent / "forking_flask.py"


@workflow(name="flask_shout")
async def shout(text: str) -> str:
    return text.upper()


def embedded(dsn: str) -> Callable[[], SyncPerdure]:
    return partial(SyncPerdure, dsn, tune_gc=False)


def made(perdure: FlaskPerdure) -> Flask:
    app = Flask("shop")
    perdure.init_app(app)

    @app.get("/given/<text>")
    def given(text: str) -> str:
        return perdure.client.run(shout, text)

    @app.get("/found/<text>")
    def found(text: str) -> Any:
        return jsonify(text=sync_client().run(shout, text), thread=threading.get_ident())

    @app.get("/runs/<run>")
    def status(run: str) -> str:
        return perdure.client.get(run).status()

    @app.get("/plain")
    def plain() -> str:
        return "plain"

    @app.get("/broken")
    def broken() -> str:
        raise NotRegistered("no such workflow")

    return app


def test_the_client_is_opened_by_the_first_request_and_not_before(dsn: str) -> None:
    perdure = FlaskPerdure(opener=embedded(dsn))
    app = made(perdure)
    assert app.extensions["perdure"] is perdure
    assert not perdure._client.is_open
    web = app.test_client()
    try:
        assert web.get("/found/hello").get_json()["text"] == "HELLO"
        first = perdure.client
        assert web.get("/given/hello").text == "HELLO"
        assert perdure.client is first
        with pytest.raises(LookupError):
            module.ambient.get()  # nothing of a request is left in its thread
    finally:
        perdure.close()
    perdure.close()
    assert web.get("/given/again").text == "AGAIN", "it is opened again when it is needed"
    perdure.close()


def test_every_thread_of_a_server_uses_one_client(dsn: str) -> None:
    perdure = FlaskPerdure(opener=embedded(dsn))
    app = made(perdure)
    with make_server("127.0.0.1", 0, app, threaded=True) as server, ThreadPoolExecutor(8) as threads:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            import httpx2

            asked = list(
                threads.map(
                    lambda n: httpx2.get(f"http://127.0.0.1:{server.port}/found/w{n}", timeout=120).json(), range(16)
                )
            )
        finally:
            server.shutdown()
            serving.join()
            perdure.close()
    assert [a["text"] for a in asked] == [f"W{n}" for n in range(16)]
    assert len({a["thread"] for a in asked}) > 1


def test_requests_that_come_together_open_one_client() -> None:
    opened: list[SyncClient] = []

    def opener() -> SyncClient:
        opened.append(SyncClient("127.0.0.1:1"))
        return opened[-1]

    perdure = FlaskPerdure(opener=opener)
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as threads:

        def ask(_: int) -> Any:
            together.wait()
            return perdure.client

        assert set(threads.map(ask, range(8))) == {opened[0]}
    assert len(opened) == 1
    perdure.close()


def test_two_applications_in_one_process_have_their_own_clients() -> None:
    first, second = (FlaskPerdure(opener=partial(SyncClient, "127.0.0.1:1")) for _ in range(2))

    def app_of(perdure: FlaskPerdure) -> Any:
        app = Flask("one")
        perdure.init_app(app)

        @app.get("/")
        def is_own() -> str:
            return str(sync_client()._client._backend is perdure.client._client._backend)

        return app.test_client()

    one, other = app_of(first), app_of(second)
    try:
        assert [web.get("/").text for web in (one, other, one)] == ["True"] * 3
    finally:
        first.close()
        second.close()


def test_a_database_that_is_away_fails_the_handlers_that_need_it_and_no_others(dsn: str) -> None:
    where = ["postgresql://nobody@127.0.0.1:1/nothing"]
    attempts: list[str] = []

    def opener() -> SyncPerdure:
        attempts.append(where[0])
        return SyncPerdure(where[0], tune_gc=False)

    perdure = FlaskPerdure(opener=opener)
    web = made(perdure).test_client()
    assert web.get("/plain").text == "plain"
    assert web.get("/plain").text == "plain"
    assert len(attempts) == 1, "requests do not try again at once"
    away = web.get("/given/hello")
    assert away.status_code == 503, away.text
    assert int(away.headers["Retry-After"]) >= 1
    where[0] = dsn
    try:
        assert web.get("/given/hello").text == "HELLO"
    finally:
        perdure.close()


def test_errors_about_the_request_are_answered_and_faults_of_the_application_are_not(dsn: str) -> None:
    perdure = FlaskPerdure(opener=embedded(dsn))
    app = made(perdure)
    web = app.test_client()
    try:
        missing = web.get("/runs/0197f000-0000-7000-8000-000000000001")
        assert missing.get_json()["code"] == "not_found"
        assert missing.status_code == 404
        assert web.get("/broken").status_code == 500
    finally:
        perdure.close()
    unanswered = FlaskPerdure(opener=embedded(dsn), answer_errors=False)
    app = made(unanswered)
    app.testing = True
    try:
        with pytest.raises(PerdureError):
            app.test_client().get("/runs/0197f000-0000-7000-8000-000000000001")
    finally:
        unanswered.close()


@pytest.mark.usefixtures("interpreter")
def test_processes_that_are_forked_have_clients_of_their_own_and_close_them_at_their_end(dsn: str) -> None:
    """The parent has a client before it forks, as with `gunicorn --preload`; it goes on working afterwards."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(PROGRAM), dsn],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split()) == ["CHILD0", "CHILD1", "PARENT", "PARENT-AGAIN"], done.stdout + done.stderr
    assert done.stderr == ""
    assert time.monotonic() - began < 60
    with psycopg.connect(dsn) as connection:
        sessions = connection.execute("select count(*) from perdure.engine_session where expires_at > now()").fetchone()
        assert sessions == (0,), "every process has ended its session"
        runs = connection.execute("select count(*) from perdure.run where status = 'success'").fetchone()
        assert runs == (4,)
