"""What a client needs of the typed names of messages.py, approvals.py and updates.py.

Each of those sends through the client found by context; these are the forms that are given a client's backend.
"""

from __future__ import annotations

from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from perdure.core.deadlines import timeout_s
from perdure.core.durations import Duration
from perdure.core.errors import InvalidInput
from perdure.sdk.client.backend import Backend

P = ParamSpec("P")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class ApprovalDecision(msgspec.Struct, frozen=True, kw_only=True):
    """How an approval is answered, beside its value."""

    by: str = ""
    comment: str = ""
    nth: int = 1
    question: str = ""


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


class QueryKey(Protocol[P, R_co]):
    """A `Query`."""

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> StateKey[R_co]: ...


async def read(key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: Backend, run_id: str) -> Any:
    """The value of a state, or the answer of a query. A query takes its arguments, everything else a `timeout`."""
    if hasattr(key, "bind"):
        return await key.bind(*args, **kwargs).read_on(target, run_id)
    timeout = kwargs.pop("timeout", None)
    if args or kwargs:
        raise InvalidInput(f"{key!r} takes no arguments beside timeout=")
    return await key.read_on(target, run_id, within_s=within(timeout))


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
        decision: ApprovalDecision,
        *,
        within_s: float | None = None,
    ) -> bool: ...

    async def reject_on(
        self, target: Backend, run_id: str, decision: ApprovalDecision, *, within_s: float | None = None
    ) -> bool: ...


class EventKey(Protocol[T_contra]):
    """A `NamedEvent`."""

    async def emit_on(
        self, target: Backend, value: T_contra, *, key: str = "", within_s: float | None = None
    ) -> bool: ...
