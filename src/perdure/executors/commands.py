"""A command as a job names it: arguments, environment, input, limits and the meaning of exit codes. For every executor that runs commands.

Laws:

1. Values of a run reach a command as arguments, variables, input; never as text that a shell reads.
2. A command's environment is made anew. It has the variables of its executor, those that the call gives, and the worker's secrets that the
   call names and the worker allows. Nothing else of the worker's environment reaches it.
3. Secrets that stand in a call (`${ secret.NAME }`) reach a command by its environment alone: the list of processes shows arguments to everyone
   on the machine, and files stay on disk.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.limits import PROCESS_SECRETS_MAX
from perdure.executors.port import Job, JobRefused, JobSecrets

SHELL: Final = ["/bin/sh", "-c"]
INPUT_ENV_BYTES_MAX: Final = 32 * 1024
"""Input up to this size is in PERDURE_INPUT as well; larger input is in the file and on stdin alone."""
ARGUMENT_BYTES_MAX: Final = 128 * 1024
"""Bytes of one argument or variable: the kernel takes no longer one."""
ARGUMENTS_MAX: Final = 1_000
SECRET_KEYS: Final = ("env",)
"""What of a command secrets may stand in."""
KEYS: Final = ("command", "env", "cwd", "stdin", "input", "secrets", "exit_codes", "limits")
CPUS: Final = "cpus"
"""The limit that may be a fraction."""
WORDS: Final = {"success": "success", "retry": "retry", "fail": "fail"}


class CommandRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the commands of one executor may ask for."""

    executor: str
    task: str
    """As errors name it."""
    keys: tuple[str, ...]
    limits: tuple[str, ...]
    allowed: frozenset[str]
    """Variables of the worker that commands may ask for by name."""
    base_env: Mapping[str, str]
    """Variables that every command gets."""
    needs_command: bool = True


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True):
    argv: list[str]
    """Empty where the executor knows what to run."""
    env: dict[str, str]
    cwd: str
    """Empty: where the executor starts commands."""
    stdin: bytes | None
    input: bytes | None
    """As JSON, for the input file."""
    secrets: tuple[bytes, ...]
    """Values that must not appear in output."""
    limits: dict[str, int | float]
    exit_codes: dict[int, str]


def read_command(
    job: Job, rules: CommandRules, environ: Mapping[str, str], given: JobSecrets | None = None
) -> CommandSpec:
    """What a job asks for. `environ` is the worker's environment, `given` has the job's secrets. Raises Refused."""
    spec = job.spec if given is None else given.spec
    unknown = [key for key in spec if key not in rules.keys]
    if unknown:
        raise JobRefused(f"{rules.task} takes no {unknown[0]!r}; it takes {', '.join(rules.keys)}")
    secrets = _secrets(spec.get("secrets"), rules, environ)
    data = None if spec.get("input") is None else msgspec.json.encode(spec["input"])
    has_command = rules.needs_command or spec.get("command") is not None
    return CommandSpec(
        argv=_argv(spec.get("command")) if has_command else [],
        env=_environment(job, {**rules.base_env, **secrets}, mapping(spec.get("env"), "env"), data),
        cwd=plain_text(spec.get("cwd") or "", "cwd"),
        stdin=_stdin(spec.get("stdin"), data),
        input=data,
        secrets=(
            *(given.masked if given is not None else ()),
            *(v.encode() for v in secrets.values() if len(v) >= SECRET_CHARS_MIN),
        ),
        limits=_limits(mapping(spec.get("limits"), "limits"), rules.limits),
        exit_codes=_exit_codes(mapping(spec.get("exit_codes"), "exit_codes")),
    )


SECRET_CHARS_MIN: Final = 4
"""Shorter secrets are not masked in output: they would mask ordinary text."""


def checked_names(names: Sequence[str]) -> list[str]:
    """Names of variables that commands may ask for. Those that hold Perdure's own keys and databases are refused."""
    found = [name for name in map(str.strip, names) if name]
    if len(found) > PROCESS_SECRETS_MAX:
        raise JobRefused(f"secrets has {len(found)} names; PROCESS_SECRETS_MAX={PROCESS_SECRETS_MAX} are allowed")
    for name in found:
        if "=" in name or "\0" in name:
            raise JobRefused(f"secrets: {name!r} is not the name of a variable: write the name alone")
        if name.startswith("PERDURE_") or name == "DATABASE_URL":
            raise JobRefused(
                f"secrets: {name} belongs to Perdure and is not passed to commands, which could use its keys and its database. "
                "Give a command a value of its own under another name."
            )
    return found


