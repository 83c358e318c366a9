"""What crosses from workflow code into a task of an agent, as JSON, and back.

Laws:

1. A call has three arguments: `call` (what the operation needs), `context` (the run context) and `deps` (the dependencies). So flow
   control can refer to them: `by="deps.customer"`.
2. The same call gives the same bytes in every process: sets are sorted, and messages have the time of the run (stamps.py).
3. Messages are written by Pydantic AI's own type adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from pydantic import TypeAdapter
from pydantic_ai.durable_exec import JSON_CODEC, DurabilityEngineSpec, DurableRunContext, ParameterTransport
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import RunContext

from perdure.frameworks.pydantic_ai.stamps import stamp

P = TypeVar("P")

_ANY: TypeAdapter[Any] = TypeAdapter(Any)


class AgentCall(NamedTuple):
    """The arguments of a task."""

    call: dict[str, Any]
    context: dict[str, Any] | None
    deps: Any


class Owner(Protocol):
    """The capability that a transport belongs to."""

    engine_spec: ClassVar[DurabilityEngineSpec]

    @property
    def agent(self) -> Any: ...


class PerdureRunContext(DurableRunContext[Any]):
    """The run context inside a task: what was written when the task was scheduled."""

    @classmethod
    def serialize_run_context(cls, ctx: RunContext[Any]) -> dict[str, Any]:
        written = super().serialize_run_context(ctx)
        # A capability without an id gets one in angle brackets, which is random and means nothing in another process.
        active: set[str] = written["active_capability_ids"]
        written["active_capability_ids"] = {id for id in active if not id.startswith("<")}
        return written

    def unavailable_field_message(self, name: str) -> str:
        return (
            f"ctx.{name} is not available in a tool that runs as a Perdure task: the field stays in the workflow. Pass what the tool "
            'needs as an argument or in `deps`, or let the tool run in the workflow with metadata={"perdure": False}'
        )


class Contexts:
    """Writes run contexts and dependencies, and restores them in the task."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._deps: TypeAdapter[Any] | None = None

    def written(self, call: dict[str, Any], ctx: RunContext[Any] | None) -> AgentCall:
        if ctx is None:
            return AgentCall(call, None, None)
        return AgentCall(call, plain(PerdureRunContext.serialize_run_context(ctx)), self._written_deps(ctx.deps))

    def restored(self, sent: AgentCall) -> RunContext[Any]:
        deps = self._adapter().validate_python(sent.deps) if sent.deps is not None else None
        return PerdureRunContext.restore(
            sent.context or {}, deps=deps, agent=self._owner.agent, engine_spec=self._owner.engine_spec
        )

    def restored_if_any(self, sent: AgentCall) -> RunContext[Any] | None:
        return None if sent.context is None else self.restored(sent)

    def _written_deps(self, deps: Any) -> Any:
        if deps is None:
            return None
        try:
            return plain(self._adapter().dump_python(deps, warnings="error"))
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"the dependencies of agent {self._owner.agent.name!r} cannot be written as JSON: {error}. They are recorded with each task, "
                "so give plain data of the type in `deps_type`; open connections and clients belong into the tools"
            ) from error

    def _adapter(self) -> TypeAdapter[Any]:
        if self._deps is None:
            try:
                self._deps = TypeAdapter(self._owner.agent.deps_type)
            except Exception as error:
                raise UserError(
                    f"deps_type={self._owner.agent.deps_type!r} of agent {self._owner.agent.name!r} has no JSON form, and dependencies are recorded "
                    f"with each task. Use a dataclass or a pydantic model with plain data ({str(error).partition('. ')[0]})"
                ) from error
        return self._deps


def plain(value: Any) -> Any:
    """As JSON has it; sets are sorted, because their order differs from process to process."""
    return _ANY.dump_python(_ordered(_ANY.dump_python(value)), mode="json")


def _ordered(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        items: set[Any] = set(value)  # pyright: ignore[reportUnknownArgumentType]
        return sorted(_ordered(item) for item in items)
    if isinstance(value, dict):
        fields: dict[Any, Any] = value
        return {key: _ordered(item) for key, item in fields.items()}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def parameters_of(parameters: ModelRequestParameters) -> Any:
    return _sorted_sets(parameters, JSON_CODEC.dump(ModelRequestParameters, parameters))


def _sorted_sets(source: Any, written: dict[str, Any]) -> dict[str, Any]:
    """Fields of an object that are sets, sorted in its written form."""
    for name in written:
        if isinstance(getattr(source, name, None), set | frozenset):
            written[name] = sorted(written[name])
    return written


def messages_of(messages: list[ModelMessage]) -> Any:
    stamp(messages)
    return ModelMessagesTypeAdapter.dump_python(messages, mode="json")


class Transport(ParameterTransport[P, AgentCall], Generic[P]):
    """How the parameters of one operation are written and read."""

    def __init__(self, dump: Callable[[P], AgentCall], load: Callable[[AgentCall], P]) -> None:
        self._dump, self._load = dump, load

    def dump(self, params: P) -> AgentCall:
        return self._dump(params)

    def load(self, payload: AgentCall, *, runtime: object) -> P:
        return self._load(payload)
