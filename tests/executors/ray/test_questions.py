"""What attempts ask the server: both sides, with a store of records in memory in place of a cluster's."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
import pytest

from perdure.core.api.act import Act
from perdure.core.api.payloads import ANNOUNCE, FIND, GET, PUT, FindPayload, GetPayload, PayloadPart, PayloadStored
from perdure.core.errors import PayloadMissing, PayloadTooLarge, Unavailable
from perdure.core.payload_port import PayloadPlaces
from perdure.core.payloads import MARK
from perdure.executors.ray import payloads as payloads_
from perdure.executors.ray.payloads import AskedPayloads
from perdure.executors.ray.questions import ANSWERED_MAX, PayloadAnswer, Questions, encode_question
from perdure.executors.ray.records import ANSWER, QUESTION
from perdure.payloads.transfer import PayloadTransfer
from tests.fakes.waiting import holds, until

JOB = "perdure-job-1"
GET_REQUEST = GetPayload(bytes(32), 0, 10)
VALUE = msgspec.json.encode({"note": "small", "rows": ["r" * 100] * 30_000})


class MemoryRecords:
    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> bool:
        return self.found.setdefault(key, value) is value

    def get(self, key: str) -> bytes | None:
        return self.found.get(key)

    def remove(self, key: str) -> None:
        self.found.pop(key, None)

    def numbers(self) -> list[str]:
        return [key.rpartition("/")[2] for key in sorted(self.found) if key.startswith(QUESTION)]


class Server:
    """A host whose server keeps content in memory."""

    payloads = None

    def __init__(self) -> None:
        self.content: dict[bytes, bytearray] = {}
        self.away = 0
        """Calls that get no answer from now on."""
        self.largest = 0
        self.open = asyncio.Event()
        self.open.set()
        self.asked = 0

    async def call(self, act: Act[Any, Any], request: Any) -> Any:
        self.asked += 1
        await self.open.wait()
        if self.away:
            self.away -= 1
            raise Unavailable("the server is away")
        if act is ANNOUNCE:
            if request.items[0].size > 5_000_000:
                raise PayloadTooLarge("over the limit")
            return PayloadPlaces([""], [False])
        if act is PUT:
            self.largest = max(self.largest, len(request.data))
            kept = self.content.setdefault(request.sha256, bytearray())
            kept[request.offset :] = request.data
            return PayloadStored(len(kept) == request.size)
        if request.sha256 not in self.content:
            raise PayloadMissing("it is gone")
        return PayloadPart(bytes(self.content[request.sha256][request.offset : request.offset + request.size]))

    def changed(self, name: str) -> None: ...


class Cluster:
    """The records, and a worker that looks at them."""

    def __init__(self, server: Server) -> None:
        self.records, self.server = MemoryRecords(), server
        self.questions = self.worker()
        port: Any = AskedPayloads(self.records, JOB)  # type: ignore[arg-type]
        self.carrier = PayloadTransfer(port)

    def worker(self) -> Questions:
        return Questions(self.server, self._read, self._answer)  # type: ignore[arg-type]

    async def _read(self, job: str, number: str) -> bytes:
        return self.records.get(f"{QUESTION}{job}/{number}") or b""

    async def _answer(self, job: str, number: str, answer: bytes) -> None:
        self.records.put(f"{ANSWER}{job}/{number}", answer)
        self.records.remove(f"{QUESTION}{job}/{number}")

    async def served(self, work: Any) -> Any:
        """With a worker that polls."""
        asking = asyncio.ensure_future(work)
        while not asking.done():
            self.questions.answer(JOB, self.records.numbers())
            await asyncio.wait({asking}, timeout=0.005)
        return asking.result()


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(payloads_, "ANSWER_PAUSE_S", 0.001)
    made = Cluster(Server())
    yield made
    await made.questions.close()


async def test_a_value_goes_to_the_store_and_back_in_parts(cluster: Cluster) -> None:
    short = await cluster.served(cluster.carrier.offload(VALUE))
    assert short.startswith(MARK) and len(short) < 1_000
    assert cluster.server.largest <= 1024 * 1024 < len(VALUE)
    assert await cluster.served(cluster.carrier.resolve(short)) == VALUE
    assert not cluster.records.found, "questions and answers are removed"


async def test_a_server_that_is_away_is_asked_again(cluster: Cluster) -> None:
    cluster.server.away = 3
    short = await cluster.served(cluster.carrier.offload(VALUE))
    assert await cluster.served(cluster.carrier.resolve(short)) == VALUE


async def test_a_worker_that_crashed_leaves_its_questions_to_the_next(cluster: Cluster) -> None:
    """Also one that asked the server and did not write the answer."""
    cluster.server.open.clear()
    asking = asyncio.ensure_future(cluster.carrier.offload(VALUE))
    await until(cluster.records.numbers)
    cluster.questions.answer(JOB, cluster.records.numbers())
    await until(lambda: cluster.server.asked)
    await cluster.questions.close()
    cluster.server.open.set()
    cluster.questions = cluster.worker()
    short = await cluster.served(asking)
    assert await cluster.served(cluster.carrier.resolve(short)) == VALUE


async def test_errors_of_the_server_are_raised_as_they_were(cluster: Cluster) -> None:
    with pytest.raises(PayloadTooLarge, match="over the limit"):
        await cluster.served(cluster.carrier.offload(msgspec.json.encode("x" * 6_000_000)))
    short = await cluster.served(cluster.carrier.offload(VALUE))
    cluster.server.content.clear()
    with pytest.raises(PayloadMissing, match="it is gone"):
        await cluster.served(cluster.carrier.resolve(short))


async def test_nothing_but_payloads_can_be_asked_for(cluster: Cluster) -> None:
    cluster.records.put(f"{QUESTION}{JOB}/1", encode_question(FIND, FindPayload(os.urandom(32))))
    cluster.questions.answer(JOB, ["1"])
    data = await until(lambda: cluster.records.get(f"{ANSWER}{JOB}/1"))
    answer = msgspec.msgpack.decode(data, type=PayloadAnswer)
    assert answer.failure is not None and answer.failure.code == "invalid_input"
    assert not cluster.server.asked


async def test_few_are_answered_at_a_time_and_each_once(cluster: Cluster) -> None:
    cluster.server.open.clear()
    for n in range(3 * ANSWERED_MAX):
        cluster.records.put(f"{QUESTION}{JOB}/{n:06}", encode_question(GET, GET_REQUEST))
    cluster.questions.answer(JOB, cluster.records.numbers())
    cluster.questions.answer(JOB, cluster.records.numbers())
    await until(lambda: cluster.server.asked == ANSWERED_MAX)
    await holds(lambda: cluster.server.asked == ANSWERED_MAX, 0.05)
    cluster.server.open.set()

    def all_answered() -> bool:
        cluster.questions.answer(JOB, cluster.records.numbers())
        return not cluster.records.numbers()

    await until(all_answered)
    assert cluster.server.asked == 3 * ANSWERED_MAX
