"""Tasks that use a secret as it should be used, and tasks that do everything with it that they should not."""

from __future__ import annotations

import base64
import hashlib
import logging
import sys
import urllib.request
from typing import Any
from urllib.parse import quote

import perdure
from perdure import Approval, On, Retry, task, workflow
from perdure.errors import TaskFailed

NAME = "API_TOKEN"
log = logging.getLogger("secret_tasks")


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def tell_everywhere(value: str) -> None:
    """On every way that a task has to say something."""
    half = len(value) // 2
    print("first", value)
    print("in two parts", value[:half], end="")
    print(value[half:])
    sys.stderr.write(f"url https://example.org/?token={quote(value, safe='')}\n")
    print("basic", base64.b64encode(f"user:{value}".encode()).decode())
    log.warning("logged %s", value, extra={"header": {"Authorization": f"Bearer {value}"}})
    try:
        raise KeyError(value)
    except KeyError:
        log.exception("with a traceback")
    perdure.attempt().heartbeat({"token": value})


@task(name="secret_post", retry=Retry(1))
def post(url: str) -> dict[str, Any]:
    """In a thread."""
    value = perdure.secret(NAME)
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {value}"}, data=b"{}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {"status": answer.status, "digest": digest(value)}


@task(name="secret_in_process", process=True, retry=Retry(1))
def in_process() -> str:
    value = perdure.secret(NAME)
    tell_everywhere(value)
    return digest(value)


@task(name="secret_returned", retry=Retry(1))
async def returned() -> dict[str, str]:
    return {"token": base64.b64encode(perdure.secret(NAME).encode()).decode()}


@task(name="secret_raised", retry=Retry(2, delay="10ms"))
async def raised(token: str = "") -> None:
    value = token or perdure.secret(NAME)
    tell_everywhere(value)
    try:
        raise LookupError(f"https://example.org/?token={quote(value, safe='')}")
    except LookupError as e:
        raise ValueError(f"the service refused {value}") from e


@workflow(name="secret_workflow")
async def use(url: str, n: int) -> list[str]:
    sent = await post(f"{url}?n={n}")
    found = [sent["digest"]]
    if n % 10 == 0:  # a process for each of many runs would take long
        found.append(await in_process())
    try:
        await returned()
    except TaskFailed as e:
        found.append(e.failure.code)
    await raised()
    return found


@task(name="plain_told", retry=Retry(1))
async def told(value: str) -> str:
    """The same without a secret: it is found wherever it was told."""
    tell_everywhere(value)
    raise ValueError(f"the service refused {value}")


@workflow(name="plain_workflow")
async def leak(value: str) -> str:
    return await told(value)


@workflow(name="asking_workflow")
async def ask(value: str) -> None:
    """Asks about a value that is no secret, with the error of a task that has told one: both are on the page of a link."""
    said = ""
    try:
        await raised()
    except TaskFailed as e:
        said = str(e)
    await Approval("check", assignees=["ada"], title="Check it?").wait(details={"value": value, "said": said})


@workflow(name="keyed_workflow", on=On("plain.told", key="event.id"))
async def keyed(event: dict[str, str]) -> None:
    """Its key is taken by a run of another workflow: the log of the server has the key."""
