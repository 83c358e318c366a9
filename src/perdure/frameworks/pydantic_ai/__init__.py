"""Pydantic AI agents inside workflows: each model request and each tool call is a task."""

from perdure.frameworks.pydantic_ai.approvals import ToolApprovals
from perdure.frameworks.pydantic_ai.budgets import Budget, BudgetSpent
from perdure.frameworks.pydantic_ai.durability import PerdureDurability
from perdure.frameworks.pydantic_ai.streaming import TextPiece, stream_text

__all__ = ["Budget", "BudgetSpent", "PerdureDurability", "TextPiece", "ToolApprovals", "stream_text"]
