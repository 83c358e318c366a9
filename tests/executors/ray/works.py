"""What the tests run in a Ray cluster: functions for perdure.job.ray, and tasks."""

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import Any

from perdure import Blob, Retry, attempt, task
from perdure.executors.ray import kept_actor
from tests.fakes.waiting import busy_thread

IDS = ("run", "task", "attempt", "job")


def value(value: Any) -> Any:
    return value


def echo(**values: Any) -> Any:
    return values


def fail() -> None:
    raise ArithmeticError("it broke")


def shell(command: list[str]) -> Any:
    """As a command would do it; the value is the last line."""
    done = subprocess.run(command, check=True)
    return 7 if done.returncode == 0 else None


def nap(s: float) -> None:
    busy_thread(s)


sleep = nap


def stubborn() -> None:
    print("ready", flush=True)
    while True:
        try:
            busy_thread(60)
        except BaseException:
            pass


def mark(file: str, s: float) -> int:
    with open(file, "a") as log:
        log.write("begun\n")
    busy_thread(s)
    return 7


def ids() -> dict[str, str]:
    return {name: os.environ[f"PERDURE_{name.upper()}{'' if name in ('attempt', 'job') else '_ID'}"] for name in IDS}


def environment() -> dict[str, str]:
    return dict(os.environ)


@task(executor="ray", name="on_ray.double", num_cpus=0.5, resources={"model_slot": 1}, timeout="2m")
def double(n: int) -> int:
    print(f"doubling {n}")
    return 2 * n


@task(executor="ray", name="on_ray.divide", retry=Retry(3, delay="10ms", never=(ArithmeticError,)))
async def divide(a: int, b: int) -> float:
    return a / b


@task(executor="ray", name="on_ray.third_time", retry=Retry(3, delay="10ms"))
def third_time() -> int:
    if attempt().number < 3:
        raise RuntimeError("not yet")
    return attempt().number


@task(executor="ray", name="on_ray.large")
def large(size: int) -> str:
    return "x" * size


class Model:
    def __init__(self) -> None:
        self.calls = 0

    def predict(self, n: int) -> tuple[int, int, int]:
        self.calls += 1
        return os.getpid(), self.calls, n + 1


@task(executor="ray", name="on_ray.predict")
def predict(n: int) -> list[int]:
    import ray

    model = kept_actor("test-model", Model, num_cpus=0)
    return list(ray.get(model.predict.remote(n)))


def text_of(size: int) -> str:
    """For perdure.job.ray."""
    return "é" * (size // 2)


@task(executor="ray", name="on_ray.measured")
def measured(text: str, first: str = "") -> list[Any]:
    """Of a value, which may have come by reference."""
    return [len(text), text[:1], hashlib.sha256(text.encode()).hexdigest(), first]


@task(executor="ray", name="on_ray.rendered")
def rendered(size: int) -> dict[str, Any]:
    """A blob in a value that is itself too large for the history."""
    with Blob.writer("page.bin") as out:
        for _ in range(size // 1000):
            out.write(b"0123456789" * 100)
    return {"page": out.blob, "note": "n" * 100_000}


@task(executor="ray", name="on_ray.digested")
def digested(found: dict[str, Any], page: Blob) -> list[Any]:
    with page.open() as file:
        file.seek(-10, 2)
        end = file.read().decode()
    return [page.size, hashlib.sha256(page.read_bytes()).hexdigest(), page.name, end, len(found["note"])]


@task(executor="ray", name="on_ray.digested_on_a_loop")
async def digested_on_a_loop(page: Blob) -> str:
    return hashlib.sha256(await page.aread_bytes()).hexdigest()
