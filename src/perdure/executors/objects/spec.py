"""What a call of a job may ask for, checked before anything is started."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.executors.objects.layout import HEARTBEAT_S, HEARTBEAT_STALE_S, SPEC_BYTES_MAX, VERSION, JobSpec
from perdure.executors.port import Job, JobRefused

COMMAND_WORDS_MAX: Final = 1_000
EXIT_MEANINGS: Final = ("success", "retry", "fail")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


class Work(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys that every executor with the protocol takes."""

    command: list[str | int | float | bool] | str | None = None
    python: str | None = None
    env: dict[str, str | int | float | bool] | None = None
    cwd: str | None = None
    input: Any = None
    upstream: dict[str, Any] | None = None
    exit_codes: dict[str, str] | None = None
    workflow_name: str | None = None
    parallel_index: int | None = None
    parallel_count: int | None = None


WORK_KEYS: Final = tuple(f.name for f in msgspec.structs.fields(Work))


def read_work(given: dict[str, Any], executor: str) -> Work:
    """Raises Refused."""
    try:
        work = msgspec.convert(given, Work)
    except msgspec.ValidationError as e:
        raise JobRefused(f"perdure.job.{executor} cannot be run as it is: {e}. It takes {', '.join(WORK_KEYS)}.") from e
    if (work.command is None) == (work.python is None):
        raise JobRefused(f"perdure.job.{executor} takes one of command and python: say what to run")
    if work.python is not None and not _FUNCTION.match(work.python):
        raise JobRefused(f"python is {work.python!r}; it must be module:function")
    if work.command is not None:
        _check_command(work.command)
    for code, meaning in (work.exit_codes or {}).items():
        if not code.isdecimal() or int(code) > 255 or meaning not in EXIT_MEANINGS:
            raise JobRefused(
                f"exit_codes: {code}: {meaning} is not a code from 0 to 255 with {', '.join(EXIT_MEANINGS)}"
            )
    for name in work.env or {}:
        if not name or "=" in name or "\0" in name:
            raise JobRefused(f"env: {name!r} cannot be the name of a variable")
    return work


def make_spec(job: Job, work: Work, now_us: int, stale_s: float = HEARTBEAT_STALE_S) -> JobSpec:
    a = job.assignment
    command = [_word(w) for w in work.command] if isinstance(work.command, list) else work.command
    spec = JobSpec(
        version=VERSION,
        name=job.name,
        run_id=ids.text(a.run_id),
        task_id=ids.text(ids.derive(a.run_id, ids.TASK, a.seq)),
        task_name=a.name,
        attempt=a.attempt,
        created_us=now_us,
        command=command,
        python=work.python,
        env={name: _word(value) for name, value in (work.env or {}).items()},
        cwd=work.cwd or "",
        input=work.input,
        upstream=work.upstream or {},
        exit_codes=work.exit_codes or {},
        workflow_name=work.workflow_name or "",
        parallel_index=work.parallel_index,
        parallel_count=work.parallel_count,
        timeout_s=job.timeout_s,
        heartbeat_s=min(HEARTBEAT_S, stale_s / 6),
        stale_s=stale_s,
        trace=a.trace,
    )
    size = len(msgspec.json.encode(spec))
    if size > SPEC_BYTES_MAX:
        raise JobRefused(
            f"the spec of the job has {size} bytes; SPEC_BYTES_MAX={SPEC_BYTES_MAX} are allowed. Pass a reference to large input."
        )
    return spec


def _check_command(command: list[Any] | str) -> None:
    if isinstance(command, str):
        if not command.strip():
            raise JobRefused("the command is empty")
        return
    if not command or command[0] == "":
        raise JobRefused("the command is empty: give a list of arguments, or text for the shell")
    if len(command) > COMMAND_WORDS_MAX:
        raise JobRefused(f"the command has {len(command)} arguments; COMMAND_WORDS_MAX={COMMAND_WORDS_MAX} are allowed")
    if any("\0" in _word(word) for word in command):
        raise JobRefused("an argument of the command holds a zero character")


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
