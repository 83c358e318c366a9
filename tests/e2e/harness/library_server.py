"""The example examples/django_library/after as a server that is killed: `serve` is forked by tests/fakes/killed_forks.py.

Everything is imported here, once. The stops are hooks of Django and wrappers around calls of the application, whose own code is not changed.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from importlib import import_module
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from config.wsgi import application
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.signals import post_save, pre_save
from library import views
from library.models import Hold

from perdure.frameworks.django import client
from perdure.frameworks.django.tasks import PerdureBackend
from tests.fakes.killed_forks import Steps

import_module("config.urls")  # else the first request imports it
logging.getLogger("django.request").setLevel(logging.CRITICAL)


class QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class ThreadedServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


def serve(listener: socket.socket, arguments: dict[str, Any], steps: Steps) -> None:
    """`starts_behind_the_commit`: as an application does that starts its workflow after its transaction."""
    _stop_around_saves(steps)
    _stop_around_commits(steps)
    started: Any = _started_behind_the_commit if arguments.get("starts_behind_the_commit") else views.start

    def start(*args: Any, **kwargs: Any) -> str:
        run = str(started(*args, **kwargs))
        steps.at("after the start")
        return run

    views.start = start
    enqueue = PerdureBackend.enqueue

    def enqueued(self: PerdureBackend, task: Any, args: Any, kwargs: Any) -> Any:
        result = enqueue(self, task, args, kwargs)
        if _fails.get(args[0]):
            raise RuntimeError("on purpose: the transaction rolls back")
        return result

    PerdureBackend.enqueue = enqueued
    server = ThreadedServer(("127.0.0.1", 0), QuietHandler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_name, server.server_port = listener.getsockname()
    server.setup_environ()
    server.set_app(_app(steps))
    steps.tell("ready")
    server.serve_forever()


_fails: dict[int, bool] = {}
"""Holds whose transaction is to roll back."""


def _stop_around_saves(steps: Steps) -> None:
    def before(instance: Hold, **kwargs: Any) -> None:
        if instance.pk is None:
            steps.at("before the save")

    def after(instance: Hold, created: bool, **kwargs: Any) -> None:
        if created:
            _fails[instance.pk] = instance.member.name == "declines"
            steps.at("after the save")

    pre_save.connect(before, sender=Hold, weak=False)
    post_save.connect(after, sender=Hold, weak=False)


def _stop_around_commits(steps: Steps) -> None:
    commit = BaseDatabaseWrapper._commit

    def committed(self: Any) -> Any:
        steps.at("before the commit")
        result = commit(self)
        steps.at("after the commit")
        return result

    BaseDatabaseWrapper._commit = committed


def _app(steps: Steps) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        answer = application(environ, start_response)
        steps.at("before the response")
        return answer

    return app


def _started_behind_the_commit(workflow: Any, *args: Any) -> str:
    transaction.on_commit(lambda: client().start(workflow, *args))
    return ""
