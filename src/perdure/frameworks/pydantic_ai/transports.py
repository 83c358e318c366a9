"""The transport of each kind of operation of an agent."""

from __future__ import annotations

from typing import Any, cast

from pydantic_ai.durable_exec import (
    JSON_CODEC,
    CapabilityMethodDeclaration,
    CapabilityOperationParams,
    DynamicToolsetCallToolParams,
    ModelCancelSuspendedResponseParams,
    ModelCompactMessagesParams,
    ModelRequestParams,
    ParameterTransports,
    ToolsetCallToolParams,
    ToolsetGetToolsParams,
    WorkspaceCall,
    WorkspaceCallParams,
    revalidate_function_call,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, FunctionToolset
from pydantic_ai.toolsets.function import FunctionToolsetTool
from pydantic_ai.workspaces import WorkspaceRef

from perdure.frameworks.pydantic_ai.wire import AgentCall, Contexts, Owner, Transport, messages_of, parameters_of, plain


class AgentTransports(ParameterTransports):
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._contexts = Contexts(owner)

    def model_request(self, result_type: object) -> Transport[ModelRequestParams]:
        def dump(params: ModelRequestParams) -> AgentCall:
            call = {
                "model": params.model_id,
                "messages": messages_of(params.messages),
                "settings": plain(params.model_settings),
                "parameters": parameters_of(params.model_request_parameters),
            }
            return self._contexts.written(call, params.run_context)

        def load(sent: AgentCall) -> ModelRequestParams:
            return ModelRequestParams(
                sent.call["model"],
                messages=ModelMessagesTypeAdapter.validate_python(sent.call["messages"]),
                model_settings=cast("ModelSettings | None", sent.call["settings"]),
                model_request_parameters=JSON_CODEC.load(ModelRequestParameters, sent.call["parameters"]),
                run_context=self._contexts.restored(sent),
            )

        return Transport(dump, load)

    def compact_messages(self) -> Transport[ModelCompactMessagesParams]:
        def dump(params: ModelCompactMessagesParams) -> AgentCall:
            request = params.request_context
            call = {
                "model": params.model_id,
                "messages": messages_of(request.messages),
                "settings": plain(request.model_settings),
                "parameters": parameters_of(request.model_request_parameters),
                "streaming": request.streaming,
                "instructions": params.instructions,
            }
            return self._contexts.written(call, params.run_context)

        def load(sent: AgentCall) -> ModelCompactMessagesParams:
            # The operation puts the model in; there is none on this side of the boundary yet.
            request = ModelRequestContext(
                model=cast("Model", None),
                messages=ModelMessagesTypeAdapter.validate_python(sent.call["messages"]),
                model_settings=cast("ModelSettings | None", sent.call["settings"]),
                model_request_parameters=JSON_CODEC.load(ModelRequestParameters, sent.call["parameters"]),
            )
            request.model_id, request.streaming = sent.call["model"], sent.call["streaming"]
            return ModelCompactMessagesParams(
                sent.call["model"],
                request_context=request,
                instructions=sent.call["instructions"],
                run_context=self._contexts.restored(sent),
            )

        return Transport(dump, load)

    def cancel_suspended_response(self) -> Transport[ModelCancelSuspendedResponseParams]:
        def dump(params: ModelCancelSuspendedResponseParams) -> AgentCall:
            call = {"model": params.model_id, "response": JSON_CODEC.dump(ModelResponse, params.response)}
            return self._contexts.written(call, params.run_context)

        def load(sent: AgentCall) -> ModelCancelSuspendedResponseParams:
            return ModelCancelSuspendedResponseParams(
                sent.call["model"],
                response=JSON_CODEC.load(ModelResponse, sent.call["response"]),
                run_context=self._contexts.restored_if_any(sent),
            )

        return Transport(dump, load)

    def capability_operation(self, declaration: CapabilityMethodDeclaration) -> Transport[CapabilityOperationParams]:
        def dump(params: CapabilityOperationParams) -> AgentCall:
            call = {"model": params.model_id, "arguments": plain(params.arguments)}
            return self._contexts.written(call, params.run_context)

        def load(sent: AgentCall) -> CapabilityOperationParams:
            return CapabilityOperationParams(
                self._contexts.restored(sent), arguments=sent.call["arguments"], model_id=sent.call["model"]
            )

        return Transport(dump, load)

    def workspace_call(self) -> Transport[WorkspaceCallParams]:
        def dump(params: WorkspaceCallParams) -> AgentCall:
            call = {
                "call": JSON_CODEC.dump(WorkspaceCall, params.call),
                "ref": JSON_CODEC.dump(WorkspaceRef | None, params.ref),
            }
            return self._contexts.written(call, params.run_context)

        def load(sent: AgentCall) -> WorkspaceCallParams:
            return WorkspaceCallParams(
                run_context=self._contexts.restored(sent),
                ref=JSON_CODEC.load(WorkspaceRef | None, sent.call["ref"]),
                call=JSON_CODEC.load(WorkspaceCall, sent.call["call"]),
            )

        return Transport(dump, load)

    def function_call(self, toolset: FunctionToolset[Any]) -> Transport[ToolsetCallToolParams]:
        def dump(params: ToolsetCallToolParams) -> AgentCall:
            tool = params.tool
            assert tool is not None
            call = {
                "tool": params.name,
                "arguments": plain(params.tool_args),
                "definition": JSON_CODEC.dump(ToolDefinition, tool.tool_def),
                "original": tool.original_name if isinstance(tool, FunctionToolsetTool) else None,
            }
            return self._contexts.written(call, params.ctx)

        def load(sent: AgentCall) -> ToolsetCallToolParams:
            ctx, call = self._contexts.restored(sent), sent.call
            definition = JSON_CODEC.load(ToolDefinition, call["definition"])
            try:
                tool = toolset.tool_for_tool_def(definition, ctx=ctx, original_name=call["original"])
            except KeyError as error:
                raise UserError(
                    f"the tool {call['tool']!r} is not in the toolset {toolset.id!r} of this worker. The run called it when its code had it; "
                    "keep tools until no run uses them"
                ) from error
            return ToolsetCallToolParams(call["tool"], tool_args=call["arguments"], ctx=ctx, tool=tool)

        return Transport(dump, load)

    async def prepare_function_call(
        self, toolset: FunctionToolset[Any], params: ToolsetCallToolParams
    ) -> ToolsetCallToolParams:
        return await revalidate_function_call(toolset, params, engine_spec=self._owner.engine_spec)

    def mcp_call(self, toolset: AbstractToolset[Any]) -> Transport[ToolsetCallToolParams]:
        def dump(params: ToolsetCallToolParams) -> AgentCall:
            assert params.tool is not None
            call = {
                "tool": params.name,
                "arguments": plain(params.tool_args),
                "definition": JSON_CODEC.dump(ToolDefinition, params.tool.tool_def),
            }
            return self._contexts.written(call, params.ctx)

        def load(sent: AgentCall) -> ToolsetCallToolParams:
            ctx = self._contexts.restored(sent)
            definition = JSON_CODEC.load(ToolDefinition, sent.call["definition"])
            # Only toolsets of MCP servers get here; their base class does not declare the method.
            tool = cast("Any", toolset).tool_for_tool_def(definition, ctx=ctx)
            return ToolsetCallToolParams(sent.call["tool"], tool_args=sent.call["arguments"], ctx=ctx, tool=tool)

        return Transport(dump, load)

    def get_tools(self, toolset: AbstractToolset[Any]) -> Transport[ToolsetGetToolsParams]:
        return self._discovery()

    def get_instructions(self, toolset: AbstractToolset[Any]) -> Transport[ToolsetGetToolsParams]:
        return self._discovery()

    def dynamic_get_tools(self, toolset: DynamicToolset[Any]) -> Transport[ToolsetGetToolsParams]:
        return self._discovery()

    def _discovery(self) -> Transport[ToolsetGetToolsParams]:
        def dump(params: ToolsetGetToolsParams) -> AgentCall:
            return self._contexts.written({}, params.ctx)

        def load(sent: AgentCall) -> ToolsetGetToolsParams:
            return ToolsetGetToolsParams(self._contexts.restored(sent))

        return Transport(dump, load)

    def dynamic_call(self, toolset: DynamicToolset[Any]) -> Transport[DynamicToolsetCallToolParams]:
        def dump(params: DynamicToolsetCallToolParams) -> AgentCall:
            call = {
                "tool": params.name,
                "arguments": plain(params.tool_args),
                "definition": JSON_CODEC.dump(ToolDefinition | None, params.tool_def),
            }
            return self._contexts.written(call, params.ctx)

        def load(sent: AgentCall) -> DynamicToolsetCallToolParams:
            return DynamicToolsetCallToolParams(
                sent.call["tool"],
                tool_args=sent.call["arguments"],
                ctx=self._contexts.restored(sent),
                tool_def=JSON_CODEC.load(ToolDefinition | None, sent.call["definition"]),
            )

        return Transport(dump, load)
