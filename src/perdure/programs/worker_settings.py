"""Settings of a worker process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from perdure.core.errors import InvalidInput
from perdure.core.limits import PAYLOAD_INLINE_BYTES
from perdure.executors.http.services import parse_services
from perdure.executors.registry import parse_options
from perdure.payloads.objects import payload_urls
from perdure.programs.process_settings import (
    FilePath,
    Format,
    Level,
    Named,
    ProcessSettings,
    Seconds,
    Switch,
    Words,
    checked,
)
from perdure.sdk.secrets.providers import provider_names
from perdure.sdk.worker.capacity import PROCESSES_DEFAULT, SLOTS_DEFAULT, THREADS_DEFAULT
from perdure.sdk.worker.stream import DRAIN_S_DEFAULT


def _services(text: str) -> dict[str, str]:
    return parse_services(text.split(","))


def _executor_options(text: str) -> dict[str, dict[str, str]]:
    return parse_options(text.split(","))


class WorkerSettings(ProcessSettings):
    """Settings of `perdure worker`."""

    section: ClassVar[str] = "worker"
    prefix: ClassVar[str] = "PERDURE_WORKER_"

    server: Annotated[str, Named("PERDURE_GRPC")] = ""
    """The server's gRPC address; several are separated by commas. Default: that of `perdure dev` in this directory, else `127.0.0.1:8601`."""
    queues: Words = ()
    """Queues to serve, separated by commas. Default: all that the tasks name."""
    build_id: str = ""
    """What this worker was built from, such as a commit. Runs are then pinned to the version that they began with, unless their workflow says otherwise."""
    is_dev: Annotated[Switch, Named("PERDURE_WORKER_DEV")] = False
    """Its code is being edited: no run is pinned, and a label of a workflow may stand for changed code."""
    slots: int = SLOTS_DEFAULT
    """Tasks at a time."""
    threads: int = THREADS_DEFAULT
    """Threads for plain functions."""
    processes: int = PROCESSES_DEFAULT
    """Processes for tasks that ask for one."""
    api_key: Annotated[str | None, Named("PERDURE_API_KEY", secret=True)] = None
    """API key with the role worker."""
    namespace: Annotated[str | None, Named("PERDURE_NAMESPACE")] = None
    """The namespace, for a key that may use several."""
    tls: Switch = False
    """Use TLS with the system's authorities."""
    tls_ca: Annotated[FilePath, Named("PERDURE_CA")] = None
    """Use TLS and trust this authority, a PEM file."""
    tls_cert: Annotated[FilePath, Named("PERDURE_CLIENT_CERT")] = None
    """The worker's certificate, a PEM file."""
    tls_key: Annotated[FilePath, Named("PERDURE_CLIENT_KEY")] = None
    """Its private key, a PEM file."""
    dsn: Annotated[str | None, Named("PERDURE_DSN", secret=True)] = None
    """The database of Perdure, for transactional tasks; no other task needs it."""
    apply_schedules: Switch = False
    """Apply the schedules that its modules define when it has connected. Its key needs the permission to develop."""
    drain_s: Annotated[Seconds, Named("PERDURE_WORKER_DRAIN")] = DRAIN_S_DEFAULT
    """How long a stopping worker waits for running tasks."""
    verbs: Annotated[Switch, Named("PERDURE_VERBS")] = True
    """Serve `http:` of flows."""
    services: Annotated[Mapping[str, str] | None, checked(_services), Named("PERDURE_SERVICES")] = None
    """Services that `http: {service: NAME}` calls by name: `name=url`, separated by commas."""
    executors: Annotated[Words, Named("PERDURE_EXECUTORS")] = ()
    """Executors to serve, separated by commas: `process` runs commands of `run:` as this user."""
    executor_options: Annotated[Mapping[str, Mapping[str, str]], checked(_executor_options)] = {}
    """Options of executors: `process.user=jobs`, separated by commas. PERDURE_EXECUTOR_PROCESS_USER does the same."""
    secrets: Annotated[tuple[str, ...], checked(provider_names), Named("PERDURE_SECRETS")] = ()
    """Providers of secrets in the order in which they are asked, separated by commas: `env`, `files` and those of installed packages. Default: `env,files`."""
    http_allow: Annotated[Words | None, Named("PERDURE_HTTP_ALLOW")] = None
    """Hosts and networks that `http:` may reach beside the public internet, separated by commas."""
    payloads: Annotated[tuple[str, ...], checked(payload_urls), Named("PERDURE_PAYLOADS")] = ()
    """Object stores for large values and blobs (`s3://bucket/prefix`), separated by commas; new content goes to the first. Default: the server's database."""
    payload_inline_bytes: Annotated[int, Named("PERDURE_PAYLOAD_INLINE_BYTES")] = PAYLOAD_INLINE_BYTES
    """Larger values are kept in the payload store."""
    log_format: Format = "text"
    """`text` or `json`."""
    log_level: Level = "info"
    """`debug`, `info`, `warning` or `error`."""

    def model_post_init(self, context: Any, /) -> None:
        for name in ("slots", "threads", "processes"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must be 1 or more")
