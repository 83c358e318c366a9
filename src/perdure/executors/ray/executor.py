"""The worker's side of a Ray cluster. Ray itself is never imported here: helper.py has it, in a process of its own."""

from __future__ import annotations

import asyncio
import codecs
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from perdure.core.calls import OFFER
from perdure.core.jobs import job_task
from perdure.core.limits import PAYLOAD_INLINE_BYTES
from perdure.core.payloads import MARK, decode_tree, encode_tree, opened
from perdure.executors.port import Executor, ExecutorHost, Job, JobRefused, JobRunning, JobState, TaskCode, spec_of
from perdure.executors.ray.attempt import AttemptCall
from perdure.executors.ray.helper import (
    AnswerQuestion,
    CancelActor,
    Connect,
    Forget,
    HelperReply,
    Observe,
    Observed,
    ReadQuestion,
    Request,
    Start,
    frame,
)
from perdure.executors.ray.questions import Questions
from perdure.executors.ray.records import decode_end

CONNECT_S: Final = 60.0
CALL_S: Final = 20.0
EXIT_S: Final = 5.0
SPEC_KEYS: Final = ("function", "input", "num_cpus", "num_gpus", "resources", "memory", "runtime_env")
RAY_OPTIONS: Final = SPEC_KEYS[2:]
FUNCTION_ENTRY: Final = "perdure.executors.ray.attempt:call_function"


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    address: str = "auto"
    """Of the cluster: `auto` for the one on this machine or of RAY_ADDRESS, HOST:PORT, or ray://HOST:PORT."""
    working_dir: str = ""
    """A directory with the modules of tasks, which Ray copies to its nodes. Default: they have them."""
    call_s: float = CALL_S
    """The longest that the cluster may take to answer."""
    connect_s: float = CONNECT_S
    """The longest that connecting to it may take."""


class ClusterUnreachable(Exception):
    """The Ray cluster does not answer."""


