"""A Django project for tests of the module: its settings, its tasks and its workflows. Importing it sets Django up, once in a process."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.db import connection

if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["perdure.frameworks.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"}},
        PERDURE={"DATABASE": "default"},
        TASKS={
            "default": {"BACKEND": "perdure.frameworks.django.tasks.PerdureBackend", "QUEUES": ["default", "mail"]},
            "stubborn": {
                "BACKEND": "perdure.frameworks.django.tasks.PerdureBackend",
                "OPTIONS": {"attempts": 2},
            },
        },
        USE_TZ=True,
    )
    django.setup()

from perdure import NamedEvent, Retry, Signal, workflow
from perdure import task as durable_task
from perdure.frameworks.django.task_runs import tasks_api

task = tasks_api.task  # of Django 6, or of the package django-tasks


class Refused(Exception):
    pass


happened: list[Any] = []

added = Signal("dj_added", int)
paid = NamedEvent("dj_paid", int)


@workflow(name="dj_double")
async def double(n: int) -> int:
    return 2 * n


@workflow(name="dj_sums")
async def sums() -> int:
    return await added.next() + await added.next()


@workflow(name="dj_waits")
async def waits() -> int:
    return await paid.wait()


@durable_task(name="dj_backend_pid", retry=Retry(1))
def backend_pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


@workflow(name="dj_queries")
async def queries() -> int:
    return await backend_pid()


@task
def dj_add(a: int, b: int) -> int:
    return a + b


@task(queue_name="mail", priority=5)
async def dj_shout(text: str) -> str:
    return text.upper()


@task(backend="stubborn")
def dj_refuse(why: str) -> None:
    raise Refused(why)


@task(takes_context=True, backend="stubborn")
def dj_second_time(context: Any, n: int) -> str:
    if context.attempt == 1:
        raise ValueError("once more")
    return f"{n}: attempt {context.attempt} of {context.task_result.id}"


@task
def dj_note(what: str) -> None:
    happened.append(what)
