"""`PerdureDurability`: the capability that makes an agent durable inside a workflow.

Theory. The loop of an agent is workflow code: it runs on the deterministic loop of the run and replays. Pydantic AI hands every model
request and tool call of it to a durability capability as an operation; here each becomes a task, which is recorded once and retried by
its own policy. Outside of a workflow the capability does nothing, and the agent works as usual.

Laws:

1. What the loop sends to tasks is the same at every replay: ids come from the seed of the run, times from its history (stamps.py),
   plain functions of the agent run in place and not in threads.
2. No code of the loop does I/O. A tool that is exempt (metadata={"perdure": False}) is workflow code and guarded like it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from pydantic_ai import Agent
from pydantic_ai.capabilities import WrapModelRequestHandler, WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    conversation_id_from_run_id,
)
from pydantic_ai.messages import AgentStreamEvent, ModelResponse
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, RunContext

from perdure.core.errors import InvalidInput
from perdure.frameworks.pydantic_ai.approvals import ToolApprovals
from perdure.frameworks.pydantic_ai.budgets import Budget
from perdure.frameworks.pydantic_ai.stamps import Stamps, stamps
from perdure.frameworks.pydantic_ai.streaming import write_deltas
from perdure.frameworks.pydantic_ai.tasks import METADATA_KEY, AgentTaskOptions, AgentTasks
from perdure.frameworks.pydantic_ai.transports import AgentTransports
from perdure.sdk import wf
from perdure.sdk.options import TaskDefinitionOptions
from perdure.sdk.workflow import guards
from perdure.sdk.workflow.forbidden import FIX_CLOCK, FIX_RANDOM
from perdure.sdk.workflow.live_run import current
from perdure.sdk.workflow.loop import InlineExecutor

INLINE = InlineExecutor()

# Pydantic AI times requests for its reports, and draws ids of graph nodes and capabilities for the process. None of them reaches a task.
guards.trust("pydantic_ai", FIX_CLOCK, FIX_RANDOM)
guards.trust("pydantic_graph", FIX_CLOCK, FIX_RANDOM)


class PerdureDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes the runs of an agent durable inside workflows.

        agent = Agent(model, name="support", capabilities=[PerdureDurability()])

        @workflow
        async def support(question: str) -> str:
            return (await agent.run(question)).output

    Args:
        model: options of the tasks that call models, as for `@task`: `{"retry": 5, "queue": "llm", "timeout": "2m"}`.
        tool: options of the tasks that call tools. The metadata of a tool replace them for that tool:
            `@agent.tool(metadata={"perdure": {"retry": 1}})`; False runs the tool in the workflow.
        approvals: how people are asked about tools that need approval; False returns the requests as the output of the agent.
        budget: what calls of models may cost; they are charged when their response is recorded.
        stream: write the text of responses to the output of the run while they are made; read it with `stream_text()`.
        models: other models by name, which runs choose by `agent.run(model="name")`.
        name: of the agent in the names of its tasks; the name of the agent unless given.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="Perdure",
        durable_unit_noun="task",
        durable_container_noun="workflow",
        codec=JSON_CODEC,
        toolset_lifecycles={
            "function": "enter-outside-durable",
            "mcp": "enter-outside-durable",
            "dynamic": "enter-never",
        },
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=METADATA_KEY,
    )

    def __init__(
        self,
        *,
        model: TaskDefinitionOptions | None = None,
        tool: TaskDefinitionOptions | None = None,
        approvals: ToolApprovals | bool = True,
        budget: Budget | None = None,
        stream: bool = False,
        models: Mapping[str, Model] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=write_deltas if stream else None, name=name)
        self._options = AgentTaskOptions(model or {}, tool or {})
        self._approvals = ToolApprovals() if approvals is True else approvals or None
        self._budget, self._stream = budget, stream
        self._tasks: tuple[object, AgentTasks] | None = None

    @property
    def in_durable_context(self) -> bool:
        return current.get(None) is not None

    def get_durable_operation_backend(self) -> AgentTasks:
        # The base copies the capability for each agent that it is bound to; each copy has tasks of its own.
        if self._tasks is None or self._tasks[0] is not self:
            if self.in_durable_context:
                raise InvalidInput(
                    f"agent {self.name!r} is created inside a workflow; create it when its module is imported, so that workers have its tasks"
                )
            self._tasks = self, AgentTasks(self.name, self._options, AgentTransports(self))
        return self._tasks[1]

    def get_default_run_id(self) -> str | None:
        return str(wf.uuid()) if self.in_durable_context else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        return wf.now if self.in_durable_context else None

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        if not self.in_durable_context:
            return await super().wrap_run(ctx, handler=handler)
        stamped = Stamps(ctx.run_id)
        token = stamps.set(stamped)
        try:
            with Agent.using_thread_executor(INLINE), Agent.using_sleep(_sleep):
                result = await super().wrap_run(ctx, handler=handler)
        finally:
            stamps.reset(token)
        stamped.apply(result.all_messages(), wf.now())
        return result

    async def wrap_model_request(
        self, ctx: RunContext[AgentDepsT], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        budget = self._budget if self.in_durable_context else None
        if budget is None:
            return await super().wrap_model_request(ctx, request_context=request_context, handler=handler)
        key = budget.key_of(ctx)
        await budget.admit(key)
        response = await super().wrap_model_request(ctx, request_context=request_context, handler=handler)
        await budget.charge(key, response)
        return response

    @property
    def has_wrap_run_event_stream(self) -> bool:
        # It is what makes Pydantic AI ask the model for a stream.
        return self._stream and self.in_durable_context

    async def wrap_run_event_stream(
        self, ctx: RunContext[AgentDepsT], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        # The text was written by the task of the model; the base would make another task of each event here.
        async for event in stream:
            yield event

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        if self._approvals is None or not self.in_durable_context or not requests.approvals:
            return None
        return await self._approvals.decide(self.name, requests)


async def _sleep(seconds: float) -> None:
    await wf.sleep(timedelta(seconds=max(seconds, 0)))