class RayExecutor(Executor):
    Options = RayOptions
    name: ClassVar[str] = "ray"
    poll_s = 1.0
    takes_references = True

    options: RayOptions

    def __init__(self, options: RayOptions | None = None) -> None:
        super().__init__(options)
        self._helper: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._decoders: dict[tuple[str, str], Any] = {}
        self._questions: Questions | None = None

    async def open(self, host: ExecutorHost) -> None:
        await super().open(host)
        self._questions = Questions(host, self._question, self._answer)
        async with self._lock:
            await self._connected()

    async def close(self) -> None:
        if self._questions is not None:
            await self._questions.close()
        helper, self._helper = self._helper, None
        if helper is not None:
            assert helper.stdin is not None
            helper.stdin.close()
            try:
                async with asyncio.timeout(EXIT_S):
                    await helper.wait()
            except TimeoutError:
                helper.kill()
                await helper.wait()

    async def start(self, job: Job) -> None:
        code = await self._code(job)
        payloads = self.host.payloads
        inline_bytes = payloads.inline_bytes if payloads is not None else PAYLOAD_INLINE_BYTES
        call = AttemptCall(code.entry, code.module, code.qualname, job.assignment, inline_bytes)
        await self._ask(Start(job.name, msgspec.msgpack.encode(call), dict(code.options)))

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        reply = await self._ask(Observe([job.name for job in jobs]))
        return [self._state(job, found) for job, found in zip(jobs, reply.observed, strict=True)]

    async def cancel(self, job: Job) -> None:
        await self._ask(CancelActor(job.name))

    async def forget(self, job: Job) -> None:
        await self._ask(Forget(job.name))

    async def _question(self, name: str, number: str) -> bytes:
        return (await self._ask(ReadQuestion(name, number))).question

    async def _answer(self, name: str, number: str, answer: bytes) -> None:
        await self._ask(AnswerQuestion(name, number, answer))

    async def _code(self, job: Job) -> TaskCode:
        if job.assignment.name == job_task(self.name):
            return function_code(await self._spec(job))
        code = self.host.code(job.assignment.name)
        if code.module == "__main__":
            raise JobRefused(
                f"the task {job.assignment.name} is defined in the program itself, which Ray's nodes cannot import: "
                "define it in a module"
            )
        check_options(code.options)
        return code

    async def _spec(self, job: Job) -> dict[str, Any]:
        """What the spec says beside the input, which only the attempt loads."""
        a = job.assignment
        if not a.input.startswith(MARK):
            return job.spec
        spec = spec_by_reference(a.input)
        if spec is None and self.host.payloads is not None:
            spec = spec_of(msgspec.structs.replace(a, input=await self.host.payloads.resolve(a.input)))
        return spec or {}

    def _state(self, job: Job, found: Observed) -> JobState:
        for stream, data in found.output:
            self._write(job.name, stream, data)
        if found.questions and self._questions is not None:
            self._questions.answer(job.name, found.questions)
        if not found.end:
            return JobRunning(found.began_us)
        for stream in ("stdout", "stderr"):
            self._decoders.pop((job.name, stream), None)
        return decode_end(found.end)

    def _write(self, name: str, stream: str, data: bytes) -> None:
        decoder = self._decoders.setdefault((name, stream), codecs.getincrementaldecoder("utf-8")("replace"))
        text = decoder.decode(data)
        if text:
            self.host.write(name, stream, text)

    async def _ask(self, request: Request) -> HelperReply:
        async with self._lock:
            reply = await self._exchange(await self._connected(), request, self.options.call_s)
        if reply.is_refusal:
            raise JobRefused(reply.error)
        if reply.error:
            raise ClusterUnreachable(reply.error)
        return reply

    async def _connected(self) -> asyncio.subprocess.Process:
        if self._helper is None or self._helper.returncode is not None:
            helper = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "perdure.executors.ray.helper",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            self._helper = helper
            reply = await self._exchange(
                helper, Connect(self.options.address, self.options.working_dir), self.options.connect_s
            )
            if reply.error:
                await self._end_helper(helper)
                raise ClusterUnreachable(f"there is no Ray cluster at {self.options.address}: {reply.error}")
        return self._helper

    async def _exchange(self, helper: asyncio.subprocess.Process, request: Request, wait_s: float) -> HelperReply:
        """Without an answer the helper is of no use any more: its call hangs, or it has ended."""
        assert helper.stdin is not None and helper.stdout is not None
        try:
            async with asyncio.timeout(wait_s):
                helper.stdin.write(frame(msgspec.msgpack.encode(request)))
                await helper.stdin.drain()
                size = int.from_bytes(await helper.stdout.readexactly(4), "big")
                return msgspec.msgpack.decode(await helper.stdout.readexactly(size), type=HelperReply)
        except BaseException as e:
            await self._end_helper(helper)
            if isinstance(e, TimeoutError | OSError | asyncio.IncompleteReadError):
                raise ClusterUnreachable(f"the Ray cluster did not answer within {wait_s:g} s") from e
            raise

    async def _end_helper(self, helper: asyncio.subprocess.Process) -> None:
        self._helper = None
        if helper.returncode is None:
            helper.kill()
            await helper.wait()


def spec_by_reference(payload: bytes) -> dict[str, Any] | None:
    """The spec in an envelope, without its input. None: more of it than the input is stored."""
    found: Any = decode_tree(payload)
    if isinstance(found, dict) and opened(payload).body.startswith(OFFER):
        found = found["**"]
    if not isinstance(found, dict):
        return None
    spec: dict[str, Any] = {**found, "input": {}}
    return None if encode_tree(spec).startswith(MARK) else spec


def function_code(spec: dict[str, Any]) -> TaskCode:
    """Of perdure.job.ray, which names the function itself."""
    unknown = [key for key in spec if key not in SPEC_KEYS]
    if unknown:
        raise JobRefused(f"perdure.job.ray takes no {unknown[0]!r}; it takes {', '.join(SPEC_KEYS)}")
    module, colon, qualname = str(spec.get("function") or "").partition(":")
    if not (module and colon and qualname):
        raise JobRefused("perdure.job.ray needs a function: give module:name")
    if not isinstance(spec.get("input") or {}, dict):
        raise JobRefused("the input of perdure.job.ray must be an object with the function's arguments by name")
    options = {key: value for key, value in spec.items() if key in RAY_OPTIONS}
    return TaskCode(entry=FUNCTION_ENTRY, module=module, qualname=qualname, options=options)


def check_options(options: Any) -> None:
    for key in options:
        if key not in RAY_OPTIONS:
            raise JobRefused(f"the executor ray has no option {key!r}; it has {', '.join(RAY_OPTIONS)}")
