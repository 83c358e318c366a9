"""Each operation of an agent as a Perdure task: its name, its options, and the two sides of its call."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast

from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    CapabilityOperationId,
    DurableOperation,
    DurableOperationId,
    JournalOperationNamer,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    OperationConfigRole,
    RegisteredOperationBackend,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    durable_unit_scope,
)
from pydantic_ai.exceptions import UserError

from perdure.core.errors import InvalidInput
from perdure.frameworks.pydantic_ai.wire import AgentCall
from perdure.sdk import registry
from perdure.sdk.definitions import Task
from perdure.sdk.options import CallOptions, Retry, TaskDefinitionOptions, checked
from perdure.sdk.worker.attempts import FinalError

P = TypeVar("P")
W = TypeVar("W")
R = TypeVar("R")

METADATA_KEY = "perdure"
"""Of a tool's metadata: its task options, or False for a tool that runs in the workflow."""
OWN_TOOLS = "<agent>"
"""The id that Pydantic AI gives the toolset of the agent's own tools."""
Config = dict[str, Any]


class AgentTaskNames(JournalOperationNamer):
    """Names of the tasks of an agent. Histories have them, so they never change."""

    def __init__(self, agent: str) -> None:
        super().__init__(agent)
        self._agent = agent

    def operation_name(self, operation_id: DurableOperationId) -> str:
        match operation_id:
            case ModelRequestId(streaming=streaming):
                return f"{self._agent}.model_stream" if streaming else f"{self._agent}.model"
            case ModelCompactMessagesId():
                return f"{self._agent}.compact"
            case ModelCancelSuspendedResponseId():
                return f"{self._agent}.cancel_response"
            case ToolsetCallToolId(toolset_id=toolset):
                return f"{self._of(toolset)}.tool"
            case ToolsetValidateToolArgumentsId(toolset_id=toolset):
                return f"{self._of(toolset)}.validate"
            case ToolsetGetToolsId(toolset_id=toolset):
                return f"{self._of(toolset)}.list_tools"
            case ToolsetGetInstructionsId(toolset_id=toolset):
                return f"{self._of(toolset)}.instructions"
            case CapabilityOperationId(capability_id=capability, operation=operation):
                return f"{self._agent}.{capability}.{operation}"
            case _:  # later releases of Pydantic AI have more
                return super().operation_name(operation_id)

    def _of(self, toolset: str) -> str:
        return self._agent if toolset == OWN_TOOLS else f"{self._agent}.{toolset}"


class AgentTaskOptions:
    """The options of each task: those of models, or those of tools with what the tool's metadata say."""

    def __init__(self, model: TaskDefinitionOptions, tool: TaskDefinitionOptions) -> None:
        self._model, self._tool = cast("Config", dict(model)), cast("Config", dict(tool))

    def base(self, role: OperationConfigRole, *, operation_id: DurableOperationId) -> Config:
        return self._model if role == "model" else self._tool

    def for_tool(
        self, role: OperationConfigRole, *, operation_id: DurableOperationId, tool: object | None, tool_name: str
    ) -> Config | Literal[False]:
        definition = getattr(tool, "tool_def", None)
        own = ((definition.metadata if definition is not None else None) or {}).get(METADATA_KEY, {})
        if own is False:
            return False
        if not isinstance(own, Mapping):
            raise UserError(
                f"the tool {tool_name!r} has metadata {METADATA_KEY!r}: {own!r}; give a dict of task options, or False to run it in the workflow"
            )
        return {**self._tool, **cast("Config", own)}


class AgentTasks(RegisteredOperationBackend[Config]):
    """Makes a task of each operation. The tasks are registered like those of `@task`, so every worker that imports the agent has them."""

    def __init__(self, agent: str, options: AgentTaskOptions, transports: Any) -> None:
        super().__init__(namer=AgentTaskNames(agent), config=options, parameter_transports=transports)
        self._place = _place_of_agent()

    def register(
        self, operation: DurableOperation[P, W, R], *, name: str, config: Config
    ) -> tuple[BoundDurableOperation[P, W, R], Sequence[Callable[..., object]]]:
        async def execute(call: dict[str, Any], context: dict[str, Any] | None, deps: Any) -> Any:
            params = operation.parameter_transport.load(cast("W", AgentCall(call, context, deps)), runtime=None)
            with durable_unit_scope():
                try:
                    result = await operation.handler(params)
                except UserError as error:  # a mistake in the program: no attempt can do better
                    raise FinalError(f"{type(error).__name__}: {error}") from error
                return operation.result_codec.dump(result)

        execute.__qualname__ = f"{name} of the agent at {self._place}"
        task: Task[..., Any] = Task(execute, _options(name, config))
        registry.add(task)
        return AgentTask(operation, task, config), (execute,)


class AgentTask(BoundDurableOperation[P, W, R], Generic[P, W, R]):
    """The workflow's side: schedules the task and reads its recorded result."""

    def __init__(self, operation: DurableOperation[P, W, R], task: Task[..., Any], config: Config) -> None:
        self._operation, self.task, self._config = operation, task, config

    @property
    def operation(self) -> DurableOperation[P, W, R]:
        return self._operation

    async def __call__(self, params: P, *, config: object | None = None) -> R:
        sent = cast("AgentCall", self._operation.parameter_transport.dump(params))
        task = self.task
        if config and config != self._config:
            given = cast("CallOptions", config)
            task = task.options(**given)
        result = await cast("Awaitable[Any]", task(*sent))
        return self._operation.result_codec.load(result)


def _options(name: str, config: Config) -> TaskDefinitionOptions:
    if "name" in config:
        raise InvalidInput(f"tasks of an agent are named after it ({name}): leave out name={config['name']!r}")
    checked(f"options of {name}", TaskDefinitionOptions, cast("TaskDefinitionOptions", config))
    return cast("TaskDefinitionOptions", {"retry": Retry(), **config, "name": name})


def _place_of_agent() -> str:
    """Where the program makes the agent. A registry tells two agents of one name apart by it, and a reloaded module from another one."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "perdure",
        "pydantic_ai",
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
