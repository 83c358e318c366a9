"""The frame of a body, by its kind."""

from __future__ import annotations

from typing import Any

from perdure.flows.decide.dag_frames import DagFrame
from perdure.flows.decide.frames import BodyFrame, FrameHost, Visit
from perdure.flows.decide.graph_frames import GraphFrame
from perdure.flows.model import FlowBody


def frame_of(
    host: FrameHost, body: FlowBody, data: Any, params: Any, prefix: str = "", owner: tuple[Visit, int] | None = None
) -> BodyFrame:
    kind = DagFrame if body.kind == "dag" else GraphFrame
    return kind(host, body, data, params, prefix, owner)
