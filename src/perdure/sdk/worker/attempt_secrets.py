"""Secrets at the border of a worker's tasks: inputs get values in the place of references, and a result that holds a value is refused."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.core.application_limits import SECRETS_PER_TASK_MAX
from perdure.core.errors import InvalidInput, PerdureError, SecretExposed, SecretMissing, WorkflowRuleBroken
from perdure.core.secrets import filled, filled_spec, names_of
from perdure.executors.port import Job, JobRefused, JobSecrets
from perdure.sdk.secrets.known import known
from perdure.sdk.secrets.store import SecretStore
from perdure.sdk.worker.attempts import Attempt, current_slot
from perdure.sdk.workflow.live_run import current as current_run


def secret(name: str) -> str:
    """The value of a secret, inside a task.

        headers = {"Authorization": f"Bearer {perdure.secret('TOKEN')}"}

    It comes from the worker's providers: the variable PERDURE_SECRET_TOKEN, a file of its directory of secrets, or others that PERDURE_SECRETS
    names. It is masked in what the task prints, logs and raises, and the task fails if its result contains it. The call may wait for a provider:
    an async task calls it in a thread (`await asyncio.to_thread(perdure.secret, "TOKEN")`) where a provider is slow.

    Raises SecretMissing where no provider has it, SecretUnavailable where one does not answer.
    """
    if current_run.get(None) is not None:
        raise WorkflowRuleBroken(
            f"perdure.secret({name!r}) was called in workflow code, whose values are recorded in the history. Call it in the task that needs it."
        )
    slot: Any = current_slot.get(None)
    if slot is None or slot.attempt is None:
        raise PerdureError(
            f"perdure.secret({name!r}) works inside a running task only: in its code, and in threads that have its context (asyncio.to_thread)"
        )
    found: Attempt = slot.attempt
    return found._host.secret(found, name)


def remember(attempt: Attempt, name: str, value: str) -> str:
    """The attempt has read it."""
    if attempt._secrets is None:
        attempt._secrets = {}
    attempt._secrets[value] = name
    if len(attempt._secrets) > SECRETS_PER_TASK_MAX:
        raise SecretMissing(
            f"the task read more than SECRETS_PER_TASK_MAX={SECRETS_PER_TASK_MAX} secrets; split it, or keep them in one"
        )
    return value


class TaskSecrets:
    """Those of one worker."""

    def __init__(self, store: SecretStore) -> None:
        self._store = store

    def read(self, attempt: Attempt, name: str) -> str:
        """Blocks while a provider is asked. From any thread."""
        return remember(attempt, name, self._store.get(name))

    def fill_now(self, attempt: Attempt, given: bytes) -> bytes:
        """In a thread: the input with the values of secrets."""
        places = attempt._assignment.options.secrets
        return filled(given, places, lambda name: self.read(attempt, name)) if places else given

    async def fill(self, attempt: Attempt, given: bytes) -> bytes:
        if all(self._store.cached(name) is not None for name in names_of(attempt._assignment.options.secrets)):
            return self.fill_now(attempt, given)
        return await asyncio.to_thread(self.fill_now, attempt, given)

    async def of_job(self, job: Job) -> JobSecrets | None:
        """What the job's executor is to use instead of the spec; None: there are no secrets in it."""
        places = job.assignment.options.secrets
        if not places:
            return None

        def read() -> dict[str, str]:
            return {name: self._store.get(name) for name in names_of(places)}

        try:
            values = await asyncio.to_thread(read)
            spec = filled_spec(job.spec, places, values.__getitem__)
        except InvalidInput as e:
            raise JobRefused(str(e)) from e
        by_value = {value: name for name, value in values.items()}
        return JobSecrets(spec=spec, names=by_value, masked=known.redactor_of(by_value).forms)


def check_result(attempt: Attempt, data: bytes) -> None:
    """A result that holds a secret that the attempt read is never recorded."""
    values = attempt._secrets
    if values and known.redactor_of(values).is_in(data):
        names = sorted({name for value, name in values.items() if known.redactor_of({value: name}).is_in(data)})
        raise SecretExposed(
            f"the result of {attempt.task} contains the secret {', '.join(names)} and is not recorded: results are kept in the history. "
            "Return something else, and read the secret where it is used"
        )
