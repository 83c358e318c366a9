"""The client of the command line against servers that misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from perdure.programs.http_client import HttpApi, Unreachable
from tests.cli.live import perdure

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
RUN = {
    "id": "01a1dd0e-b16f-7000-91c4-5ab16e404444",
    "workflow": "w",
    "version": "1",
    "key": None,
    "created_at": "2026-11-15T05:00:00.000000Z",
    "attributes": {},
    "tasks": {},
    "url": "http://x/runs/1",
}


class Fake:
    """Answers as a function of the path says; None breaks the connection."""

    def __init__(self, answer: Callable[[str, str], Answer | None]) -> None:
        fake = self
        self.asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.asked.append(f"{self.command} {self.path} {self.headers.get('Idempotency-Key') or ''}".strip())
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answered = answer(self.command, self.path.removeprefix("/api/v1"))
                if answered is None:
                    self.close_connection = True
                    return
                status, body, *more = answered
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in (more[0] if more else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def fake() -> Iterator[Callable[[Callable[[str, str], Answer | None]], Fake]]:
    made: list[Fake] = []

    def make(answer: Callable[[str, str], Answer | None]) -> Fake:
        made.append(Fake(answer))
        return made[-1]

    yield make
    for one in made:
        one.server.shutdown()
        one.server.server_close()


Make = Callable[[Callable[[str, str], Answer | None]], Fake]


def test_lists_go_on_over_empty_pages(fake: Make) -> None:
    pages = {None: ([1], "a"), "a": ([], "b"), "b": ([2, 3], None)}

    def answer(_: str, path: str) -> Answer:
        cursor = path.partition("cursor=")[2] or None
        items, following = pages[cursor]
        return 200, {"items": items, "next": following}

    with HttpApi(fake(answer).url) as api:
        assert list(api.items("/things")) == [1, 2, 3]
        assert list(api.items("/things", limit=1)) == [1]


def test_a_limited_caller_waits_and_tries_again(fake: Make) -> None:
    answers = iter([(429, {"code": "rate_limited", "detail": "wait"}, {"Retry-After": "0"}), (200, {"ok": True})])
    server = fake(lambda *_: next(answers))
    with HttpApi(server.url) as api:
        assert api.get("/x") == {"ok": True}
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (401, "unauthenticated", 5),
        (403, "forbidden", 5),
        (404, "not_found", 4),
        (409, "conflict", 1),
        (422, "invalid_input", 2),
        (500, "internal", 1),
        (503, "unavailable", 5),
    ],
)
def test_problems_become_exit_codes(fake: Make, status: int, code: str, exit_code: int) -> None:
    server = fake(lambda *_: (status, {"code": code, "detail": "what happened", "status": status}))
    done = perdure("show", "abcdef", PERDURE_URL=server.url)
    assert done.code == exit_code
    assert done.err.startswith("perdure: what happened")


def test_a_stranger_at_the_address(fake: Make) -> None:
    server = fake(lambda *_: (404, "<html>nginx</html>"))
    done = perdure("list", PERDURE_URL=server.url)
    assert done.code == 1
    assert "is not a Perdure server" in done.err


def test_a_stranger_that_answers_well(fake: Make) -> None:
    server = fake(lambda *_: (200, "<html>welcome</html>"))
    done = perdure("list", PERDURE_URL=server.url)
    assert done.code == 1
    assert "is not a Perdure server" in done.err and "Traceback" not in done.err


def test_nobody_there() -> None:
    with HttpApi("127.0.0.1:9") as api, pytest.raises(Unreachable, match="connection refused"):
        api.get("/x")


def test_a_start_whose_answer_is_lost_is_sent_again_under_the_same_key(fake: Make) -> None:
    answers: Iterator[Answer | None] = iter([None, (201, {**RUN, "status": "pending", "finished_at": None})])
    server = fake(lambda *_: next(answers))
    with HttpApi(server.url) as api:
        assert api.post("/workflows/w/runs", {}, idempotency_key="k")["id"] == RUN["id"]
    assert server.asked == ["POST /api/v1/workflows/w/runs k"] * 2


def test_other_writes_are_not_repeated_blindly(fake: Make) -> None:
    server = fake(lambda *_: None)
    with HttpApi(server.url) as api, pytest.raises(Unreachable):
        api.post("/runs/x/cancel", {})
    assert len(server.asked) == 1


def test_watch_without_a_stream_polls(fake: Make) -> None:
    looks = iter(["running", "running", "success"])

    def answer(_: str, path: str) -> Answer:
        if path.startswith("/stream"):
            return 404, {"code": "not_found", "detail": "no stream here"}
        if "/tasks" in path:
            return 200, {"items": [], "next": None}
        status = next(looks, "success")
        return 200, {**RUN, "status": status, "finished_at": RUN["created_at"] if status == "success" else None}

    done = perdure("watch", RUN["id"], PERDURE_URL=fake(answer).url)  # type: ignore[arg-type]
    assert done.code == 0
    assert [line[1] for line in done.lines] == ["running", "success"]


def test_watch_outlives_a_restart_of_the_server(fake: Make) -> None:
    answers = iter(["running", None, None, "running", "cancelled"])

    def answer(_: str, path: str) -> Answer:
        if path.startswith("/stream"):
            return 503, {"code": "unavailable", "detail": "draining"}
        if "/tasks" in path:
            return 200, {"items": [], "next": None}
        status = next(answers, "cancelled")
        if status is None:
            return 503, {"code": "unavailable", "detail": "draining"}
        return 200, {**RUN, "status": status, "finished_at": RUN["created_at"] if status == "cancelled" else None}

    done = perdure("watch", RUN["id"], PERDURE_URL=fake(answer).url)  # type: ignore[arg-type]
    assert done.code == 3


def test_watch_follows_a_run_that_continues_as_new(fake: Make) -> None:
    second = "01a1dd0e-b16f-7000-91c4-5ab16e405555"

    def answer(_: str, path: str) -> Answer:
        if "/tasks" in path:
            return 200, {"items": [], "next": None}
        if path.startswith("/stream"):
            return 404, {"code": "not_found", "detail": "no stream here"}
        ended = {"status": "success", "finished_at": RUN["created_at"]}
        if second in path:
            return 200, {**RUN, **ended, "id": second, "successor": None}
        return 200, {**RUN, **ended, "successor": second}

    done = perdure("watch", RUN["id"], PERDURE_URL=fake(answer).url)  # type: ignore[arg-type]
    assert done.code == 0 and second in done.out
