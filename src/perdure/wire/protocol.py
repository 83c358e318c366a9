"""The worker protocol in terms of core/work.py: what travels up and down the stream, as objects and as bytes.

proto/perdure/v1/worker.proto is the letter of it. Large activations and decisions are cut into parts (parts.py), and put together again
on the other side, so that no message is over MESSAGE_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from perdure.core.commands import Command
from perdure.core.declared import KEY
from perdure.core.errors import Failure, InvalidInput
from perdure.core.limits import WAITING_NAMES_MAX
from perdure.core.retry import End, TaskOptions
from perdure.core.work import (
    Activation,
    Assignment,
    AttemptToken,
    Beat,
    Decided,
    LogChunk,
    LogLine,
    QueryAnswer,
    QueryCall,
    Report,
    ServedCode,
)
from perdure.wire import secret_places
from perdure.wire.codec import decode_commands, decode_recorded, encode_commands, encode_recorded
from perdure.wire.pb import worker_pb2 as pb

PROTOCOL: Final = 1
PROTOCOL_OLDEST: Final = 1
"""Of a worker that a server serves: when PROTOCOL rises, workers of the version before go on until they are upgraded."""
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one message on the stream; both sides refuse larger ones."""
PART_BYTES: Final = 1024 * 1024
"""What is ready is cut into messages of about this size."""
SERVED_MAX: Final = 10_000
"""Tasks, and workflows, that one worker may serve."""
TASK_SCHEMAS_BYTES_MAX: Final = 256 * 1024
"""Bytes of the schemas of a worker's tasks, over all of them. They are for editors: what is over that is left out."""

CONNECT: Final = "/perdure.v1.Workers/Connect"
BEAT: Final = "/perdure.v1.Workers/Beat"
CHANNEL_OPTIONS: Final = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

T = TypeVar("T")

Token = AttemptToken


class Hello(msgspec.Struct):
    worker_id: bytes
    name: str
    host: str
    pid: int
    sdk: str
    slots: int
    tasks: list[tuple[str, str]]
    """(queue, task)"""
    workflows: dict[str, ServedCode]
    """By name."""
    running: list[Token]
    protocol: int = PROTOCOL
    signatures: dict[str, bytes] = {}
    """Task -> JSON Schema of its call."""
    build_id: str = ""


class Welcome(msgspec.Struct):
    server: str
    clock_us: int
    alive_every_ms: int
    message_bytes_max: int = MESSAGE_BYTES_MAX
    protocol: int = PROTOCOL


class Up(msgspec.Struct):
    """From a worker."""

    hello: Hello | None = None
    reports: list[Report] = []
    reports_number: int = 0
    decisions: list[tuple[int, Decided, bool]] = []
    """(number of the activation it answers, decision, more of it follows)"""
    beats: list[Beat] = []
    logs: list[LogChunk] = []
    draining: bool = False
    alive: bool = False
    deferred: list[Token] = []
    """Attempts that wait for a job outside and hold no slot."""
    answers: list[tuple[int, QueryAnswer]] = []
    """(number of the query, answer)"""


class Down(msgspec.Struct):
    """To a worker."""

    welcome: Welcome | None = None
    tasks: list[Assignment] = []
    activations: list[tuple[int, Activation, bool]] = []
    """(number, activation, more of it follows)"""
    cancels: list[Token] = []
    forgets: list[bytes] = []
    acked: int = 0
    going_away: bool = False
    clock_us: int = 0
    unreadable: list[tuple[int, bytes, str]] = []
    """(number, run, why) of activations with records that this worker does not understand."""
    queries: list[tuple[int, QueryCall]] = []
    """(number, query)"""


_ENDS: Final = {
    End.SUCCESS: pb.END_SUCCESS,
    End.ERROR: pb.END_ERROR,
    End.FINAL_ERROR: pb.END_FINAL_ERROR,
    End.CANCELLED: pb.END_CANCELLED,
    End.RETURNED: pb.END_RETURNED,
    End.JOB_LOST: pb.END_JOB_LOST,
}
_END_OF: Final = {number: end for end, number in _ENDS.items()}


