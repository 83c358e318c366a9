"""The options of tasks and workflows as users write them, and the options that are recorded for a task.

An option is declared once, as a key of a TypedDict here or in flow_control.py. Decorators, `.options()` and `wf.call()` take them with
`**options: Unpack[...]`, so type checkers and editors know each of them. At run time `checked` refuses a name that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast

from perdure.core.durations import Duration, to_us
from perdure.core.errors import InvalidInput
from perdure.core.flow_control.options import FlowControlSpec
from perdure.core.limits import ATTEMPTS_DEFAULT, ATTEMPTS_MAX
from perdure.core.retry import TaskOptions
from perdure.sdk.flow_control import FlowControlOptions
from perdure.sdk.workflow import undo
from perdure.sdk.workflow.step import Step

if TYPE_CHECKING:
    from perdure.sdk.event_starts import On

T = TypeVar("T", bound=Mapping[str, Any])


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a task is executed, and how long it waits in between.

        @task(retry=Retry(5, delay="100ms", never=(CardDeclined,)))

    Raises InvalidInput for values out of range.
    """

    attempts: int = ATTEMPTS_DEFAULT
    """Executions in all: Retry(3) is one execution and at most two retries."""
    _: KW_ONLY
    delay: Duration = "1s"
    """Before the second execution."""
    factor: float = 2.0
    """Each delay is this many times longer than the one before."""
    max_delay: Duration = "1m"
    """The longest delay."""
    jitter: bool = True
    """Spread delays over 50% to 100% of their length."""
    on: tuple[type[Exception], ...] = (Exception,)
    """Exceptions that are retried."""
    never: tuple[type[Exception], ...] = ()
    """Exceptions that are not, even if `on` has them."""

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= ATTEMPTS_MAX:
            raise InvalidInput(
                f"Retry(attempts={self.attempts}): attempts counts executions and must lie between 1 and ATTEMPTS_MAX={ATTEMPTS_MAX}"
            )
        if self.factor < 1:
            raise InvalidInput(f"Retry(factor={self.factor}): delays cannot shrink; use a factor of 1 or more")


class CallOptions(FlowControlOptions, total=False):
    """How a call of a task is executed."""

    retry: Retry | int | None
    """Executions in all, or a `Retry`; 3 unless given."""
    timeout: Duration | None
    """For one attempt, from the moment it is handed to a worker."""
    queue: str | None
    """The queue that workers take it from; `default` unless given."""
    heartbeat: Duration | None
    """An attempt that sends no heartbeat for this long is ended and retried."""
    start_within: Duration | None
    """How long the task may wait for an attempt to begin; it fails with TaskTimeout otherwise."""
    finish_within: Duration | None
    """How long the task may take from its scheduling to its end, over all attempts."""
    at_most_once: bool | None
    """Never execute it twice; fail with TaskLost instead."""
    undo: Callable[..., Step[Any]] | str | None
    """The task, or its name, that undoes what this one did if the run fails or is cancelled later."""


class ServiceAuth(TypedDict, total=False):
    """Secrets of a call by the names of the worker's variables, which `--executor-option service.secrets=...` allows."""

    bearer_env: str
    """Sent as a bearer token."""
    headers_env: dict[str, str]
    """Header -> variable."""


class ServiceCallOptions(TypedDict, total=False):
    """How a service is called over HTTP."""

    url: str
    """Called as it is, instead of an instance of a service."""
    headers: dict[str, str | int | float | bool]
    auth: ServiceAuth
    max_attempts: int
    """Calls within one attempt of the task, each to another instance as far as there are any; 3 unless given."""
    attempt_delay_ms: int
    """Between two calls; 200 unless given."""
    weighted_by_load: bool
    """Instances that report less load are called more often. Otherwise they take turns."""
    timeout: float | str
    """For one call: seconds, or text such as "20s"."""


class TaskDefinitionOptions(CallOptions, total=False):
    """Options of `@task`."""

    name: str | None
    """By which histories and other processes know the task; the function's name unless given."""
    executor: str | None
    """What runs the task outside of its worker, such as `ray`; the worker itself unless given."""
    num_cpus: float | None
    """CPUs of an attempt, for the executor `ray`; 1 unless given."""
    num_gpus: float | None
    """GPUs of an attempt, for the executor `ray`."""
    resources: Mapping[str, float] | None
    """Other resources of an attempt by name, for the executor `ray`."""
    executor_options: Mapping[str, Any] | None
    """Other options of the executor, by name."""
    transactional: bool
    """Run it in a transaction of Perdure's database, whose commit also records its result: `attempt().connection`."""
    process: bool
    """Run a plain function in a process of its own: for work that keeps a CPU busy, may crash, or must end when it is cancelled."""


