"""What a client needs of the typed names of messages.py, approvals.py and updates.py.

Each of those sends through the client found by context; these are the forms that are given a client's backend.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from perdure.core.deadlines import timeout_s
from perdure.core.durations import Duration
from perdure.sdk.client.backend import Backend

T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How an approval is answered, beside its value."""

    by: str = ""
    comment: str = ""
    nth: int = 1


def within(timeout: Duration | None) -> float | None:
    """`timeout=` of a call, in seconds; None: that of the client."""
    return None if timeout is None else timeout_s("timeout", timeout)


class SignalKey(Protocol[T_contra]):
    """A `Signal`."""

    async def send_on(
        self, target: Backend, run_id: str, value: T_contra, *, key: str = "", within_s: float | None = None
    ) -> bool: ...


class PromiseKey(Protocol[T_contra]):
    """A `Promise`."""

    async def resolve_on(
        self, target: Backend, run_id: str, value: T_contra, *, within_s: float | None = None
    ) -> None: ...


class StateKey(Protocol[R_co]):
    """A `State`."""

    async def read_on(self, target: Backend, run_id: str, *, within_s: float | None = None) -> R_co: ...


class UpdateKey(Protocol[T_contra, R_co]):
    """An `Update`."""

    async def ask_on(
        self, target: Backend, run_id: str, value: T_contra, *, key: str | None = None, within_s: float | None = None
    ) -> R_co: ...


class ApprovalKey(Protocol[T_contra]):
    """An `Approval`."""

    async def approve_on(
        self,
        target: Backend,
        run_id: str,
        value: T_contra,
        decision: Decision,
        *,
        within_s: float | None = None,
    ) -> bool: ...

    async def reject_on(
        self, target: Backend, run_id: str, decision: Decision, *, within_s: float | None = None
    ) -> bool: ...


class EventKey(Protocol[T_contra]):
    """A `NamedEvent`."""

    async def emit_on(
        self, target: Backend, value: T_contra, *, key: str = "", within_s: float | None = None
    ) -> bool: ...
