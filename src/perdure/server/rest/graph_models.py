"""The graph of a flow, on the wire."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

GraphStatusWord = Literal["pending", "waiting", "running", "success", "failed", "skipped", "cancelled"]
TaskStatusWord = Literal["pending", "dispatched", "running", "success", "failed", "skipped", "cancelled"]


class GraphNode(BaseModel):
    key: str
    path: str = Field(description="Its key behind those of the nodes it is within, with dots between.")
    word: str = Field(description="What kind of step it is.", examples=["task", "approval"])
    detail: str = Field(description="The task's or workflow's name, where it is not the key.")
    badges: list[str] = Field(examples=[["for each", "timeout 5m"]])
    status: GraphStatusWord | None = Field(default=None, description="In a run; null where nothing is known.")
    tasks: int = Field(default=0, description="Of a run: how many it has.")
    counts: dict[TaskStatusWord, int] = Field(default={}, description="Of a run: its tasks by status.")
    inner: GraphBody | None = None


class GraphLink(BaseModel):
    source: str
    target: str
    label: str = Field(description="The actions that lead this way; empty for all.")


class GraphBody(BaseModel):
    start: str | None = Field(description="Where a graph begins; null for a dag.")
    nodes: list[GraphNode]
    links: list[GraphLink]


class FlowGraph(GraphBody):
    """Nodes and ways of a flow, as they are drawn. Workflows of code have none that could be known beforehand."""

    name: str
    version: str
    kind: str
