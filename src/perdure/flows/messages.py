"""The messages that a flow reads, as they stand in its document. A name with `${ }` is known only when the run gets there."""

from __future__ import annotations

from perdure.core.expressions.template import Template
from perdure.core.published_messages import PublishedMessages
from perdure.flows.model import ApprovalVerb, Flow, MessageVerb


def messages_of(flow: Flow) -> PublishedMessages:
    """A flow declares no types: each name takes any value."""
    signals, approvals, events = set[str](), set[str](), set[str]()
    is_open = False

    def add(name: Template, *places: set[str]) -> None:
        nonlocal is_open
        if not name.is_constant:
            is_open = True
            return
        for place in places:
            place.add(str(name.constant))

    for node in flow.all_nodes():
        match node.verb:
            case MessageVerb(event=True, signal=name):
                add(name, events)
            case MessageVerb(signal=name):
                add(name, signals)
            case ApprovalVerb(signals=True, name=name):
                add(name, approvals, signals)
            case ApprovalVerb(name=name):
                add(name, approvals)
            case _:
                pass
    return PublishedMessages(
        signals=dict.fromkeys(sorted(signals), ()),
        approvals=tuple(sorted(approvals)),
        events=tuple(sorted(events)),
        open=is_open,
    )
