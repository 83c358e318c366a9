"""A Flask application that is loaded, used and then forked, as a preloading server does. See test_flask.py."""

from __future__ import annotations

import os
import sys
import traceback
from functools import partial

from flask import Flask

from perdure import SyncPerdure, sync_client, workflow
from perdure.frameworks.flask import FlaskPerdure

CHILDREN = 2

perdure = FlaskPerdure(opener=partial(SyncPerdure, sys.argv[1], tune_gc=False))
app = Flask("forked")
perdure.init_app(app)


@workflow(name="flask_forked_shout")
async def shout(text: str) -> str:
    return text.upper()


@app.get("/<text>")
def word(text: str) -> str:
    return sync_client().run(shout, text)


def main() -> None:
    print(app.test_client().get("/parent").text, flush=True)
    children = []
    for n in range(CHILDREN):
        child = os.fork()
        if child == 0:
            print(app.test_client().get(f"/child{n}").text, flush=True)
            sys.exit()  # as a worker of gunicorn ends
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    print(app.test_client().get("/parent-again").text, flush=True)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.exit(1)
