"""The process that is connected to a Ray cluster on behalf of a worker.

It is a process of its own because Ray ends the process that is connected to it when its node or its cluster ends, because its calls block, and
because a call that hangs can only be ended with its process. One request at a time, in frames on stdin and stdout: a length in four bytes, then
MessagePack.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, BinaryIO, Final

import msgspec

from perdure.core.errors import Failure
from perdure.executors.port import JobFailed, JobLost
from perdure.executors.ray.attempt import AttemptActor
from perdure.executors.ray.records import (
    ANSWER,
    BEGAN,
    CLAIM,
    END,
    LOG,
    NAMESPACE,
    QUESTION,
    Records,
    encode_end,
)

REGISTER_S: Final = 10.0
"""How long the cluster may take to know the name of a new actor."""


CLAIM_S: Final = 20.0
"""How long a worker may take from its claim to the actor, before the job is taken for lost."""


class Connect(msgspec.Struct, tag="connect"):
    address: str
    working_dir: str


class Start(msgspec.Struct, tag="start"):
    name: str
    call: bytes
    """An AttemptCall."""
    options: dict[str, Any]


class Observe(msgspec.Struct, tag="observe"):
    names: list[str]


class CancelActor(msgspec.Struct, tag="cancel"):
    name: str


class Forget(msgspec.Struct, tag="forget"):
    name: str


class ReadQuestion(msgspec.Struct, tag="question"):
    name: str
    number: str


class AnswerQuestion(msgspec.Struct, tag="answer"):
    name: str
    number: str
    answer: bytes


Request = Connect | Start | Observe | CancelActor | Forget | ReadQuestion | AnswerQuestion


class Observed(msgspec.Struct, array_like=True):
    began_us: int = 0
    end: bytes = b""
    """Of records.JobEnd; empty: it has not ended."""
    output: list[tuple[str, bytes]] = []
    """(stream, bytes)"""
    questions: list[str] = []
    """Numbers of those that are not answered."""


class HelperReply(msgspec.Struct):
    error: str = ""
    is_refusal: bool = False
    observed: list[Observed] = []
    question: bytes = b""
    """Empty: it is gone."""


def read_frame(file: BinaryIO) -> bytes | None:
    head = file.read(4)
    return file.read(int.from_bytes(head, "big")) if len(head) == 4 else None


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class Cluster:
    """The requests, in a process that is connected."""

    def __init__(self, request: Connect) -> None:
        import ray

        self._ray: Any = ray
        ray.init(
            address=request.address,
            namespace=NAMESPACE,
            log_to_driver=False,
            runtime_env={"working_dir": request.working_dir} if request.working_dir else None,
        )
        self._records = Records()
        self._actor: Any = self._ray.remote(AttemptActor)

    def start(self, r: Start) -> HelperReply:
        """Claim the name, then make the actor. A worker that crashes in between leaves a claim without an actor: a lost job."""
        if not self._records.put(CLAIM + r.name, str(time.time_ns() // 1000).encode()):
            return HelperReply()
        try:
            self._actor.options(
                name=r.name, lifetime="detached", get_if_exists=True, max_restarts=0, **{"num_cpus": 1, **r.options}
            ).remote(r.name, r.call)
        except (ValueError, TypeError) as e:
            self._records.remove(CLAIM + r.name)
            return HelperReply(error=f"Ray refuses the options of the task: {e}", is_refusal=True)
        until = time.monotonic() + REGISTER_S
        while not self._is_known(r.name) and time.monotonic() < until:
            time.sleep(0.02)
        return HelperReply()

    def _is_known(self, name: str) -> bool:
        """A short task may have ended already."""
        return self._handle(name) is not None or self._records.get(END + name) is not None

    def _handle(self, name: str) -> Any:
        try:
            return self._ray.get_actor(name)
        except ValueError:
            return None

    def observe(self, names: list[str]) -> HelperReply:
        """Actors first and ends after them: one that ends in between has an end."""
        alive = {a["name"] for a in self._ray.util.list_named_actors(True) if a["namespace"] == NAMESPACE}
        ends, began = set(self._records.keys(END)), set(self._records.keys(BEGAN))
        output, questions = self._output(set(names)), self._questions()
        return HelperReply(
            observed=[
                Observed(
                    int(self._records.get(BEGAN + n) or 0) if BEGAN + n in began else 0,
                    self._end(n, n in alive, END + n in ends, BEGAN + n in began),
                    output.get(n, []),
                    questions.get(n, []),
                )
                for n in names
            ]
        )

    def _end(self, name: str, is_alive: bool, has_ended: bool, has_begun: bool) -> bytes:
        if not has_ended and (is_alive or not (has_begun or self._give_up(name))):
            return b""
        if not has_ended:
            self._records.put(END + name, encode_end(JobLost("its actor died: its node is gone, or it was killed")))
        return self._records.get(END + name) or b""

    def _give_up(self, name: str) -> bool:
        """Of a job without an actor that has not begun: the worker that claimed it may be about to make one. From then on it cannot begin."""
        claimed_us = int(self._records.get(CLAIM + name) or 0)
        return time.time_ns() // 1000 > claimed_us + CLAIM_S * 1e6 and self._records.put(BEGAN + name, b"0")

    def _output(self, names: set[str]) -> dict[str, list[tuple[str, bytes]]]:
        found: dict[str, list[tuple[str, bytes]]] = {}
        for key in self._records.keys(LOG):
            name, _, stream = key.removeprefix(LOG).split("/")
            if name in names:
                found.setdefault(name, []).append((stream, self._records.get(key) or b""))
                self._records.remove(key)
        return found

    def _questions(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key in self._records.keys(QUESTION):
            name, number = key.removeprefix(QUESTION).split("/")
            found.setdefault(name, []).append(number)
        return found

    def question(self, r: ReadQuestion) -> HelperReply:
        return HelperReply(question=self._records.get(f"{QUESTION}{r.name}/{r.number}") or b"")

    def answer_question(self, r: AnswerQuestion) -> HelperReply:
        """The answer first: a worker that crashes in between leaves the question, and the next one answers the same."""
        self._records.put(f"{ANSWER}{r.name}/{r.number}", r.answer)
        self._records.remove(f"{QUESTION}{r.name}/{r.number}")
        return HelperReply()

    def cancel(self, name: str) -> HelperReply:
        failure = Failure("task_cancelled", "it was cancelled")
        self._records.put(END + name, encode_end(JobFailed(failure)))
        self._kill(name)
        return HelperReply()

    def _kill(self, name: str) -> None:
        actor = self._handle(name)
        if actor is not None:
            self._ray.kill(actor)

    def forget(self, name: str) -> HelperReply:
        self._kill(name)
        several = [key for kind in (LOG, QUESTION, ANSWER) for key in self._records.keys(f"{kind}{name}/")]
        for key in (BEGAN + name, END + name, *several, CLAIM + name):
            self._records.remove(key)
        return HelperReply()

    def answer(self, request: Request) -> HelperReply:
        match request:
            case Start():
                return self.start(request)
            case Observe(names):
                return self.observe(names)
            case CancelActor(name):
                return self.cancel(name)
            case Forget(name):
                return self.forget(name)
            case ReadQuestion():
                return self.question(request)
            case AnswerQuestion():
                return self.answer_question(request)
            case _:
                return HelperReply()


def main() -> None:
    """Serve until stdin ends. What Ray prints goes to stderr."""
    # Otherwise Ray copies the whole project of a worker that `uv run` started, and makes each actor run `uv` anew.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    cluster: Cluster | None = None
    while (data := read_frame(sys.stdin.buffer)) is not None:
        request: Any = msgspec.msgpack.decode(data, type=Request)
        try:
            if cluster is None:
                cluster = Cluster(request)
            reply = cluster.answer(request)
        except Exception as e:
            reply = HelperReply(error=f"{type(e).__name__}: {e}")
        replies.write(frame(msgspec.msgpack.encode(reply)))
        replies.flush()


if __name__ == "__main__":
    main()
