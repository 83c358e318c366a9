"""What a job asks for, held against what the worker allows; and the request that creates its container.

Laws:

1. A container has no capabilities beside those that the worker lists, cannot gain privileges, and is never privileged.
2. It has no network, and no directory of the machine, beside those that the worker lists and the job names.
3. It has the variables of its image, those of a command (commands.py), and none of the worker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from perdure.core import ids
from perdure.core.jobs import CONTAINER, PULL_POLICIES, job_task
from perdure.executors.commands import KEYS, CommandRules, CommandSpec, checked_names, mapping, plain_text, read_command
from perdure.executors.container.images import Image, read_image
from perdure.executors.port import Job, JobRefused, JobSecrets

FILES: Final = "/perdure"
"""Where a container has its input and writes its result: a volume of its own, which goes with it."""
FILES_DIR: Final = "io"
"""A directory in it that every user of the container may write to. The volume itself may belong to root."""
NO_NETWORK: Final = "none"
PROCESSES_DEFAULT: Final = 1_024
"""Processes of one container, unless its job or the worker says another number."""
MOUNTS_MAX: Final = 100
LABEL: Final = "perdure."
CONTAINER_KEYS: Final = (*KEYS, "image", "user", "network", "mounts", "read_only", "pull")
LIMITS: Final = ("memory_bytes", "cpus", "processes")
GRACE_S: Final = 3.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?\Z")
_STDIN_SHELL: Final = ("/bin/sh", "-c", f'exec "$@" < {FILES}/{FILES_DIR}/stdin', "sh")


class ContainerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Lists are separated by commas."""

    socket: str = ""
    """Of Docker or Podman; default: that of DOCKER_HOST, else the first that exists of the usual ones."""
    state_dir: str = ""
    """Where jobs are noted; default: as for `process`. Workers that take over each other's jobs share it."""
    scope: str = ""
    """Workers of one scope take over each other's jobs; the worker sets it to its server and namespace."""
    images: str = ""
    """Images that jobs may use, with `*` for any characters: `registry.example.com/team/*`. Default: every image."""
    registries: str = ""
    """A file with credentials of registries, in the form of Docker's config.json."""
    secrets: str = ""
    """Variables of the worker that jobs may ask for."""
    mounts: str = ""
    """Directories of this machine that jobs may mount, with all below them. Default: none."""
    networks: str = ""
    """Networks that jobs may use, such as `bridge`. Default: none, and a container has no network."""
    capabilities: str = ""
    """Linux capabilities that containers keep. Default: none."""
    user: str = ""
    """The user that commands run as within a container, unless the job says; default: that of the image."""
    memory_bytes: int = 0
    """The most memory that a container may have, and what it has unless the job asks for less; 0: no limit."""
    cpus: float = 0
    """The same for CPUs."""
    processes: int = PROCESSES_DEFAULT
    """The same for processes."""
    grace_s: float = GRACE_S
    """Between SIGTERM and SIGKILL."""


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one job asks for."""

    command: CommandSpec
    image: Image
    reference: str
    """The image as it was named."""
    pull: str
    memory_bytes: int
    """0: no limit."""
    files: dict[str, bytes | None]
    """What the container finds below FILES; None is a directory."""
    body: dict[str, Any]
    """The request that creates the container."""


def words(text: str) -> list[str]:
    return [word for word in map(str.strip, text.split(",")) if word]


def command_rules(options: ContainerOptions) -> CommandRules:
    return CommandRules(
        executor=CONTAINER,
        task=job_task(CONTAINER),
        keys=CONTAINER_KEYS,
        limits=LIMITS,
        allowed=frozenset(checked_names(words(options.secrets))),
        base_env={},
        needs_command=False,
    )


def read_spec(
    job: Job,
    rules: CommandRules,
    options: ContainerOptions,
    environ: Mapping[str, str],
    secrets: JobSecrets | None = None,
) -> ContainerSpec:
    """Raises Refused for what can never be run here."""
    spec, command = job.spec, read_command(job, rules, environ, secrets)
    image = read_image(spec.get("image"))
    reference = str(spec["image"])
    allowed = words(options.images)
    if allowed and not any(fnmatchcase(reference, pattern) for pattern in allowed):
        raise JobRefused(f"this worker does not run the image {reference}: container.images allows {options.images}")
    pull = spec.get("pull") or PULL_POLICIES[0]
    if pull not in PULL_POLICIES:
        raise JobRefused(f"pull is {pull!r}; it can be {', '.join(PULL_POLICIES)}")
    host = _host_config(spec, command, options)
    has_stdin = spec.get("stdin") is not None
    files: dict[str, bytes | None] = {FILES_DIR: None}
    if command.input is not None:
        files[f"{FILES_DIR}/input.json"] = command.input
    if has_stdin:
        files[f"{FILES_DIR}/stdin"] = command.stdin
    body = {
        "Image": reference,
        "Env": [f"{name}={value}" for name, value in _environment(command).items()],
        "Labels": _labels(job, options.scope),
        "Volumes": {FILES: {}},
        "User": _user(spec.get("user") or options.user),
        "WorkingDir": command.cwd,
        "HostConfig": host,
        **_entry(command, has_stdin),
    }
    return ContainerSpec(
        command=command,
        image=image,
        reference=reference,
        pull=pull,
        memory_bytes=host["Memory"],
        files=files,
        body={key: value for key, value in body.items() if value != ""},
    )


def _entry(command: CommandSpec, has_stdin: bool) -> dict[str, Any]:
    """The command takes the place of the image's own, also of its entry point: what is written is what runs."""
    if not command.argv:
        if has_stdin:
            raise JobRefused("stdin needs a command: it is read by the image's shell, which then runs the command")
        return {}
    return {"Entrypoint": [*(_STDIN_SHELL if has_stdin else ()), *command.argv], "Cmd": []}


