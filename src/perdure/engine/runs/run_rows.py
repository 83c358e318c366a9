"""Rows of a commit, made of what a run asks for and sends."""

from __future__ import annotations

from perdure.core import chain
from perdure.core import events as ev
from perdure.core.messages import Message, kind_of, name_of
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import MARK
from perdure.core.questions import asked_by
from perdure.core.work import run_kind
from perdure.engine.commits.rows import Batch, MessageRow, PromiseRow, StartRow
from perdure.engine.runs.changes import ChildStart
from perdure.wire.codec import encode_events, encode_message


def promise_row(run_id: bytes, ns: int, p: ev.PromiseCreated, *, is_resolved: bool) -> PromiseRow:
    spec = p.spec.decode() or None
    return PromiseRow(run_id, p.name, ns, ev.PROMISE_WORDS[p.kind], spec, asked_by(p), is_resolved)


def message_row(run_id: bytes, message: Message) -> MessageRow:
    return MessageRow(run_id, encode_message(message), kind_of(message), name_of(message))


def attributes_text(attributes: bytes) -> str | None:
    return attributes.decode() if attributes else None


def fill_start(batch: Batch, child: ChildStart, ns: int) -> None:
    e = child.started
    plain = encode_events([e])
    body = batch.seal(child.run_id, plain)
    child.head = chain.first(child.run_id, ns, int(child.own), body)
    if MARK in plain:
        batch.use(child.run_id, ns, payloads_of(e))
    batch.starts.append(
        StartRow(
            run_id=child.run_id,
            ns=ns,
            workflow=e.workflow,
            version=child.version,
            kind=run_kind(child.version),
            key=child.key or None,
            input_hash=child.input_hash,
            parent_id=e.parent_id or None,
            parent_seq=e.parent_seq if e.parent_id and e.parent_seq >= 0 else None,
            own=child.own,
            body=body,
            attributes=attributes_text(e.attributes),
            group_id=child.group.id if child.group is not None else None,
            deadline_at=e.deadline_us or None,
            hash=child.head,
            pin=child.version if e.pinned else "",
        )
    )
