"""Tools that need approval: the run waits until people have decided, then the agent goes on with what they said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied

from perdure.core.durations import Duration
from perdure.core.errors import ApprovalRejected
from perdure.sdk.approvals import Approval

DENIED = "The tool call was rejected by a person."
EXPIRED = "Nothing was decided about the tool call in time, so it was not made."


class ToolApprovals:
    """How people are asked about calls of tools with `requires_approval=True`.

    Each call is an approval of the run, called `name`; several at a time are `name`, `name#2` and so on, in the order of the calls.

    Args:
        name: of the approvals; `tool` unless given.
        assignees: who may answer; everyone who may operate runs unless given.
        quorum: how many have to approve.
        timeout: a call that is not decided in time is denied; the run waits forever unless given.
    """

    def __init__(
        self,
        name: str = "tool",
        *,
        assignees: Sequence[str] = (),
        quorum: int = 1,
        timeout: Duration | None = None,
    ) -> None:
        self.approval = Approval(name, assignees=assignees, quorum=quorum, timeout=timeout)

    async def decide(self, agent: str, requests: DeferredToolRequests) -> DeferredToolResults:
        """Ask about all of them at the same time and wait for every decision."""
        decisions = await asyncio.gather(*(self._decide(agent, call, requests) for call in requests.approvals))
        return requests.build_results(
            approvals={call.tool_call_id: said for call, said in zip(requests.approvals, decisions, strict=True)}
        )

    async def _decide(
        self, agent: str, call: ToolCallPart, requests: DeferredToolRequests
    ) -> ToolApproved | ToolDenied:
        details: dict[str, Any] = {"agent": agent, "tool": call.tool_name, "arguments": call.args_as_dict()}
        if metadata := requests.metadata.get(call.tool_call_id):
            details["metadata"] = metadata
        try:
            await self.approval.wait(title=f"{agent} wants to call {call.tool_name}", details=details)
        except ApprovalRejected as rejected:
            return ToolDenied(f"{DENIED} {rejected.comment}".strip())
        except TimeoutError:
            return ToolDenied(EXPIRED)
        return ToolApproved()
