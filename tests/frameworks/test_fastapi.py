"""Perdure in FastAPI applications: the client is open as long as the application, and every kind of handler finds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, WebSocket
from fastapi.testclient import TestClient

from perdure import Client, Perdure, client, sync_client, workflow
from perdure.app.web_answers import answer_to
from perdure.core.errors import error_classes
from perdure.errors import (
    NotRegistered,
    PerdureError,
    RateLimited,
    RunAlreadyExists,
    Unauthenticated,
    Unavailable,
)
from perdure.frameworks.fastapi import (
    PerdureClient,
    SyncPerdureClient,
    answer_errors,
    lifespan,
    opened,
    perdure_client,
)
from tests.server.remote import server, worker


@workflow(name="fastapi_shout")
async def shout(text: str) -> str:
    return text.upper()


def embedded(dsn: str) -> Callable[[], Perdure]:
    return partial(Perdure, dsn, tune_gc=False)


def with_handlers(app: FastAPI) -> FastAPI:
    """One of each kind."""
    heard: list[str] = []

    @app.get("/given/{text}")
    async def given(text: str, client: PerdureClient) -> str:
        return await client.run(shout, text)

    @app.get("/found/{text}")
    async def found(text: str) -> str:
        return await (await shout.start(text)).result("3m")

    @app.get("/blocking/{text}")
    def blocking(text: str, client: SyncPerdureClient) -> str:
        return client.run(shout, text)

    @app.get("/found-blocking/{text}")
    def found_blocking(text: str) -> str:
        return sync_client().run(shout, text)

    @app.get("/later/{text}")
    async def later(text: str, background: BackgroundTasks) -> None:
        async def on_the_loop() -> None:
            heard.append(await client().run(shout, text))

        background.add_task(on_the_loop)
        background.add_task(lambda: heard.append(sync_client().run(shout, f"{text} in a thread")))

    @app.get("/heard")
    async def what_was_heard() -> list[str]:
        return heard

    @app.websocket("/socket")
    async def socket(one: WebSocket, client: PerdureClient) -> None:
        await one.accept()
        await one.send_text(await client.run(shout, await one.receive_text()))
        await one.close()

    return app


def ask_all(app: FastAPI) -> None:
    with TestClient(app) as web:
        for path in ("given", "found", "blocking", "found-blocking"):
            assert web.get(f"/{path}/hello").json() == "HELLO", path
        assert web.get("/later/tea").status_code == 200
        assert web.get("/heard").json()[-2:] == ["TEA", "TEA IN A THREAD"]
        with web.websocket_connect("/socket") as socket:
            socket.send_text("word")
            assert socket.receive_text() == "WORD"


def test_handlers_of_every_kind_find_the_embedded_client(dsn: str) -> None:
    app = with_handlers(FastAPI(lifespan=lifespan(embedded(dsn))))
    ask_all(app)
    assert not hasattr(app.state, "perdure")
    ask_all(app)  # an application may be started again


async def test_handlers_of_every_kind_find_the_client_of_a_server(dsn: str) -> None:
    async with server(dsn) as one, worker(one.address):
        app = with_handlers(FastAPI(lifespan=lifespan(partial(Client, one.address))))
        await asyncio.to_thread(ask_all, app)


def test_the_applications_own_lifespan_is_around_that_of_the_client(dsn: str) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        seen.append(f"opens {hasattr(app.state, 'perdure')}")
        yield {"word": "own"}
        seen.append(f"closes {hasattr(app.state, 'perdure')}")

    app = FastAPI(lifespan=lifespan(embedded(dsn), own=own))

    @app.get("/")
    async def word(client: PerdureClient) -> str:
        seen.append("serves")
        return await client.run(shout, "word")

    with TestClient(app) as web:
        assert web.get("/").json() == "WORD"
        assert web.app_state == {"word": "own"}
    assert seen == ["opens False", "serves", "closes False"]


def test_a_client_is_opened_inside_a_lifespan_that_is_written_by_hand(dsn: str) -> None:
    @asynccontextmanager
    async def by_hand(app: FastAPI) -> AsyncIterator[None]:
        async with opened(app, embedded(dsn)) as client:
            assert app.state.perdure is client
            assert await client.run(shout, "at start") == "AT START"
            yield

    ask_all(with_handlers(FastAPI(lifespan=by_hand)))


def test_two_applications_in_one_process_have_their_own_clients() -> None:
    def app() -> FastAPI:
        made = FastAPI(
            lifespan=lifespan(partial(Client, "127.0.0.1:1")), dependencies=[Depends(perdure_client)]
        )  # it connects at its first call

        @made.get("/")
        async def is_own() -> bool:
            return client()._backend is made.state.perdure._backend

        @made.get("/blocking")
        def is_own_in_a_thread() -> bool:
            return client()._backend is made.state.perdure._backend

        return made

    with TestClient(app()) as one, TestClient(app()) as other:
        for web in (one, other, one):
            assert web.get("/").json() is True
            assert web.get("/blocking").json() is True


def test_an_application_that_is_mounted_uses_the_client_of_the_outer_one(dsn: str) -> None:
    inner, outer = FastAPI(), FastAPI(lifespan=lifespan(embedded(dsn)))
    with_handlers(inner)
    outer.mount("/inner", inner)
    with TestClient(outer) as web:
        assert web.get("/inner/given/hello").json() == "HELLO"
        assert web.get("/inner/blocking/hello").json() == "HELLO"


def test_an_application_without_a_lifespan_says_what_is_missing() -> None:
    app = with_handlers(FastAPI())
    with TestClient(app) as web, pytest.raises(PerdureError, match="no Perdure client here"):
        web.get("/given/hello")


def raising(app: FastAPI, error: Exception) -> None:
    @app.get("/raises")
    async def raises() -> None:
        raise error


def test_errors_about_the_request_are_answered(dsn: str) -> None:
    app = FastAPI(lifespan=lifespan(embedded(dsn)))
    answer_errors(app)

    @app.get("/runs/{run}")
    async def status(run: str, client: PerdureClient) -> str:
        return await (await client.get(run)).status()

    @app.post("/runs/{key}")
    async def start(key: str, client: PerdureClient) -> str:
        return (await client.start(shout.options(key=key, on_conflict="fail"), key)).id

    with TestClient(app) as web:
        missing = web.get("/runs/0197f000-0000-7000-8000-000000000001")
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
        assert "detail" in missing.json()
        run = web.post("/runs/one").json()
        assert web.get(f"/runs/{run}").status_code == 200
        taken = web.post("/runs/one")
        assert (taken.status_code, taken.json()["code"]) == (409, "run_already_exists")
        assert web.get("/runs/!!").status_code in (404, 422)


def test_a_server_that_is_away_is_503_with_retry_after() -> None:
    app = with_handlers(FastAPI(lifespan=lifespan(partial(Client, "127.0.0.1:1", call_timeout="2s"))))
    answer_errors(app)
    with TestClient(app) as web:
        for path in ("/given/hello", "/found-blocking/hello"):
            away = web.get(path)
            assert (away.status_code, away.headers["Retry-After"], away.json()["code"]) == (503, "1", "unavailable")


@pytest.mark.parametrize(
    "error", [Unauthenticated("no key"), NotRegistered("no workflow"), PerdureError("?")], ids=lambda e: e.code
)
def test_faults_of_the_application_are_not_answered(error: Exception) -> None:
    app = FastAPI()
    answer_errors(app)
    raising(app, error)
    with TestClient(app) as web, pytest.raises(type(error)):
        web.get("/raises")
    assert TestClient(app, raise_server_exceptions=False).get("/raises").status_code == 500


def test_every_answer_has_a_status_for_callers_of_the_application() -> None:
    statuses = {
        kind.code: answer_to(kind.__new__(kind)) for kind in error_classes() if kind.__init__ is Exception.__init__
    }
    given = {code: answer.status for code, answer in statuses.items() if answer is not None}
    assert set(given.values()) >= {403, 404, 409, 410, 422, 503}
    assert not {401, 429, 500} & set(given.values())
    assert not given.keys() & {"unauthenticated", "forbidden", "not_registered", "error", "payload_missing"}
    assert answer_to(RunAlreadyExists("taken")) == (409, {}, {"detail": "taken", "code": "run_already_exists"})
    assert answer_to(RateLimited("slow down", 2.5)) == (
        503,
        {"Retry-After": "3"},
        {"detail": "slow down", "code": "rate_limited"},
    )
    assert answer_to(Unavailable("away")).headers == {"Retry-After": "1"}  # type: ignore[union-attr]
