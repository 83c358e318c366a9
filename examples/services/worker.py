"""A service in plain Python, without Perdure's SDK: it registers, sends heartbeats and answers POST /exec/SERVICE."""

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

SERVICES = {"upper": lambda x, p: x.upper(), "sum": lambda x, p: sum(x), "scale": lambda x, p: x * p["by"]}
KEY = os.environ.get("PERDURE_API_KEY")
HEADERS = {"Content-Type": "application/json", **({"Authorization": f"Bearer {KEY}"} if KEY else {})}


class Worker(BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = {"result": SERVICES[self.path.removeprefix("/exec/")](call["input"], call["params"]), "error": ""}
        except Exception as e:
            answer = {"result": None, "error": f"{type(e).__name__}: {e}"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "0"))), Worker)
me = {"url": f"http://127.0.0.1:{server.server_port}", "services": list(SERVICES), "load": 0}
threading.Thread(target=server.serve_forever).start()
path = "/workers/register"
while True:
    try:
        data = json.dumps({**me, "load": threading.active_count() - 2}).encode()
        urlopen(Request(os.environ.get("REGISTRY_URL", "http://localhost:8600") + path, data, HEADERS), timeout=5)
        path = "/workers/heartbeat"
    except OSError as e:
        print(f"{path}: {e}", flush=True)
        path = "/workers/register"
    time.sleep(5)
