"""The application for INSTALLED_APPS."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import close_old_connections

from perdure.frameworks.django import clients
from perdure.frameworks.django.configuration import configuration, database_dsn
from perdure.sdk.worker.surroundings import surroundings


class PerdureConfig(AppConfig):
    name = "perdure.frameworks.django"
    label = "perdure"
    verbose_name = "Perdure"

    def ready(self) -> None:
        if fresh_connections not in surroundings:
            surroundings.append(fresh_connections)
        checks.register(check_configuration)
        setting_changed.connect(_settings_changed, dispatch_uid="perdure")


@contextmanager
def fresh_connections() -> Generator[None]:
    """Around each task that is a plain function: Django's connections of its thread are treated as around a request. Those that are broken or
    older than CONN_MAX_AGE are closed."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def check_configuration(**kwargs: Any) -> list[checks.CheckMessage]:
    """`manage.py check` finds mistakes in PERDURE."""
    try:
        given = configuration()
        if given.database is not None:
            database_dsn(given.database)
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="perdure.E001")]
    return []


def _settings_changed(*, setting: str, **kwargs: Any) -> None:
    """`override_settings` in tests."""
    if setting == "PERDURE":
        clients.close()
