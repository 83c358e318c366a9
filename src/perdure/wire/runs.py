"""The Runs service in terms of core/work.py: one pair of functions per message of proto/perdure/v1/runs.proto."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.deferred_starts import Batch, Debounce, Dedup, Later
from perdure.core.errors import Failure, InvalidInput
from perdure.core.events import Recorded
from perdure.core.links import Kind
from perdure.core.messages import SignalSent, UpdateAsked
from perdure.core.work import Answer, Outcome, RunView, StartRequest
from perdure.wire.codec import decode_recorded, encode_recorded
from perdure.wire.pb import runs_pb2 as pb
from perdure.wire.pb import worker_pb2

SERVICE: Final = "perdure.v1.Runs"
EMPTY: Final = b""


def encode_start(r: StartRequest) -> bytes:
    return pb.StartRequest(
        workflow=r.workflow, version=r.version, input=r.input, key=r.key, on_conflict=r.on_conflict, timeout_us=r.timeout_us,
        attributes=r.attributes, trace=r.trace, debounce=_debounce(r), batch=_batch(r), dedup=_dedup(r), once=r.once,
    ).SerializeToString()  # fmt: skip


def _debounce(r: StartRequest) -> pb.Debounce | None:
    d = r.later
    return pb.Debounce(key=d.key, quiet_us=d.quiet_us, most_us=d.most_us) if isinstance(d, Debounce) else None


def _batch(r: StartRequest) -> pb.Batch | None:
    b = r.later
    return pb.Batch(key=b.key, size=b.size, every_us=b.every_us) if isinstance(b, Batch) else None


def _dedup(r: StartRequest) -> pb.Dedup | None:
    return pb.Dedup(key=r.dedup.key, for_us=r.dedup.for_us) if r.dedup is not None else None


def decode_start(data: bytes, namespace: str) -> StartRequest:
    m = pb.StartRequest.FromString(data)
    if m.on_conflict not in ("", "fail", "attach", "replace"):
        raise InvalidInput(f"on_conflict is fail, attach or replace, not {m.on_conflict!r}")
    return StartRequest(
        namespace=namespace, workflow=m.workflow, version=m.version, input=m.input, key=m.key, on_conflict=m.on_conflict or "fail",
        timeout_us=m.timeout_us, attributes=m.attributes, trace=m.trace, later=_later(m),
        dedup=Dedup(m.dedup.key, m.dedup.for_us) if m.HasField("dedup") else None, once=m.once,
    )  # fmt: skip


def _later(m: pb.StartRequest) -> Later | None:
    if m.HasField("debounce") and m.HasField("batch"):
        raise InvalidInput("a start is debounced or batched, not both")
    if m.HasField("debounce"):
        return Debounce(m.debounce.key, m.debounce.quiet_us, m.debounce.most_us)
    return Batch(m.batch.key, m.batch.size, m.batch.every_us) if m.HasField("batch") else None


def encode_id(run_id: bytes) -> bytes:
    return pb.StartReply(run_id=run_id).SerializeToString()


def decode_id(data: bytes) -> bytes:
    return pb.StartReply.FromString(data).run_id


def encode_run(run_id: bytes, wait_ms: int = 0) -> bytes:
    return pb.RunRequest(run_id=run_id, wait_ms=wait_ms).SerializeToString()


def decode_run(data: bytes) -> tuple[bytes, int]:
    m = pb.RunRequest.FromString(data)
    return _checked(m.run_id), m.wait_ms


def encode_outcome(run_id: bytes, outcome: Outcome | None) -> bytes:
    if outcome is None:
        return pb.OutcomeReply(run_id=run_id, pending=True).SerializeToString()
    f = outcome.failure or Failure("", "")
    return pb.OutcomeReply(
        run_id=run_id, status=outcome.status, value=outcome.value, error_code=f.code, error_message=f.message, error_type=f.type,
        error_traceback=f.traceback,
    ).SerializeToString()  # fmt: skip


def decode_outcome(data: bytes) -> tuple[bytes, Outcome | None]:
    m = pb.OutcomeReply.FromString(data)
    if m.pending:
        return m.run_id, None
    failure = Failure(m.error_code, m.error_message, m.error_type, m.error_traceback) if m.error_code else None
    return m.run_id, Outcome(m.status, m.value, failure)


def encode_view(v: RunView) -> bytes:
    """Absent numbers travel as 0, absent texts as empty."""
    return pb.RunReply(
        run_id=v.run_id, workflow=v.workflow, version=v.version, key=v.key or "", status=v.status, created_us=v.created_us,
        finished_us=v.finished_us or 0, error=v.error or "", stuck=v.stuck or "", wake_us=v.wake_us or 0, owner=v.owner or 0, epoch=v.epoch,
        successor=v.successor or b"",
    ).SerializeToString()  # fmt: skip


def decode_view(data: bytes) -> RunView:
    m = pb.RunReply.FromString(data)
    return RunView(
        run_id=m.run_id, workflow=m.workflow, version=m.version, key=m.key or None, status=m.status, created_us=m.created_us,
        finished_us=m.finished_us or None, error=m.error or None, stuck=m.stuck or None, wake_us=m.wake_us or None, owner=m.owner or None,
        epoch=m.epoch, successor=m.successor or None,
    )  # fmt: skip


def encode_find(key: str) -> bytes:
    return pb.FindRequest(key=key).SerializeToString()


def decode_find(data: bytes) -> str:
    return pb.FindRequest.FromString(data).key


def encode_history_request(run_id: bytes, after: int) -> bytes:
    return pb.HistoryRequest(run_id=run_id, after=after).SerializeToString()


def decode_history_request(data: bytes) -> tuple[bytes, int]:
    m = pb.HistoryRequest.FromString(data)
    return _checked(m.run_id), m.after


def encode_history(records: list[Recorded]) -> bytes:
    return pb.HistoryReply(events=encode_recorded(records)).SerializeToString()


def decode_history(data: bytes) -> list[Recorded]:
    return decode_recorded(pb.HistoryReply.FromString(data).events)


def encode_name(run_id: bytes, name: str) -> bytes:
    return pb.NameRequest(run_id=run_id, name=name).SerializeToString()


def decode_name(data: bytes) -> tuple[bytes, str]:
    m = pb.NameRequest.FromString(data)
    return _checked(m.run_id), m.name


def encode_value(value: bytes | None) -> bytes:
    return pb.ValueReply(found=value is not None, value=value or b"").SerializeToString()


def decode_value(data: bytes) -> bytes | None:
    m = pb.ValueReply.FromString(data)
    return m.value if m.found else None


def encode_cancel(run_id: bytes, reason: str) -> bytes:
    return pb.CancelRequest(run_id=run_id, reason=reason).SerializeToString()


def decode_cancel(data: bytes) -> tuple[bytes, str]:
    m = pb.CancelRequest.FromString(data)
    return _checked(m.run_id), m.reason


def encode_message(run_id: bytes, name: str, value: bytes, key: str = "") -> bytes:
    return pb.MessageRequest(run_id=run_id, name=name, value=value, key=key).SerializeToString()


def decode_message(data: bytes) -> tuple[bytes, str, bytes]:
    m = pb.MessageRequest.FromString(data)
    return _checked(m.run_id), m.name, m.value


def encode_update(run_id: bytes, asked: UpdateAsked, wait_ms: int) -> bytes:
    return pb.UpdateRequest(
        run_id=run_id, id=asked.id, name=asked.name, value=asked.value, wait_ms=wait_ms
    ).SerializeToString()


def decode_update(data: bytes) -> tuple[bytes, UpdateAsked, int]:
    m = pb.UpdateRequest.FromString(data)
    return _checked(m.run_id), UpdateAsked(m.id, m.name, m.value), m.wait_ms


def encode_answer(answer: Answer | None) -> bytes:
    if answer is None:
        return pb.UpdateReply(pending=True).SerializeToString()
    f = answer.failure or Failure("", "")
    return pb.UpdateReply(
        value=answer.value, error_code=f.code, error_message=f.message, error_type=f.type, error_traceback=f.traceback
    ).SerializeToString()


def decode_answer(data: bytes) -> Answer | None:
    m = pb.UpdateReply.FromString(data)
    if m.pending:
        return None
    failure = Failure(m.error_code, m.error_message, m.error_type, m.error_traceback) if m.error_code else None
    return Answer(m.value, failure)


class VoteCast(msgspec.Struct, frozen=True):
    run_id: bytes
    name: str
    approved: bool
    value: bytes
    comment: str
    by: str


def encode_vote(v: VoteCast) -> bytes:
    return pb.VoteRequest(
        run_id=v.run_id, name=v.name, approved=v.approved, value=v.value, comment=v.comment, by=v.by
    ).SerializeToString()


def decode_vote(data: bytes) -> VoteCast:
    m = pb.VoteRequest.FromString(data)
    return VoteCast(_checked(m.run_id), m.name, m.approved, m.value, m.comment, m.by)


def encode_voted(decided: bool) -> bytes:
    return pb.VoteReply(decided=decided).SerializeToString()


def decode_voted(data: bytes) -> bool:
    return pb.VoteReply.FromString(data).decided


def encode_delegate(run_id: bytes, name: str, to: str, by: str) -> bytes:
    return pb.DelegateRequest(run_id=run_id, name=name, to=to, by=by).SerializeToString()


def decode_delegate(data: bytes) -> tuple[bytes, str, str, str]:
    m = pb.DelegateRequest.FromString(data)
    return _checked(m.run_id), m.name, m.to, m.by


def encode_link_request(run_id: bytes, kind: Kind, name: str, who: str, lasts_us: int) -> bytes:
    return pb.LinkRequest(run_id=run_id, kind=kind, name=name, who=who, lasts_us=lasts_us).SerializeToString()


def decode_link_request(data: bytes) -> tuple[bytes, Kind, str, str, int]:
    m = pb.LinkRequest.FromString(data)
    if m.kind not in ("approval", "promise"):
        raise InvalidInput(f"a link is for an approval or a promise, not for {m.kind!r}")
    kind: Kind = "approval" if m.kind == "approval" else "promise"
    return _checked(m.run_id), kind, m.name, m.who, m.lasts_us


def encode_link(url: str) -> bytes:
    return pb.LinkReply(url=url).SerializeToString()


def decode_link(data: bytes) -> str:
    return pb.LinkReply.FromString(data).url


def decode_signal(data: bytes) -> tuple[bytes, SignalSent, str]:
    m = pb.MessageRequest.FromString(data)
    return _checked(m.run_id), SignalSent(m.name, m.value), m.key


def encode_sent(fresh: bool) -> bytes:
    return pb.SentReply(known=not fresh).SerializeToString()


def decode_sent(data: bytes) -> bool:
    return not pb.SentReply.FromString(data).known


def encode_signal_with_start(r: StartRequest, signal: SignalSent, key: str) -> bytes:
    start = pb.StartRequest.FromString(encode_start(r))
    return pb.SignalWithStartRequest(start=start, signal=signal.name, value=signal.value, key=key).SerializeToString()


def decode_signal_with_start(data: bytes, namespace: str) -> tuple[StartRequest, SignalSent, str]:
    m = pb.SignalWithStartRequest.FromString(data)
    return decode_start(m.start.SerializeToString(), namespace), SignalSent(m.signal, m.value), m.key


def encode_signalled(run_id: bytes, started: bool) -> bytes:
    return pb.SignalWithStartReply(run_id=run_id, started=started).SerializeToString()


def decode_signalled(data: bytes) -> tuple[bytes, bool]:
    m = pb.SignalWithStartReply.FromString(data)
    return m.run_id, m.started


def encode_emit(name: str, value: bytes, key: str) -> bytes:
    return pb.EmitRequest(name=name, value=value, key=key).SerializeToString()


def decode_emit(data: bytes) -> tuple[str, bytes, str]:
    m = pb.EmitRequest.FromString(data)
    return m.name, m.value, m.key


def encode_resumed(resumed: bool) -> bytes:
    return pb.ResumeReply(resumed=resumed).SerializeToString()


def decode_resumed(data: bytes) -> bool:
    return pb.ResumeReply.FromString(data).resumed


class Call(msgspec.Struct, gc=False):
    id: int
    method: str
    request: bytes
    timeout_ms: int = 0
    """In which the server must answer; 0: its own limit."""


class Reply(msgspec.Struct, gc=False):
    """`code` is empty when the call went well."""

    id: int
    reply: bytes
    code: str = ""
    error: str = ""


def encode_calls(calls: list[Call], given_up: list[int] | None = None) -> bytes:
    """`given_up`: ids of earlier calls whose answer is not waited for any more."""
    m = pb.Calls(given_up=given_up)
    add = m.calls.add
    for c in calls:
        add(id=c.id, method=c.method, request=c.request, timeout_ms=c.timeout_ms)
    return m.SerializeToString()


def decode_calls(data: bytes) -> tuple[list[Call], list[int]]:
    m = pb.Calls.FromString(data)
    return [Call(c.id, c.method, c.request, c.timeout_ms) for c in m.calls], list(m.given_up)


def encode_replies(replies: list[Reply]) -> bytes:
    m = pb.Replies()
    add = m.replies.add
    for r in replies:
        add(id=r.id, reply=r.reply, error_code=r.code, error=r.error)
    return m.SerializeToString()


def decode_replies(data: bytes) -> list[Reply]:
    return [Reply(r.id, r.reply, r.error_code, r.error) for r in pb.Replies.FromString(data).replies]


def methods() -> dict[str, list[str]]:
    """Every service and method the .proto files declare, by their full names."""
    found: dict[str, list[str]] = {}
    for file in (pb.DESCRIPTOR, worker_pb2.DESCRIPTOR):
        for service in file.services_by_name.values():
            found[service.full_name] = [method.name for method in service.methods]
    return found


def _checked(run_id: bytes) -> bytes:
    if len(run_id) != 16:
        raise InvalidInput("a run id has 16 bytes")
    return run_id
