"""Every act of the table, through REST, gRPC and embedded: the same reply, the same error, the same audit line, the same permission.

The scenarios stand in tests/server/parity, one or more for each act. An act without a scenario fails, and so does one that a door lacks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from perdure import Client
from perdure.core import ids
from perdure.core.access import GRANTS, Role
from perdure.core.api import ACTS, approvals
from perdure.core.api.approvals import GetApproval
from perdure.core.api.messages import SendSignal
from perdure.core.api.runs import ListRuns, RunFilter
from perdure.core.api.schedules import PutSchedule, ScheduleRequest
from perdure.core.durations import datetime_of
from perdure.core.schedules import ScheduleSpec
from perdure.core.work import StartRequest
from perdure.engine.api.api import HANDLERS
from perdure.errors import InvalidInput, PerdureError
from perdure.server.rest.app import guarded_routes
from perdure.server.rest.guard import allow_of
from perdure.wire import acts as wire
from tests.fakes.failures import Failures
from tests.server.parity import (
    bulk_jobs,
    namespaces,
    payloads,
    people,
    retention,
    run_reads,
    runs,
    saved_views,
    schedules,
    services,
    statistics,
)
from tests.server.parity.routes import WITHOUT_ROUTE
from tests.server.parity.stage import Refusal, Rest, Scenario, Stage, said, stage

GROUPS: dict[str, tuple[Scenario, ...]] = {
    "runs": runs.SCENARIOS,
    "people": people.SCENARIOS,
    "schedules": schedules.SCENARIOS,
    "views": saved_views.SCENARIOS,
    "retention": retention.SCENARIOS,
    "bulk jobs": bulk_jobs.SCENARIOS,
    "definitions": namespaces.DEFINITIONS,
    "limits": namespaces.LIMITS,
    "admin": namespaces.ADMIN,
    "services": services.SCENARIOS,
    "payloads": payloads.SCENARIOS,
    "statistics": statistics.SCENARIOS,
    "reads for pages": run_reads.SCENARIOS,
}
SCENARIOS = [scenario for group in GROUPS.values() for scenario in group]
STREAMED = {"payload.find"}
"""REST answers the content itself."""


def test_every_act_has_a_scenario_and_stands_at_every_door() -> None:
    assert {s.act.name for s in SCENARIOS} == ACTS.keys()
    assert HANDLERS.keys() == ACTS.keys()
    routed = {act.name for route in guarded_routes() if (act := allow_of(route.dependant).act) is not None}
    assert routed == ACTS.keys() - WITHOUT_ROUTE
    assert {s.act.name for s in SCENARIOS if s.rest is None} == WITHOUT_ROUTE | STREAMED


def test_requests_are_the_same_after_their_way_over_the_wire() -> None:
    with Failures() as failures:
        for scenario in SCENARIOS:
            with failures.of(scenario.act.name):
                request = scenario.request("parity-0001")
                assert isinstance(request, scenario.act.request)
                name, data = wire.decode_call(wire.encode_call(scenario.act, request))
                assert wire.decode_request(wire.act_named(name), data) == request


@pytest.mark.parametrize("group", GROUPS)
async def test_an_act_answers_and_records_the_same_at_every_door(group: str, dsn: str) -> None:
    async with stage(dsn) as one:
        for scenario in GROUPS[group]:
            await _check_replies(one, scenario)


@pytest.mark.parametrize("group", GROUPS)
async def test_an_act_is_refused_the_same_at_every_door(group: str, dsn: str) -> None:
    async with stage(dsn) as one:
        before = await one.audit()
        for scenario in GROUPS[group]:
            refusal = scenario.refused(one.name())
            assert (refusal is None) == bool(scenario.without_refusal), scenario.act.name
            if refusal is not None:
                codes = await _codes(one, scenario, refusal)
                assert codes == dict.fromkeys(codes, refusal.code), scenario.act.name
        assert await one.audit() == before, "what is refused is not recorded"


async def test_an_answer_to_another_question_is_refused_at_every_door(dsn: str) -> None:
    async with stage(dsn) as one:
        run = await people.asked(one)
        for scenario, refusal in people.to_another_question(run):
            codes = await _codes(one, scenario, refusal)
            assert codes == dict.fromkeys(("grpc", "embedded", "rest"), refusal.code), refusal.rest.path
        found = await one.embedded(approvals.GET, GetApproval(run, "parity_ok"))
        assert (found.votes, found.assignees) == ([], ["ada", "ben"])
        assert not [line for line in await one.audit() if line.action.startswith("approval.")]


async def test_a_role_without_the_permission_is_refused_at_both_network_doors(dsn: str) -> None:
    async with stage(dsn) as one:
        for role in Role:
            key = one.keys[role]
            async with Client(one.address, api_key=key) as client:
                for scenario in SCENARIOS:
                    permission = scenario.act.permission
                    if permission is None or permission in GRANTS[role]:
                        continue
                    where = f"{scenario.act.name} as {role.value}"
                    with pytest.raises(PerdureError) as refused:
                        await client._backend.call(scenario.act, scenario.request("parity-0001"))
                    assert refused.value.code == "forbidden", where
                    if scenario.rest is not None:
                        answer = await _sent(one, scenario.rest("parity-0001"), key)
                        assert (answer["http"], answer["code"]) == (403, "forbidden"), where


@pytest.mark.parametrize("group", GROUPS)
async def test_a_text_that_postgres_cannot_store_is_refused_at_every_door(group: str, dsn: str) -> None:
    async with stage(dsn) as one:
        for scenario in GROUPS[group]:
            request = scenario.request("parity-0001")
            for bad in _spoilt(request):
                for door, call in (("grpc", one.client._backend.call), ("embedded", one.embedded)):
                    with pytest.raises(InvalidInput, match=r"NUL|Invalid enum value"):
                        await call(scenario.act, bad)
                        raise AssertionError(f"{scenario.act.name} was accepted over {door}: {bad}")
            rest = scenario.rest("parity-0001") if scenario.rest is not None else None
            for body, params in _spoilt((rest.body, rest.params)) if rest is not None else ():
                answer = await _sent(one, dataclasses.replace(rest, body=body, params=params))
                assert (answer["http"], answer["code"]) == (422, "invalid_input"), (scenario.act.name, body, params)


@pytest.mark.parametrize(
    "attributes", [b'{"a":"\\u0000"}', b'{"a\\u0000":1}', b'{"a":"\\ud800"}', b"[1]", b'{"a":{}}', b"no json"]
)
async def test_attributes_that_postgres_cannot_store_are_refused(attributes: bytes, dsn: str) -> None:
    start = StartRequest(workflow="parity_wait", version="", input=b"{}", attributes=attributes)
    every = ScheduleRequest(
        name="nightly", workflow="parity_wait", attributes=attributes, spec=ScheduleSpec(every_us=60_000_000)
    )
    async with stage(dsn) as one:
        for call in (one.client._backend.call, one.embedded):
            for act, request in (
                (ACTS["run.start"], start),
                (ACTS["run.list"], ListRuns(RunFilter(attributes=(attributes,)))),
                (ACTS["schedule.put"], PutSchedule(every)),
            ):
                with pytest.raises(InvalidInput, match=r"NUL|attributes"):
                    await call(act, request)


async def test_a_payload_may_contain_an_escaped_nul(dsn: str) -> None:
    """Payloads are stored as bytes. REST refuses one, because it reads and writes JSON as text."""
    async with stage(dsn) as one:
        run = await one.waiting()
        await one.client._backend.call(ACTS["run.signal"], SendSignal(run, said.name, b'"a\\u0000b"'))


def _spoilt(value: Any) -> Iterator[Any]:
    """The value with a NUL in one of its texts, for each of them."""
    if isinstance(value, str):
        yield f"{value}\0"
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            for bad in _spoilt(getattr(value, name)):
                yield msgspec.structs.replace(value, **{name: bad})
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: bad} for bad in _spoilt(part))
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from (type(value)([*value[:i], bad, *value[i + 1 :]]) for bad in _spoilt(part))
    elif isinstance(value, frozenset):
        yield from (value - {part} | {bad} for part in value for bad in _spoilt(part))


@dataclass
class Seen:
    """What an act did through one door, with `<subject>` and the like in place of what is different each time."""

    reply: Any
    lines: list[tuple[str, str, Any]]
    actors: set[str]
    shown: Any = None
    """What REST showed, or should have."""


@dataclass(frozen=True)
class Names:
    """What is different each time."""

    subject: str
    made: str
    are_shared: bool
    """All doors read the same: nothing is different."""


def _made(reply: Any, path: str) -> str:
    return str(_values(reply, path.split("."))) if path else ""


async def _check_replies(one: Stage, scenario: Scenario) -> None:
    """An act that changes something has something of its own to change at each door; one that reads, reads the same at all."""
    name = scenario.act.name
    changes = bool(scenario.act.audits)
    shared = "" if changes else await scenario.setup(one)
    grpc = await _through(one, scenario, one.client._backend.call, shared)
    embedded = await _through(one, scenario, one.embedded, shared)
    if name == "whoami":  # what it answers is the difference between the doors
        embedded.reply = grpc.reply
    assert grpc.reply == embedded.reply, name
    assert grpc.lines == embedded.lines, name
    assert {action for action, _, _ in grpc.lines} <= set(scenario.act.audits), name
    assert bool(grpc.lines) == changes, f"{name} is recorded when it changes something, and only then"
    if changes:
        assert embedded.actors == {"embedded"} and grpc.actors == {_actor(one)}, name
    if scenario.rest is not None:
        rest = await _through_rest(one, scenario, shared)
        assert rest.lines == grpc.lines and rest.actors == grpc.actors, name
        _check_shown(grpc.shown, rest.shown, name)


async def _through(one: Stage, scenario: Scenario, call: Callable[..., Awaitable[Any]], shared: str) -> Seen:
    subject = shared or await scenario.setup(one)
    before = len(await one.audit())
    reply = await call(scenario.act, scenario.request(subject))
    shown = _projected(reply, scenario) if scenario.rest is not None else None
    names = Names(subject, _made(reply, scenario.made.partition("=")[0]), bool(shared))
    seen = await _recorded(one, names, before)
    seen.reply, seen.shown = _mask(_plain(reply), one, names), _mask(shown, one, names)
    return seen


async def _through_rest(one: Stage, scenario: Scenario, shared: str) -> Seen:
    assert scenario.rest is not None
    subject = shared or await scenario.setup(one)
    before = len(await one.audit())
    answer = await _sent(one, scenario.rest(subject))
    assert answer["http"] < 300, f"{scenario.act.name}: {answer}"
    names = Names(subject, _made(answer, scenario.made.partition("=")[2]), bool(shared))
    seen = await _recorded(one, names, before)
    seen.shown = _mask(answer, one, names)
    return seen


async def _recorded(one: Stage, names: Names, before: int) -> Seen:
    lines = (await one.audit())[before:]
    shapes = [
        (line.action, line.target, {k: v for k, v in (line.detail or {}).items() if k not in ("via", "id", "link")})
        for line in lines
    ]
    return Seen(None, _mask(shapes, one, names), {line.actor for line in lines})


async def _sent(one: Stage, rest: Rest, key: str = "") -> dict[str, Any]:
    """The answer's JSON, with its status as `http`."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = await one.live.http.request(
        rest.method, rest.path, json=rest.body, params=rest.params or None, headers=headers
    )
    found = answer.json() if answer.content else {}
    return {**found, "http": answer.status_code}