def encode_up(up: Up) -> bytes:
    m = pb.FromWorker(reports_number=up.reports_number, draining=up.draining, alive=up.alive)
    if up.hello is not None:
        m.hello.CopyFrom(_hello(up.hello))
    add = m.reports.add
    for r in up.reports:
        report = add(
            run_id=r.run_id,
            seq=r.seq,
            attempt=r.attempt,
            end=_ENDS[r.end],
            value=r.value,
            started_us=r.started_us,
            finished_us=r.finished_us,
            epoch=r.epoch,
            cpu_us=r.cpu_us,
        )
        if r.failure is not None:
            report.failure.CopyFrom(_failure(r.failure))
    for number, d, more in up.decisions:
        decision = m.decisions.add(run_id=d.run_id, number=number, operations=d.operations, more=more)
        if d.commands:
            decision.commands = encode_commands(d.commands)
        if d.stuck is not None:
            decision.stuck.CopyFrom(_failure(d.stuck))
        if d.waiting:
            decision.waiting.extend(d.waiting)
        if d.full:
            decision.full.extend(d.full)
    for b in up.beats:
        m.beats.add(run_id=b.run_id, seq=b.seq, attempt=b.attempt, details=b.details, blocked=b.blocked)
    for chunk in up.logs:
        made = m.logs.add(run_id=chunk.run_id, seq=chunk.seq, attempt=chunk.attempt, number=chunk.n)
        for line in chunk.lines:
            made.lines.add(at_us=line.at_us, stream=line.stream, level=line.level, text=line.text)
    for run_id, seq, attempt in up.deferred:
        m.deferred.add(run_id=run_id, seq=seq, attempt=attempt)
    for number, answer in up.answers:
        failure = _failure(answer.failure) if answer.failure is not None else None
        m.answers.add(number=number, value=answer.value, failure=failure)
    return m.SerializeToString()


def decode_up(data: bytes) -> Up:
    m = pb.FromWorker.FromString(data)
    return Up(
        hello=_hello_of(m.hello) if m.HasField("hello") else None,
        reports=[
            Report(
                r.run_id,
                r.seq,
                r.attempt,
                _end(r.end),
                r.value,
                _reason(r),
                r.started_us,
                r.finished_us,
                r.epoch,
                r.cpu_us if r.HasField("cpu_us") else None,
            )
            for r in m.reports
        ],
        reports_number=m.reports_number,
        decisions=[
            (
                d.number,
                _decided(d),
                d.more,
            )
            for d in m.decisions
        ],
        beats=_beats(m.beats),
        logs=[
            LogChunk(
                c.run_id, c.seq, c.attempt, c.number, [LogLine(x.at_us, x.stream, x.level, x.text) for x in c.lines]
            )
            for c in m.logs
        ],
        draining=m.draining,
        alive=m.alive,
        deferred=[(t.run_id, t.seq, t.attempt) for t in m.deferred],
        answers=[
            (a.number, QueryAnswer(a.value, _failure_of(a.failure) if a.HasField("failure") else None))
            for a in m.answers
        ],
    )


def _decided(d: pb.Decision) -> Decided:
    """Commands of a newer worker that this server cannot read concern their run, and not the stream with all other work of the worker."""
    stuck = _failure_of(d.stuck) if d.HasField("stuck") else None
    commands: list[Command] = []
    try:
        commands = decode_commands(d.commands) if d.commands else []
    except (msgspec.DecodeError, InvalidInput) as e:
        stuck = Failure("unreadable_decision", f"this server cannot read what the run's code decided, upgrade it: {e}")
    waiting = list(d.waiting[:WAITING_NAMES_MAX]) if d.waiting else []
    full = list(d.full[:WAITING_NAMES_MAX]) if d.full else []
    return Decided(d.run_id, commands, stuck, d.operations, d.number == 0, waiting, full)


