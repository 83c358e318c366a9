"""A worker written from the text of the scheduler that the service protocol comes from, and from nothing else.

    REGISTRY_URL   the scheduler; WORKER_URL   where to listen, another port if that one is taken

It registers {id, url, services, load}, sends heartbeats {id, url, load}, and answers POST /exec/SERVICE with {"result", "error"}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

REGISTRY = os.environ["REGISTRY_URL"]
BEAT_S = float(os.environ.get("BEAT_S", "1"))
DELAY_S = float(os.environ.get("DELAY_S", "0"))
BASE_LOAD = float(os.environ.get("BASE_LOAD", "0"))
NAME = os.environ.get("WORKER_ID", f"worker-{os.getpid()}")
calls = 0
load = 0
lock = threading.Lock()
never = threading.Event()


def transform(value: Any, params: dict[str, Any]) -> Any:
    match params.get("op"):
        case "upper":
            return value.upper()
        case "lower":
            return value.lower()
        case "mul":
            return value * params.get("mul", 2)
        case other:
            raise ValueError(f"unknown op {other!r}")


def route(value: Any, params: dict[str, Any]) -> Any:
    return {"action": params.get("action", "goB")}


SERVICES = {"transform": transform, "sum": lambda value, params: sum(value), "route": route}


class Exec(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        global load, calls
        with lock:
            load, calls = load + 1, calls + 1
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        never.wait(DELAY_S)
        try:
            answer = {"result": SERVICES[self.path.split("/")[-1]](body["input"], body["params"]), "error": ""}
        except Exception as e:
            answer = {"result": None, "error": f"{type(e).__name__}: {e}"}
        with lock:
            load -= 1
        self._answer(answer)

    def do_GET(self) -> None:
        self._answer({"calls": calls, "load": load})

    def _answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def listen() -> Server:
    wanted = urlsplit(os.environ.get("WORKER_URL", "http://127.0.0.1:0")).port or 0
    try:
        return Server(("127.0.0.1", wanted), Exec)
    except OSError:
        return Server(("127.0.0.1", 0), Exec)


def post(path: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(REGISTRY + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def main() -> None:
    server = listen()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    registered = False
    while True:
        try:
            if not registered:
                post("/workers/register", {"id": NAME, "url": url, "services": list(SERVICES), "load": BASE_LOAD})
                registered = True
                print(url, flush=True)
            else:
                post("/workers/heartbeat", {"id": NAME, "url": url, "load": BASE_LOAD + load})
        except urllib.error.HTTPError as e:
            print(e, file=sys.stderr, flush=True)
            registered = registered and e.code != 404
        except OSError as e:
            print(e, file=sys.stderr, flush=True)
        never.wait(BEAT_S)


main()