async def _codes(one: Stage, scenario: Scenario, refusal: Refusal) -> dict[str, str]:
    codes = {}
    for door, call in (("grpc", one.client._backend.call), ("embedded", one.embedded)):
        try:
            await call(scenario.act, refusal.request)
            codes[door] = ""
        except PerdureError as error:
            codes[door] = error.code
    if scenario.rest is not None:
        codes["rest"] = (await _sent(one, refusal.rest)).get("code", "")
    return codes


# What is compared.


def _plain(value: Any, name: str = "") -> Any:
    """A reply as JSON has it: moments and ids as text, payloads as what they hold."""
    if isinstance(value, msgspec.Struct):
        return {f: _plain(getattr(value, f), f) for f in value.__struct_fields__ if f != "now_us"}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, name) for v in value]
    if isinstance(value, frozenset):
        return sorted(str(_plain(v)) for v in value)
    if isinstance(value, bytes):
        return ids.text(value) if len(value) == 16 else _payload(value)
    if isinstance(value, int) and name.endswith("_us") and value:
        return datetime_of(value).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value


def _payload(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data) if data else None
    except msgspec.DecodeError:
        return data.hex()


_SECRET = re.compile(r"\b(pd|pdh|whsec)_[\w+/=-]+")
_MASKS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"), "<time>"),
    (re.compile(r"/links/[\w.~-]+"), "/links/<token>"),
    (re.compile(r"flow-[0-9a-f]+"), "<version>"),
)