def _argv(command: Any) -> list[str]:
    if isinstance(command, str) and command.strip():
        return [*SHELL, _bounded(command, "the command")]
    if not isinstance(command, list) or not command or command[0] in ("", None):
        raise JobRefused("there is no command: give a list of arguments, or text for the shell")
    if len(command) > ARGUMENTS_MAX:
        raise JobRefused(f"the command has {len(command)} arguments; ARGUMENTS_MAX={ARGUMENTS_MAX} are allowed")
    return [_word(word, "an argument") for word in command]


def _environment(job: Job, base: Mapping[str, str], given: Mapping[str, Any], data: bytes | None) -> dict[str, str]:
    found = dict(base)
    for name, value in given.items():
        if not name or "=" in name or "\0" in name:
            raise JobRefused(f"env: {name!r} cannot be the name of a variable")
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _word(value, f"the variable {name!r}")
    a = job.assignment
    found |= {
        "PERDURE_JOB": job.name,
        "PERDURE_RUN_ID": ids.text(a.run_id),
        "PERDURE_TASK_ID": ids.text(ids.derive(a.run_id, ids.TASK, a.seq)),
        "PERDURE_ATTEMPT": str(a.attempt),
    }
    if data is not None and len(data) <= INPUT_ENV_BYTES_MAX:
        found["PERDURE_INPUT"] = data.decode()
    if a.trace:
        found["TRACEPARENT"] = a.trace
    return found


def _secrets(names: Any, rules: CommandRules, environ: Mapping[str, str]) -> dict[str, str]:
    if names is None:
        return {}
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise JobRefused("secrets must be a list of names of the worker's variables")
    for name in checked_names(names):
        if name not in rules.allowed:
            raise JobRefused(
                f"the command asks for {name}, which this worker does not pass on: allow it with "
                f"--executor-option {rules.executor}.secrets={name}"
            )
        if name not in environ:
            raise JobRefused(f"the command asks for {name}, which this worker's environment does not have")
    return {name: environ[name] for name in names}


def _stdin(given: Any, data: bytes | None) -> bytes | None:
    if given is None:
        return data
    return given.encode() if isinstance(given, str) else msgspec.json.encode(given)


def _limits(given: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, int | float]:
    for name, value in given.items():
        if name not in known:
            raise JobRefused(f"limits has no {name!r}; it has {', '.join(known)}")
        is_number = isinstance(value, int | float) if name == CPUS else isinstance(value, int)
        if not is_number or isinstance(value, bool) or value <= 0:
            raise JobRefused(
                f"limits: {name} is {value!r}; give a {'number' if name == CPUS else 'whole number'} above zero"
            )
    return dict(given)


def _exit_codes(given: Mapping[str, Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for code, meaning in given.items():
        if not code.isdecimal() or int(code) > 255:
            raise JobRefused(f"exit_codes: {code!r} is no exit code; they go from 0 to 255")
        if meaning not in WORDS:
            raise JobRefused(f"exit_codes: {code} is {meaning!r}; it can be {', '.join(WORDS)}")
        found[int(code)] = meaning
    return found


def mapping(value: Any, what: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise JobRefused(f"{what} of a command is a {type(value).__name__}; give an object")
    return value or {}


def plain_text(value: Any, what: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise JobRefused(f"{what} of a command must be text")
    return value


def _word(value: Any, what: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return _bounded(str(value), what)
    raise JobRefused(f"{what} of a command is a {type(value).__name__}; give text or a number")


def _bounded(given: str, what: str) -> str:
    if "\0" in given:
        raise JobRefused(f"{what} of a command holds a zero character")
    if len(os.fsencode(given)) >= ARGUMENT_BYTES_MAX:
        raise JobRefused(
            f"{what} of a command is longer than ARGUMENT_BYTES_MAX={ARGUMENT_BYTES_MAX} bytes: give it as input"
        )
    return given
