"""How long a call of a client may take, and the error for a call that was not answered in that time."""

from __future__ import annotations

from perdure.core.durations import Duration, to_us
from perdure.core.errors import InvalidInput, Unavailable
from perdure.core.limits import CALL_TIMEOUT_S, CALL_TIMEOUT_S_MAX


def call_timeout_s(given: Duration | None) -> float:
    """What a client was given as `call_timeout`, in seconds."""
    return CALL_TIMEOUT_S if given is None else timeout_s("call_timeout", given)


def timeout_s(option: str, given: Duration) -> float:
    seconds = to_us(given) / 1e6
    if not 0 < seconds <= CALL_TIMEOUT_S_MAX:
        raise InvalidInput(
            f"{option}={given!r}: a call takes more than nothing and at most CALL_TIMEOUT_S_MAX={CALL_TIMEOUT_S_MAX:g} s"
        )
    return seconds


def given_up(act: str, attempts: int, seconds: float, limit_s: float, last: Unavailable) -> Unavailable:
    """The error of a call that was repeated: `last` speaks of one attempt, and of the part of the time that was left for it."""
    tried = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return type(last)(
        f"{act} failed after {tried} in {seconds:.3g} s; its timeout is {limit_s:.3g} s. The last error: {last}"
    )


def unanswered(seconds: float, *, effect: bool) -> Unavailable:
    """`effect`: the call changes something, and may have."""
    if not effect:
        return Unavailable(
            f"no answer within {seconds:.3g} s: the server or its database does not respond. Try again later"
        )
    return Unavailable(
        f"no answer within {seconds:.3g} s: the server or its database does not respond, and whether the call took effect is unknown. "
        "Look first, or repeat it under the same key or id, which makes a repeat safe"
    )
