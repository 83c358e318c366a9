"""A service that does its work once for each Idempotency-Key, as services should that must not do it twice."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Once:
    """The work of one key."""

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self.answer: dict[str, Any] = {}


keys: dict[str, Once] = {}
lock = threading.Lock()
never = threading.Event()


def work(given: Any, params: dict[str, Any], headers: dict[str, str]) -> Any:
    match params["kind"]:
        case "value":
            return params["value"]
        case "nested":
            return {"a": [1, None, {"ä": "日本"}], "b": 1.5}
        case "echo":
            return given
        case "fail":
            raise ValueError("it broke")
        case "sleep" | "stubborn":
            never.wait(params.get("s", 300))
        case "huge":
            return "x" * params["n"]
        case "mark":
            with Path(params["file"]).open("a") as file:
                file.write("begun\n")
            never.wait(params["s"])
            return 7
        case "environment":
            return headers
        case "ids":
            wanted = {"run": "run-id", "task": "task-id", "attempt": "attempt"}
            found = {name: headers[f"x-perdure-{header}"] for name, header in wanted.items()}
            return {**found, "job": headers["idempotency-key"]}
    return None


class Exec(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = json.loads(self.rfile.read(int(headers["content-length"])))
        with lock:
            once = keys.get(headers["idempotency-key"])
            is_first = once is None
            once = keys.setdefault(headers["idempotency-key"], Once())
        if is_first:
            threading.Thread(target=self._work, args=(once, body, headers), daemon=True).start()
        once.is_done.wait()
        data = b"\xff\xfe\x00garbage" if body["params"]["kind"] == "garbage" else json.dumps(once.answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
        except OSError:
            pass  # the caller has gone

    @staticmethod
    def _work(once: Once, body: dict[str, Any], headers: dict[str, str]) -> None:
        try:
            once.answer = {"result": work(body["input"], body["params"], headers), "error": ""}
        except Exception as e:
            once.answer = {"result": None, "error": f"{type(e).__name__}: {e}"}
        once.is_done.set()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


server = Server(("127.0.0.1", 0), Exec)
print(server.server_port, flush=True)
server.serve_forever()
