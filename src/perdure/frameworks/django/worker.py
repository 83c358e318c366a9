"""The worker of a Django project: `manage.py perdure_worker`.

It serves the workflows and tasks in the `workflows` modules of the installed apps, and Django's tasks of the queues of its backends. With a server it
is a worker of that server; without one it is an engine and a worker on the database of the project.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.conf import settings
from django.utils.module_loading import autodiscover_modules, import_string

from perdure.app.embedded import Perdure
from perdure.core.errors import InvalidInput
from perdure.engine.settings import EngineSettings
from perdure.frameworks.django import task_runs
from perdure.frameworks.django.configuration import DjangoSettings, database_dsn
from perdure.frameworks.django.tasks import PerdureBackend
from perdure.programs import settings_sources
from perdure.programs.modules import Defined
from perdure.programs.signals import signals
from perdure.programs.worker_process import work
from perdure.programs.worker_settings import WorkerSettings
from perdure.sdk import registry

MODULE: Final = "workflows"
"""Of each installed app."""


def discovered() -> Defined:
    """Import the workflows of the installed apps, and say what is defined then."""
    autodiscover_modules(MODULE)
    own = task_runs.django_task.name, task_runs.django_call.name
    tasks, workflows = sorted(registry.tasks.names()), sorted(registry.workflows.names())
    return Defined([n for n in tasks if n not in own], [n for n in workflows if n not in own])


def task_queues() -> set[str]:
    """Queues of the backends of Django's tasks that are Perdure's."""
    given: Mapping[str, Any] = getattr(settings, "TASKS", None) or {}
    ours = [one for one in given.values() if issubclass(import_string(one["BACKEND"]), PerdureBackend)]
    return {queue for one in ours for queue in one.get("QUEUES", ["default"])}


def worker_settings(given: DjangoSettings, flags: Mapping[str, tuple[str, object]]) -> WorkerSettings:
    """What the command line says, then PERDURE["WORKER"], then PERDURE, then what `perdure worker` reads: variables and perdure.toml."""
    known = WorkerSettings.settings()
    unknown = sorted(set(given.worker) - {one.key for one in known})
    if unknown:
        raise InvalidInput(
            f"PERDURE['WORKER'] has {', '.join(unknown)}; the settings of a worker are {', '.join(one.key for one in known)}"
        )
    of_project: dict[str, object] = {
        "server": given.server,
        "api_key": given.api_key,
        "namespace": given.namespace,
        "tls": given.tls or None,
        "tls_ca": given.tls_ca,
        "dsn": database_dsn(given.database) if given.database is not None else None,
    }
    found = WorkerSettings.load(
        [
            settings_sources.flags(flags),
            settings_sources.flags(
                {key: (f"PERDURE['WORKER'][{key!r}]", value) for key, value in given.worker.items()}
            ),
            settings_sources.flags({key: (f"PERDURE[{key.upper()!r}]", value) for key, value in of_project.items()}),
            *settings_sources.read(WorkerSettings.section, known),
        ]
    )
    queues = found.queues or tuple(sorted({one.queue for one in registry.tasks.values()} | task_queues()))
    return found.model_copy(update={"queues": queues})


def run(given: DjangoSettings, found: WorkerSettings, say: Callable[[str], None]) -> None:
    """Until a signal stops it; running tasks end first."""
    asyncio.run(_embedded(given, found, say) if given.is_embedded else work(found, say))


async def _embedded(given: DjangoSettings, found: WorkerSettings, say: Callable[[str], None]) -> None:
    stopped = asyncio.Event()

    def stop() -> None:
        say("stopping: waiting for running tasks; a second signal stops at once")
        stopped.set()

    engine = EngineSettings(close_grace_s=found.drain_s)
    if given.namespace:
        engine = EngineSettings(close_grace_s=found.drain_s, namespace=given.namespace)
    async with (
        signals(stop),
        Perdure(
            found.dsn,
            queues=list(found.queues),
            slots=found.slots,
            threads=found.threads,
            processes=found.processes,
            verbs=found.verbs,
            executors=found.executors,
            build_id=found.build_id,
            schedules=registry.schedules_by_name() if found.apply_schedules else (),
            settings=engine,
        ),
    ):
        say("ready")
        await stopped.wait()
