"""Starts, signals and events of a Django application. `PERDURE["START"]` says when they take effect:

    transaction   by an SQL function, through Django's own connection: if and only if the transaction around the call commits
    commit        by `transaction.on_commit`: after the commit. A process that dies in between leaves a committed row without its run
    now           at once, whether the transaction commits or not
    record        never: they are kept for the assertions of tests, testing.py

Laws:

1. A call means the same in all of them: it takes the same options and returns a reference that `client().get()` understands.
2. A call outside of a transaction takes effect at once in all of them but `record`.
3. What an inner `atomic()` block rolls back does not happen; `now` excepted.
"""

from __future__ import annotations

from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

from django.db import connections, transaction

from perdure.core.api.act import KEY_PREFIX
from perdure.frameworks.django import testing
from perdure.frameworks.django.clients import client
from perdure.frameworks.django.configuration import configuration
from perdure.sdk.messages import NamedEvent, Signal
from perdure.sdk.startable import Startable
from perdure.sdk.transactions import InSyncTransaction, in_sync_transaction

P = ParamSpec("P")
T = TypeVar("T")


def start(workflow: Startable[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
    """A run of a workflow. Returns its id; where the run comes after the commit, `key:` and its key. `client().get()` takes both.

    Of the options of the workflow `key`, `timeout`, `attributes` and `delay` count. Under a key that has a run already no other one is started.
    Raises InvalidInput for other options and PayloadMismatch for arguments that do not fit, in every mode at once.
    """
    given = configuration()
    if given.start_mode == "transaction":
        return _in_transaction(given.commit_database).start(workflow, *args, **kwargs)
    key = workflow.transaction_options().get("key") or uuid4().hex
    bound = workflow.options(key=key, on_conflict="attach").bind(*args, **kwargs)
    match given.start_mode:
        case "now":
            return client().start(bound).id
        case "record":
            testing.record(workflow.name, args, kwargs, key, given.commit_database)
        case _:
            transaction.on_commit(lambda: client().start(bound), using=given.commit_database)
    return KEY_PREFIX + key


def signal(signal: Signal[T], run: str, value: T, *, key: str | None = None) -> None:
    """A message to a run: its id, `key:` and its key, or what `start()` returned, also in the same transaction."""
    given = configuration()
    if given.start_mode == "transaction":
        _in_transaction(given.commit_database).signal(signal, run, value, key=key)
        return
    signal.encode(value)  # a wrong value is refused here
    match given.start_mode:
        case "now":
            client().signal(signal, run, value, key=key or "")
        case "record":
            testing.record(signal.name, (run, value), {}, key or "", given.commit_database)
        case _:
            transaction.on_commit(
                lambda: client().signal(signal, run, value, key=key or ""), using=given.commit_database
            )


def emit(event: NamedEvent[T], value: T, *, key: str | None = None) -> None:
    """A named event."""
    given = configuration()
    if given.start_mode == "transaction":
        _in_transaction(given.commit_database).emit(event, value, key=key)
        return
    event.encode(value)
    match given.start_mode:
        case "now":
            client().emit(event, value, key=key or "")
        case "record":
            testing.record(event.name, (value,), {}, key or "", given.commit_database)
        case _:
            transaction.on_commit(lambda: client().emit(event, value, key=key or ""), using=given.commit_database)


def _in_transaction(database: str) -> InSyncTransaction:
    return in_sync_transaction(connections[database])