def _environment(command: CommandSpec) -> dict[str, str]:
    at = f"{FILES}/{FILES_DIR}"
    found = {**command.env, "PERDURE_RESULT_FILE": f"{at}/result.json"}
    if command.input is not None:
        found["PERDURE_INPUT_FILE"] = f"{at}/input.json"
    return found


def _labels(job: Job, scope: str) -> dict[str, str]:
    a = job.assignment
    return {
        f"{LABEL}scope": scope,
        f"{LABEL}job": job.name,
        f"{LABEL}run": ids.text(a.run_id),
        f"{LABEL}task": ids.text(ids.derive(a.run_id, ids.TASK, a.seq)),
        f"{LABEL}attempt": str(a.attempt),
    }


def _host_config(spec: Mapping[str, Any], command: CommandSpec, options: ContainerOptions) -> dict[str, Any]:
    read_only = spec.get("read_only") or False
    if not isinstance(read_only, bool):
        raise JobRefused(f"read_only is {read_only!r}; it can be true or false")
    memory = int(_most(command, "memory_bytes", options.memory_bytes))
    return {
        "NetworkMode": _network(spec.get("network"), words(options.networks)),
        "Mounts": _mounts(spec.get("mounts"), words(options.mounts)),
        "ReadonlyRootfs": read_only,
        "Tmpfs": {"/tmp": ""} if read_only else {},
        "Memory": memory,
        "MemorySwap": memory,  # with swap, a container over its limit would slow the machine down instead of ending
        "NanoCpus": int(_most(command, "cpus", options.cpus) * 1e9),
        "PidsLimit": int(_most(command, "processes", options.processes)),
        "CapDrop": ["ALL"],
        "CapAdd": words(options.capabilities),
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "RestartPolicy": {"Name": "no"},
    }


def _most(command: CommandSpec, name: str, most: float) -> float:
    """What the job asks for, or all that the worker gives; 0: no limit."""
    wanted = command.limits.get(name, 0)
    if most and wanted > most:
        raise JobRefused(f"limits: {name} is {wanted:g}, and this worker gives at most container.{name}={most:g}")
    return wanted or most


def _network(wanted: Any, allowed: list[str]) -> str:
    if wanted in (None, NO_NETWORK):
        return NO_NETWORK
    if not isinstance(wanted, str) or not _NAME.match(wanted) or wanted == "host":
        raise JobRefused(f"{wanted!r} is no network that a container may have; without a network write {NO_NETWORK}")
    if wanted not in allowed:
        raise JobRefused(
            f"the job asks for the network {wanted}, which this worker does not allow: "
            f"allow it with --executor-option container.networks={wanted}"
        )
    return wanted


def _mounts(wanted: Any, allowed: list[str]) -> list[dict[str, Any]]:
    if wanted is None:
        return []
    if not isinstance(wanted, list) or len(wanted) > MOUNTS_MAX:
        raise JobRefused(f"mounts must be a list of at most MOUNTS_MAX={MOUNTS_MAX} objects with source and target")
    return [_mount(mapping(one, "an entry of mounts"), allowed) for one in wanted]


def _mount(one: Mapping[str, Any], allowed: list[str]) -> dict[str, Any]:
    unknown = [key for key in one if key not in ("source", "target", "read_only")]
    if unknown:
        raise JobRefused(f"an entry of mounts has no {unknown[0]!r}; it has source, target and read_only")
    source, target = (plain_text(one.get(key), f"the {key} of a mount") for key in ("source", "target"))
    path = os.path.normpath(target)
    if not path.startswith("/") or path in ("/", FILES) or path.startswith(f"{FILES}/"):
        raise JobRefused(f"{target!r} is no place for a mount: give a path of its own, such as /data")
    # Links are followed first, so that none leads out of what is allowed.
    real = os.path.realpath(source)
    roots = [os.path.realpath(root) for root in allowed]
    if not source.startswith("/") or not any(os.path.commonpath((real, root)) == root for root in roots):
        raise JobRefused(
            f"the job asks for {source!r} of the worker's machine, which this worker does not allow: "
            "allow a directory with --executor-option container.mounts=PATH"
        )
    if not os.path.exists(real):
        raise JobRefused(f"the job asks for {source!r} of the worker's machine, which does not exist")
    return {"Type": "bind", "Source": real, "Target": path, "ReadOnly": one.get("read_only") is not False}


def _user(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or (value and not _USER.match(value)):
        raise JobRefused(f"user is {value!r}; give a name or a number, or both user and group as 1000:1000")
    return value