def _reason(r: pb.Report) -> Failure | None:
    """The failure of a failed attempt; a default where the worker sent none."""
    if r.HasField("failure"):
        return _failure_of(r.failure)
    if r.end not in _END_OF:
        return Failure(
            "task_failed", f"the worker reported an end {r.end}, which this server does not know: upgrade it"
        )
    return _NO_REASON if r.end in (pb.END_ERROR, pb.END_FINAL_ERROR, pb.END_JOB_LOST) else None


_NO_REASON: Final = Failure("task_failed", "the worker reported a failure and gave no reason")


def _end(number: pb.End.ValueType) -> End:
    """An end of a newer worker counts as a failure: refused, the worker would report it for ever."""
    return _END_OF.get(number, End.ERROR)


def _hello(h: Hello) -> pb.Hello:
    return pb.Hello(
        protocol=h.protocol,
        worker_id=h.worker_id,
        name=h.name,
        host=h.host,
        pid=h.pid,
        sdk=h.sdk,
        slots=h.slots,
        tasks=[pb.Served(queue=queue, name=name) for queue, name in h.tasks],
        workflows=[
            pb.Workflow(name=name, **{field: getattr(c, field) for field in _CODE}) for name, c in h.workflows.items()
        ],
        running=[pb.Token(run_id=r, seq=s, attempt=a) for r, s, a in h.running],
        signatures=h.signatures,
        build_id=h.build_id,
    )


_CODE: Final = ("version", "hash", "pinned", "control", "parameters", "hooks", "subscriptions", "messages")
"""Fields of ServedCode that the message has under the same names."""


def _hello_of(m: pb.Hello) -> Hello:
    return Hello(
        m.worker_id,
        m.name,
        m.host,
        m.pid,
        m.sdk,
        m.slots,
        [(t.queue, t.name) for t in m.tasks],
        {w.name: ServedCode(build_id=m.build_id, **{field: getattr(w, field) for field in _CODE}) for w in m.workflows},
        [(t.run_id, t.seq, t.attempt) for t in m.running],
        m.protocol,
        dict(m.signatures),
        m.build_id,
    )


def bounded_signatures(signatures: Mapping[str, Any]) -> dict[str, bytes]:
    """As they travel: declared options first, which decide something, then schemas in the order of their names, as many as fit."""
    found = {name: msgspec.json.encode({KEY: s[KEY]}) for name, s in signatures.items() if KEY in s}
    room = TASK_SCHEMAS_BYTES_MAX - sum(map(len, found.values()))
    for name, schema in sorted(signatures.items()):
        data = msgspec.json.encode(schema)
        more = len(data) - len(found.get(name, b""))
        if more <= room:
            found[name] = data
            room -= more
    return found


def _failure(f: Failure) -> pb.Failure:
    return pb.Failure(
        code=f.code, message=f.message, type=f.type, traceback=f.traceback, retry_after_us=f.retry_after_us
    )


def _failure_of(m: pb.Failure) -> Failure:
    return Failure(m.code, m.message, m.type, m.traceback, m.retry_after_us)


def encode_down(down: Down) -> bytes:
    m = pb.ToWorker(acked=down.acked, going_away=down.going_away, clock_us=down.clock_us)
    if down.welcome is not None:
        w = down.welcome
        m.welcome.CopyFrom(
            pb.Welcome(
                protocol=w.protocol,
                server=w.server,
                clock_us=w.clock_us,
                alive_every_ms=w.alive_every_ms,
                message_bytes_max=w.message_bytes_max,
            )
        )
    add = m.tasks.add
    for a in down.tasks:
        o = a.options
        task = add(
            run_id=a.run_id,
            seq=a.seq,
            attempt=a.attempt,
            epoch=a.epoch,
            name=a.name,
            input=a.input,
            timeout_us=o.timeout_us,
            heartbeat_us=o.heartbeat_us,
            at_most_once=o.at_most_once,
            trace=a.trace,
            queue=a.queue,
        )
        if a.job:
            task.job, task.executor = a.job, o.executor
        if o.never or o.on:
            task.never.extend(o.never)
            task.on.extend(o.on)
        if o.secrets:
            secret_places.put(task, o.secrets)
    for number, act, more in down.activations:
        events = encode_recorded(act.events)
        m.activations.add(
            run_id=act.run_id, workflow=act.workflow, number=number, replay=act.replay, events=events, more=more
        )
    for run_id, seq, attempt in down.cancels:
        m.cancels.add(run_id=run_id, seq=seq, attempt=attempt)
    m.forgets.extend(down.forgets)
    for number, q in down.queries:
        m.queries.add(number=number, **msgspec.structs.asdict(q))
    return m.SerializeToString()