class WorkflowDefinitionOptions(FlowControlOptions, total=False):
    """Options of `@workflow`. Flow control is for its runs."""

    name: str | None
    """By which histories and other processes know the workflow; the function's name unless given."""
    version: str | None
    """A label for this version of the code; a hash of the code unless given."""
    versioning: Literal["pinned", "auto_upgrade"] | None
    """Whether a run stays with the version that it began with; unless given, it does if its worker declares a build id."""
    timeout: Duration | None
    """For one run, from its start."""
    on_failure: Any
    """The task or workflow that runs after a run has failed; also a workflow's name."""
    on_success: Any
    """The task or workflow that runs after a run has succeeded; also a workflow's name."""
    on: On | Sequence[On] | None
    """Named events that start runs of it."""


def checked(where: str, kind: type[T], options: Mapping[str, Any]) -> T:
    """The options that were given: without those that are None. Raises TypeError for a name that `kind` does not have."""
    known: frozenset[str] = kind.__optional_keys__  # type: ignore[attr-defined]
    for name in options:
        if name not in known:
            raise TypeError(f"{where} got an unexpected keyword argument {name!r}")
    return cast(T, {name: value for name, value in options.items() if value is not None})


def has_retry_policy(options: CallOptions) -> bool:
    """Whether the number of attempts was given, and is not the default."""
    return "retry" in options or bool(options.get("at_most_once"))


def recorded_options(options: CallOptions, control: FlowControlSpec | None = None, executor: str = "") -> TaskOptions:
    """What is recorded with a task: the effective value of every option."""
    given = options.get("retry")
    retry = given if isinstance(given, Retry) else Retry(ATTEMPTS_DEFAULT if given is None else given)
    at_most_once = bool(options.get("at_most_once"))
    if at_most_once and given is not None and retry.attempts > 1:
        raise InvalidInput("a task cannot be both at_most_once and retried; drop one of the two")
    undone_by = options.get("undo")
    return TaskOptions(
        max_attempts=1 if at_most_once else retry.attempts,
        initial_us=to_us(retry.delay),
        factor=retry.factor,
        cap_us=to_us(retry.max_delay),
        jitter=retry.jitter,
        timeout_us=_us(options.get("timeout")),
        heartbeat_us=_us(options.get("heartbeat")),
        at_most_once=at_most_once,
        never=tuple(qualified(t) for t in retry.never),
        on=() if retry.on == (Exception,) else tuple(qualified(t) for t in retry.on),
        to_start_us=positive_us("start_within", options.get("start_within")),
        to_close_us=positive_us("finish_within", options.get("finish_within")),
        undo="" if undone_by is None else undo.name_of(undone_by),
        control=control,
        executor=executor,
    )


_RECORDED_AS = {
    "timeout": "timeout_us",
    "heartbeat": "heartbeat_us",
    "start_within": "to_start_us",
    "finish_within": "to_close_us",
}


def executor_options(options: TaskDefinitionOptions) -> dict[str, Any]:
    """What a definition says to its executor. Raises InvalidInput where it has none."""
    found: dict[str, Any] = dict(options.get("executor_options") or {})
    found |= {name: options.get(name) for name in ("num_cpus", "num_gpus", "resources") if name in options}
    if found and not options.get("executor"):
        raise InvalidInput(
            f"{', '.join(found)}: these are options of an executor; say which one, such as executor='ray'"
        )
    return found


def given_fields(options: CallOptions, control: FlowControlSpec | None) -> tuple[str, ...]:
    """The fields of the recorded options that do not come from defaults."""
    fields: list[str] = []
    if has_retry_policy(options):
        fields.append("max_attempts")
    if isinstance(options.get("retry"), Retry):
        fields += ["initial_us", "factor", "cap_us", "jitter", "never", "on"]
    fields += [field for name, field in _RECORDED_AS.items() if name in options]
    if options.get("at_most_once"):
        fields.append("at_most_once")
    if control is not None:
        fields.append("control")
    if options.get("executor"):
        fields.append("executor")
    return tuple(fields)


def _us(duration: Duration | None) -> int:
    return 0 if duration is None else to_us(duration)


def positive_us(name: str, given: Duration | None) -> int:
    """A duration in microseconds; 0 where none is given. Raises InvalidInput unless it is above zero."""
    us = _us(given)
    if given is not None and us <= 0:
        raise InvalidInput(f"{name}={given!r}: give a duration above zero, or leave it out")
    return us


def qualified(t: type) -> str:
    """The full name of a type, as it is recorded."""
    return f"{t.__module__}.{t.__qualname__}"
