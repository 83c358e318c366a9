"""Work that leaves user data of every kind in the database. `text` says which: `at("log")` is the canary of logs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure import Approval, NamedEvent, Promise, Retry, Signal, State, Update, attempt, task, workflow

LARGE = 400_000
"""Characters: more than a payload may have inline."""


def at(kind: str, seed: str) -> str:
    """Text that stands for user data of a kind. Its parts are digits, so that it is no word by chance."""
    return f"canary-{kind}-{seed}"


@dataclass
class Terms:
    note: str


heard: Signal[str] = Signal("canary_heard", str)
told: Promise[str] = Promise("canary_told", str)
kept: State[str] = State("canary_kept", "", str)
change: Update[str, str] = Update("canary_change", str, str)
news: NamedEvent[str] = NamedEvent("canary.news", str)
decided = Approval("canary_decided", Terms, title="Decide it?")
never_told: Promise[str] = Promise("canary_never", str)


@task
def canary_task(seed: str, text: str) -> str:
    print(at("log", seed))
    return at("result", seed)


@task
def canary_large(seed: str) -> str:
    return (at("large", seed) + " ") * (LARGE // 40)


@task(retry=Retry(attempts=1))
def canary_broken(seed: str) -> None:
    raise ValueError(at("task_error", seed))


@task(retry=Retry(attempts=5, delay="1h", max_delay="1h"))
def canary_retried(seed: str) -> None:
    raise ValueError(at("attempt_error", seed))


@task(queue="canary-nobody")
def canary_queued(text: str) -> str:
    return "ran"


@task
async def canary_beats(seed: str) -> None:
    attempt().heartbeat(at("details", seed))
    await asyncio.Event().wait()


@workflow
async def canary_child(text: str) -> str:
    return text


@workflow
async def canary_failing(seed: str, text: str) -> None:
    await canary_broken(seed)


@workflow
async def canary_waiting(seed: str, text: str) -> str:
    """All kinds that a run has while it is active; it never ends."""
    kept.set(at("state", seed))
    await canary_task(seed, at("task_input", seed))
    await canary_large(seed)
    await canary_child(at("child", seed))
    pending = [
        asyncio.ensure_future(canary_retried(seed)),
        asyncio.ensure_future(canary_queued(at("queued_input", seed))),
        asyncio.ensure_future(canary_beats(seed)),
        asyncio.ensure_future(
            Approval("canary_open", Terms, assignees=["ada", "ben"], quorum=2, title=at("title", seed)).wait(
                details={"why": at("form", seed)}
            )
        ),
    ]
    await heard.next()
    await told.wait()
    await decided.wait(details={"why": at("decided_form", seed)})
    async for asked in change:
        asked.reply(at("update_reply", seed))
        break
    await news.wait("true")
    pending.append(asyncio.ensure_future(never_told.wait()))
    kept.set(at("late_state", seed))
    await asyncio.gather(*pending)
    return at("never", seed)


@workflow
async def canary_deferred(seed: str, text: str) -> None: ...


@workflow
async def canary_scheduled(text: str) -> None: ...


@task
def canary_step(text: str, n: int) -> str:
    return f"{text} {n}"


@workflow
async def canary_steps(text: str, steps: int) -> str:
    """A run of a load: it reads back what it has stored before."""
    for n in range(steps):
        kept.set(f"{text} {n}")
        assert await canary_step(text, n) == f"{text} {n}"
    return text


@workflow
async def canary_either(text: str) -> str:
    """Ends with a signal or with its task, whichever comes first."""
    done, _ = await asyncio.wait(
        [asyncio.ensure_future(heard.next()), asyncio.ensure_future(canary_queued(text))],
        return_when=asyncio.FIRST_COMPLETED,
    )
    return done.pop().result()