def decode_down(data: bytes) -> Down:
    m = pb.ToWorker.FromString(data)
    w = m.welcome
    unreadable: list[tuple[int, bytes, str]] = []
    return Down(
        welcome=Welcome(w.server, w.clock_us, w.alive_every_ms, w.message_bytes_max, w.protocol)
        if m.HasField("welcome")
        else None,
        tasks=[
            Assignment(t.run_id, t.seq, t.attempt, t.epoch, t.name, t.input, _options(t), 0, t.trace, t.queue, t.job)
            for t in m.tasks
        ],
        activations=[one for a in m.activations if (one := _activation(a, unreadable)) is not None],
        cancels=[(t.run_id, t.seq, t.attempt) for t in m.cancels],
        forgets=list(m.forgets),
        acked=m.acked,
        going_away=m.going_away,
        clock_us=m.clock_us,
        unreadable=unreadable,
        queries=[(q.number, _query(q)) for q in m.queries],
    )


def _query(q: pb.QueryCall) -> QueryCall:
    return QueryCall(
        run_id=q.run_id,
        workflow=q.workflow,
        name=q.name,
        arguments=q.arguments,
        key=q.key,
        status=q.status,
        input=q.input,
        states=dict(q.states),
    )


def _activation(a: pb.Activation, unreadable: list[tuple[int, bytes, str]]) -> tuple[int, Activation, bool] | None:
    try:
        events = decode_recorded(a.events)
    except (msgspec.DecodeError, InvalidInput) as e:
        unreadable.append((a.number, a.run_id, f"this worker cannot read the run's history, upgrade it: {e}"))
        return None
    return a.number, Activation(a.run_id, a.workflow, events, a.replay), a.more


def _options(t: pb.Task) -> TaskOptions:
    """As much of the options as a worker needs; most tasks have none."""
    if not (t.timeout_us or t.heartbeat_us or t.at_most_once or t.never or t.on or t.executor or t.secrets):
        return _NO_OPTIONS
    return TaskOptions(
        timeout_us=t.timeout_us,
        heartbeat_us=t.heartbeat_us,
        at_most_once=t.at_most_once,
        never=tuple(t.never),
        on=tuple(t.on),
        executor=t.executor,
        secrets=secret_places.read(t),
    )


_NO_OPTIONS: Final = TaskOptions()


def encode_beats(worker_id: bytes, beats: list[Beat]) -> bytes:
    m = pb.BeatRequest(worker_id=worker_id)
    for b in beats:
        m.beats.add(run_id=b.run_id, seq=b.seq, attempt=b.attempt, details=b.details, blocked=b.blocked)
    return m.SerializeToString()


def decode_beats(data: bytes) -> tuple[bytes, list[Beat]]:
    m = pb.BeatRequest.FromString(data)
    return m.worker_id, _beats(m.beats)


def _beats(found: object) -> list[Beat]:
    return [Beat(b.run_id, b.seq, b.attempt, b.details, b.blocked) for b in found]  # type: ignore[attr-defined]


def encode_beat_reply(unknown: bool) -> bytes:
    return pb.BeatReply(unknown=unknown).SerializeToString()


def decode_beat_reply(data: bytes) -> bool:
    return pb.BeatReply.FromString(data).unknown