def _mask(value: Any, one: Stage, names: Names) -> Any:
    if names.are_shared:
        return value
    if isinstance(value, dict):
        return {k: "<number>" if k == "id" and isinstance(v, int) else _mask(v, one, names) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(v, one, names) for v in value]
    if not isinstance(value, str):
        return value
    text = _SECRET.sub("<secret>", value)
    for name, mask in (
        (names.subject, "<subject>"),
        (names.made, "<made>"),
        (_actor(one), "<actor>"),
        ("embedded", "<actor>"),
    ):
        text = text.replace(name, mask) if name else text
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text


def _actor(one: Stage) -> str:
    """Of the key that both network doors get."""
    return f"key:{one.keys[Role.ADMIN][3:15]}"


def _projected(reply: Any, scenario: Scenario) -> dict[str, Any]:
    """What REST is to show of a reply: path in its JSON -> value, `[]` for each item of a list."""
    found = dict(scenario.shows(reply))
    for spec in scenario.fields.split():
        path, _, where = spec.partition("=")
        found[where or path] = _values(reply, path.split("."))
    return found


def _values(value: Any, path: list[str]) -> Any:
    """Of a reply or of JSON. A path through something that is None ends with None."""
    for at, part in enumerate(path):
        name = part.removesuffix("[]")
        if value is None:
            return None
        if name.isdigit():
            value = value[int(name)]
        else:
            value = value.get(name) if isinstance(value, dict) else getattr(value, name)
        if part.endswith("[]"):
            return [_values(item, path[at + 1 :]) for item in value]
    return _plain(value, path[-1])


def _check_shown(wanted: dict[str, Any], answer: dict[str, Any], name: str) -> None:
    for where, value in wanted.items():
        found = _values(answer, where.split("."))
        if where == "next":  # REST encodes the position
            assert (value is None) == (found is None), f"{name}: {where}"
        else:
            _check_within(value, found, f"{name}: {where}")


def _check_within(wanted: Any, found: Any, where: str) -> None:
    """Where a dict is wanted, more may be there. Nothing may be missing from a list."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            _check_within(value, found.get(key), f"{where}.{key}")
    elif isinstance(wanted, list) and isinstance(found, list):
        assert len(wanted) == len(found), where
        for n, (one, other) in enumerate(zip(wanted, found, strict=True)):
            _check_within(one, other, f"{where}[{n}]")
    else:
        assert (wanted or None) == (found or None), where
