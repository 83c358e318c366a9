"""`manage.py perdure_worker`: run the workflows and tasks of the project."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from perdure.core.errors import PerdureError
from perdure.frameworks.django import worker
from perdure.frameworks.django.configuration import configuration


class WorkerCommand(BaseCommand):
    help = "Run a worker for the workflows of the installed apps, and for Django's tasks. The first SIGTERM or Ctrl-C lets running tasks end."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--queue", metavar="A,B", help="Only these queues. Default: every queue of the project.")
        parser.add_argument("--slots", type=int, help="Tasks to run at a time. [100]")
        parser.add_argument("--threads", type=int, help="Threads for plain functions. [cores + 4, at most 32]")
        parser.add_argument("--processes", type=int, help="Processes for CPU-bound tasks. [cores]")
        parser.add_argument(
            "--build-id",
            metavar="ID",
            help="What it was built from, such as a commit. Pins runs to the version that they began with.",
        )
        parser.add_argument("--drain", metavar="DURATION", help="How long a stopping worker waits for tasks. [30s]")
        parser.add_argument(
            "--apply-schedules", action="store_true", default=None, help="Apply the schedules of the project first."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        names = {"queue": "queues", "drain": "drain_s"}
        known = ("queue", "slots", "threads", "processes", "build_id", "drain", "apply_schedules")
        flags = {names.get(one, one): (f"--{one.replace('_', '-')}", options[one]) for one in known}
        try:
            defined = worker.discovered()
            given = configuration()
            found = worker.worker_settings(given, flags)
            where = "this database" if given.is_embedded else found.server or "the server on this machine"
            what = f"{defined} and Django's tasks" if defined else "Django's tasks"
            self._say(f"serving {what} on {where} (pid {os.getpid()}; Ctrl-C stops)")
            worker.run(given, found, self._say)
        except (PerdureError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error

    def _say(self, text: str) -> None:
        self.stderr.write(text)
        self.stderr.flush()


Command = WorkerCommand
"""The name that Django looks for."""
